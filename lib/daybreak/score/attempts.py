"""Which attempts at a shard ended their worker on this host: a locked file each, for as long as an attempt lasts.

See docs/decisions/0013.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from daybreak.score.pipeline import ends_worker

__all__ = ["ended_a_worker", "under_way"]

logger = logging.getLogger(__name__)

_OLD = 7 * 86_400  # seconds; no attempt lasts as long
_mine: set[Path] = set()  # to open one of them again would let go of its lock


@contextlib.contextmanager
def under_way(cache_dir: str | os.PathLike[str], shard: str, attempt: str) -> Iterator[None]:
    """Note the attempt while it lasts. What ends this process, or will, leaves its note; an error that is told, and the
    end of the shard, remove it. Where no file can be written or locked, nothing is noted."""
    note = _folder(cache_dir) / f"{shard}.{attempt}"
    handle = _noted(note)
    if handle is None:
        yield
        return
    keep = False
    _mine.add(note)
    try:
        yield
    except BaseException as error:
        keep = ends_worker(error)
        raise
    finally:
        _mine.discard(note)
        if not keep:
            note.unlink(missing_ok=True)
        os.close(handle)


def ended_a_worker(cache_dir: str | os.PathLike[str], shard: str) -> bool:
    """Whether an earlier attempt at the shard ended its worker on this host.

    Its note has nobody's lock, which the kernel takes from a process that ends, and its executor goes on: of one that
    was taken away, with its workers, the note tells nothing of the model.
    """
    with contextlib.suppress(OSError):
        return any(_is_left(note) for note in _folder(cache_dir).glob(f"{shard}.*") if note not in _mine)
    return False


def _folder(cache_dir: str | os.PathLike[str]) -> Path:
    return Path(cache_dir) / "attempts"


def _noted(note: Path) -> int | None:
    """The note, locked as long as this process lives and no longer: a lock of POSIX is not inherited by a fork."""
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        _sweep(note.parent)
        handle = os.open(note, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(handle, fcntl.LOCK_EX)  # who looks at it lets go at once
        os.write(handle, str(os.getppid()).encode())  # the daemon of the executor's workers, which ends with it
    except OSError as error:
        logger.warning("an attempt cannot be noted in %s: %s", note, error)
        return None
    return handle


def _sweep(folder: Path) -> None:
    for note in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - note.stat().st_mtime > _OLD:
                note.unlink()


def _is_left(note: Path) -> bool:
    with contextlib.suppress(OSError), note.open("r+") as handle:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        parent = handle.read()
        return parent.isdecimal() and _is_alive(int(parent))
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
