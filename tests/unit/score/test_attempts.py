"""Which attempts count as ones that ended their worker."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import daybreak
from daybreak.score import attempts

ENDED = {
    "os._exit(139)": True,
    "os.kill(os.getpid(), 9)": True,
    "faulthandler.dump_traceback_later(0.1, exit=True); time.sleep(60)": True,
    "os.fork() or time.sleep(60); os._exit(1)": True,  # what it has forked outlives it
    "raise RuntimeError('CUDA error: device-side assert triggered')": True,
    "raise KeyboardInterrupt": True,
    "raise ImportError('no such module')": False,
    "raise GeneratorExit": False,
    "pass": False,
}


def attempt(code: str, folder: Path, *, parent: str = "") -> None:
    """An attempt in a worker, whose parent is this process, or one that ends with it."""
    worker = textwrap.dedent("""
        import faulthandler, os, sys, time
        from daybreak.score import attempts
        with attempts.under_way(sys.argv[1], "job-7", "1"):
            {}
    """).format(code)
    through = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
    command = [sys.executable, *(["-c", through] if parent else []), "-c", worker, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(Path(daybreak.__file__).parents[1])}
    subprocess.run(command, env=environment, check=False, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(("code", "ended"), ENDED.items(), ids=lambda value: str(value)[:30])
def test_an_attempt_ended_its_worker_or_was_told_of(code: str, ended: bool, tmp_path: Path) -> None:
    attempt(code, tmp_path)
    assert attempts.ended_a_worker(tmp_path, "job-7") is ended
    assert not attempts.ended_a_worker(tmp_path, "job-70")
    assert not attempts.ended_a_worker(tmp_path, "another-7")


def test_a_worker_that_went_with_its_executor_was_not_ended_by_a_row(tmp_path: Path) -> None:
    attempt("os._exit(139)", tmp_path, parent="gone")
    assert not attempts.ended_a_worker(tmp_path, "job-7")


def test_an_attempt_that_is_under_way_has_not_ended(tmp_path: Path) -> None:
    with attempts.under_way(tmp_path, "job-7", "1"):
        seen = f"from daybreak.score import attempts; print(attempts.ended_a_worker({str(tmp_path)!r}, 'job-7'))"
        environment = {**os.environ, "PYTHONPATH": str(Path(daybreak.__file__).parents[1])}
        told = subprocess.run([sys.executable, "-c", seen], env=environment, check=True, capture_output=True, text=True)
        assert told.stdout == "False\n"
        assert not attempts.ended_a_worker(tmp_path, "job-7")
    assert list((tmp_path / "attempts").iterdir()) == []


def test_notes_of_other_weeks_are_removed_and_without_a_place_nothing_is_noted(tmp_path: Path) -> None:
    attempt("os._exit(139)", tmp_path)
    [old] = (tmp_path / "attempts").iterdir()
    os.utime(old, (0, 0))
    with attempts.under_way(tmp_path, "job-8", "1"):
        assert not old.exists()
    (tmp_path / "file").touch()
    with attempts.under_way(tmp_path / "file", "job-8", "1"):
        pass
    assert not attempts.ended_a_worker(tmp_path / "file", "job-8")
