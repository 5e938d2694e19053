"""The layers: imports run one way only, so that the scoring core runs without Spark and a newcomer reads downwards."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import daybreak

ROOT = Path(daybreak.__file__).parent
# A module may import from its own line and from the lines above it.
LAYERS = (
    ("errors", "jobfile", "config", "types", "schema", "settings", "storage", "local"),
    ("score", "models"),
    ("source", "sink"),
    ("ops",),
    ("launch",),
    ("run",),
    ("cli",),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
SIBLINGS_APART = {("source", "sink"), ("sink", "source")}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).with_suffix("").as_posix(), path


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def layer_of(name: str) -> str:
    return name.split("/")[0].split(".")[0]


@pytest.mark.parametrize(("name", "path"), [(n, p) for n, p in modules() if n != "__init__"])
def test_a_module_imports_only_from_its_own_layer_and_those_above(name: str, path: Path) -> None:
    own = layer_of(name)
    assert own in RANK, f"{name} is in no layer: give it one"
    for target in imported(path):
        if not target.startswith("daybreak.") or (other := layer_of(target.removeprefix("daybreak."))) not in RANK:
            continue
        assert RANK[other] <= RANK[own], f"{name} imports {target}, which stands below it"
        assert (own, other) not in SIBLINGS_APART, f"{name} imports {target}: source and sink do not know each other"


@pytest.mark.parametrize(("name", "path"), [(n, p) for n, p in modules() if layer_of(n) in ("score", "models")])
def test_the_scoring_core_knows_neither_spark_nor_delta(name: str, path: Path) -> None:
    allowed = {"pyspark", "pyspark.TaskContext"} if name == "score/worker" else set()
    assert {one for one in imported(path) if one.split(".")[0] in ("pyspark", "delta")} <= allowed


def test_case_22_importing_the_package_starts_nothing() -> None:
    """Whoever imports first must not have touched CUDA before the worker forks; nor is a JVM started."""
    code = "import sys, daybreak, daybreak.config, daybreak.score.worker; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT.parent)}
    ).stdout.split()
    assert {"torch", "pyspark", "mlflow", "transformers", "delta"}.isdisjoint(loaded)


def test_the_public_names_are_complete_and_sorted() -> None:
    assert daybreak.__all__ == sorted(daybreak.__all__)
    assert all(callable(getattr(daybreak, name)) for name in daybreak.__all__)
    with pytest.raises(AttributeError, match="it has JobConfig, Summary, score"):
        daybreak.scores  # noqa: B018


def test_score_is_a_package_and_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from daybreak import run, score
    from daybreak.score import batches

    monkeypatch.setattr(run, "score", lambda job, **options: (job, options))
    assert score("job.yaml", fresh=True) == ("job.yaml", {"fresh": True})
    assert batches.__name__ == "daybreak.score.batches"
