"""Rows that end their process, or never return: the worker's function with its model in a child."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import mlflow
import pandas as pd
import pytest
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel
from mlflow.types.schema import ColSpec, DataType, Schema

import daybreak
from daybreak.errors import ModelLoadError, ShardError
from daybreak.score import isolated, worker
from daybreak.score.registry import resolve
from daybreak.score.worker import Scorer

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the child cannot import this file


class Deadly(PythonModel):
    """Twice ``n``; what it does at some n is in ``at``."""

    def __init__(self, at: dict[int, str], *, load: str = "") -> None:
        self.at, self.load = at, load

    def load_context(self, context: Any) -> None:
        if self.load:
            exec(self.load)

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        import sys

        print("a model that prints", flush=True)
        os.write(1, b"and one that writes to the descriptor\n")
        for n in model_input["n"].tolist():
            exec(self.at.get(n, ""), {"os": os, "sys": sys})
        model_input["n"] *= 2
        return model_input["n"].to_numpy()


CRASH = "os._exit(139)"
MUTE = """
class Mute(Exception):
    def __str__(self):
        raise TypeError
raise Mute
"""
INTERRUPT = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stderr.close()
raise KeyboardInterrupt
"""  # and as rude as it can be
SEGFAULT = "import signal; os.kill(os.getpid(), signal.SIGSEGV)"
SLEEP = "import time; time.sleep(3600)"
BACKTRACK = "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')"  # holds the interpreter's lock


def saved(path: Path, model: PythonModel) -> Path:
    signature = ModelSignature(Schema([ColSpec(DataType.long, "n")]), Schema([ColSpec(DataType.long, "twice")]))
    mlflow.pyfunc.save_model(str(path), python_model=model, signature=signature, pip_requirements=[])
    return path


def scorer(path: Path, *, row_timeout: float | None = 60) -> Scorer:
    pin, spec = resolve(str(path))
    one = Scorer(pin, spec, spec.inputs, 1, None, "fp32", {}, "unused", False)
    return replace(one, row_timeout=row_timeout, isolated=True)


def frame(values: range) -> pd.DataFrame:
    numbers = pd.Series(list(values), dtype="Int64")
    return pd.DataFrame({"shard_id": 3, "k0": numbers, "f0": numbers, "input_hash": numbers.astype("int64")})


def run(one: Scorer, *values: range) -> tuple[dict[int, int], dict[int, Any], dict[str, Any]]:
    """Scores by key, dead letters by key, and the receipt's facts."""
    staged = pd.concat([part.astype(object) for part in one(iter([frame(some) for some in values]))])
    scored = staged[staged["kind"] == "scored"]
    dead = staged[staged["kind"] == "dead"].set_index("k0")
    (receipt,) = staged.loc[staged["kind"] == "receipt", "receipt"]
    return dict(zip(scored["k0"], scored["p0"], strict=True)), dead.to_dict("index"), json.loads(receipt)


def test_case_20_a_row_that_ends_the_process_is_the_only_dead_letter(tmp_path: Path) -> None:
    """Two batches; of each the batch ends a process, and then the row alone another."""
    scored, dead, facts = run(
        scorer(saved(tmp_path / "m", Deadly({7: CRASH, 305: SEGFAULT, 307: INTERRUPT}))), range(300), range(300, 310)
    )
    assert scored == {n: 2 * n for n in range(310) if n not in (7, 305, 307)}
    assert (dead[307]["phase"], dead.pop(307)["error_class"]) == ("forward", "KeyboardInterrupt")
    told = {key: (one["phase"], one["error_class"], one["attempts"], one["message"]) for key, one in dead.items()}
    said = "the model ended its process ({})".format
    assert told == {
        7: ("worker", "ProcessEndedError", 2, said("exit code 139")),
        305: ("worker", "ProcessEndedError", 2, said("signal 11")),
    }
    assert (facts["isolated"], facts["processes_ended"]) == (1, 4)


def test_case_20_what_a_row_raises_is_told_alike_in_place_and_in_a_child(tmp_path: Path) -> None:
    at = {7: "sys.exit(0)", 9: "raise KeyError('no such thing')", 11: "raise GeneratorExit", 13: MUTE}
    one = scorer(saved(tmp_path / "m", Deadly(at)))
    told = []
    for apart in (False, True):
        scored, dead, facts = run(replace(one, isolated=apart), range(40))
        assert scored == {n: 2 * n for n in range(40) if n not in at}
        assert facts.get("processes_ended", 0) == 0
        told.append({key: [one[name] for name in ("phase", "error_class", "message")] for key, one in dead.items()})
    assert told[0] == told[1]
    assert told[0] == {
        7: ["forward", "SystemExit", "0"],
        9: ["forward", "KeyError", "'no such thing'"],
        11: ["forward", "GeneratorExit", "GeneratorExit"],
        13: ["forward", "Mute", "Mute, whose text cannot be had: its __str__ raises TypeError"],
    }


