"""What the runs on this host have learned of a model: a small file beside its copy in the host's cache."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from daybreak.score.artifacts import locked

__all__ = ["Learned", "recall", "remember"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Learned:
    """The budget of a batch in tokens, whether it is the knee or was still growing when it was noted, and what it
    recovers to, where it is small because memory ran out."""

    tokens: int
    settled: bool
    most: int | None = None


def recall(cache_dir: str | os.PathLike[str], digest: str, where: str) -> Learned | None:
    """What was noted for the model of this digest at ``where``, a device and a precision; None if nothing was."""
    noted = _notes(_file(cache_dir, digest)).get(where)
    return Learned(int(noted["tokens"]), bool(noted["settled"]), noted.get("most")) if noted else None


def remember(cache_dir: str | os.PathLike[str], digest: str, where: str, learned: Learned) -> None:
    """Note it for the next shard and the next run. Of several workers the last one counts; a file system that refuses
    costs the next run its learning, so that is a warning."""
    file = _file(cache_dir, digest)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.with_suffix(".lock")):
            part = file.with_suffix(f".part-{os.getpid()}")
            part.write_text(json.dumps({**_notes(file), where: asdict(learned)}))
            part.rename(file)
    except OSError as error:
        logger.warning("what was learned of batches cannot be noted in %s: %s", file, error)


def _file(cache_dir: str | os.PathLike[str], digest: str) -> Path:
    return Path(cache_dir) / f"{digest}.learned.json"


def _notes(file: Path) -> dict[str, dict[str, int]]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(file.read_text()))
    return {}