def test_case_21_a_row_that_never_returns_is_a_dead_letter_with_its_limit(tmp_path: Path) -> None:
    one = scorer(saved(tmp_path / "m", Deadly({7: SLEEP, 305: BACKTRACK})), row_timeout=5)
    scored, dead, facts = run(one, range(300), range(300, 310))
    assert scored == {n: 2 * n for n in range(310) if n not in (7, 305)}
    told = {key: (one["phase"], one["error_class"]) for key, one in dead.items()}
    assert told == dict.fromkeys((7, 305), ("worker", "RowTimeoutError"))
    assert all("batch.row_timeout (5 s)" in letter["message"] for letter in dead.values())
    assert facts["processes_ended"] == 4


def test_22_a_child_has_no_more_of_the_gpu_than_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU here: what torch is asked for stands in a file."""
    asked = tmp_path / "asked"
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "torch.py").write_text(f"""if True:
        class cuda:
            is_available = staticmethod(lambda: True)
            is_initialized = staticmethod(lambda: False)
            set_per_process_memory_fraction = staticmethod(lambda share: open({str(asked)!r}, "a").write(f"{{share}}"))
    """)
    one = scorer(saved(tmp_path / "m", Deadly({})))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "stub"), *sys.path])
    monkeypatch.setattr(worker, "_claim", lambda *_: None)  # the parent's own share
    assert run(replace(one, gpu_share=0.25), range(3))[0] == {0: 0, 1: 2, 2: 4}
    assert asked.read_text() == "0.25"


def test_a_model_that_ends_every_process_ends_the_shard_and_not_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "MOST_ENDS", 3)
    one = scorer(saved(tmp_path / "m", Deadly(dict.fromkeys(range(300), CRASH))))
    with pytest.raises(ShardError, match=r"ended 3 processes.*exit code 139"):
        run(one, range(300))


@pytest.mark.parametrize(
    ("load", "told"),
    [(CRASH, "ended its process while it was loaded .exit code 139"), ("import nowhere_to_be_found", "nowhere_to_be")],
)
def test_a_model_that_does_not_load_is_one_fatal_error(tmp_path: Path, load: str, told: str) -> None:
    path = saved(tmp_path / "m", Deadly({}, load=f"if __import__('sys').argv[0].endswith('isolated.py'): {load}"))
    with pytest.raises(ModelLoadError, match=told):
        run(scorer(path), range(3))


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(daybreak.__file__).parents[1])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "stalls",
    [
        "time.sleep(3600)",
        "re.match(r'(a+)+$', 'a' * 64 + 'b')",
        "sys.stderr.close(); again = Watchdog(1)(); again.__enter__(); time.sleep(3600)",
    ],
)
def test_the_watchdog_ends_a_process_that_hangs_and_shows_where(stalls: str) -> None:
    hangs = python(f"""
        import re, sys, time
        from daybreak.score.watchdog import Watchdog
        with Watchdog(1)():
            {stalls}
    """)
    _, stderr = hangs.communicate(timeout=60)
    assert hangs.returncode == 1
    assert "Timeout" in stderr
    assert 'File "<string>", line 5' in stderr


def test_the_watchdog_lets_sections_pass_that_overlap_on_threads() -> None:
    passes = python("""
        import threading, time
        from daybreak.score.watchdog import Watchdog
        watch = Watchdog(4)
        def sections():
            for _ in range(40):
                with watch():
                    time.sleep(0.05)
        threads = [threading.Thread(target=sections) for _ in range(3)]
        [one.start() for one in threads]
        [one.join() for one in threads]
        time.sleep(4.5)  # nothing is watched any more
    """)
    assert passes.wait(timeout=60) == 0


def test_a_child_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    path = saved(tmp_path / "m", Deadly({1: f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); {SLEEP}"}))
    parent = python(
        """
        import sys
        from daybreak.score.isolated import Isolated
        from daybreak.score.registry import resolve
        import pandas as pd
        pin, spec = resolve(sys.argv[1])
        load = {"pin": pin, "spec": spec, "cache_dir": "unused", "params": {}}
        Isolated(load, row_timeout=8).forward(pd.DataFrame({"n": [1]}))
        """,
        str(path),
    )
    child = int(waited(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text()))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    waited(lambda: gone(child))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def waited(for_what: Any) -> Any:
    for _ in range(600):
        if found := for_what():
            return found
        time.sleep(0.1)
    raise AssertionError("waited for a minute")
