"""A model in a process of its own, for a shard that has cost a worker before.

A row that ends the process (a native crash, ``os._exit``) or never returns would end every attempt at its shard. Here
it ends a child: the parent sees it, starts another, and the pipeline tries the batch again row by row, so that the
culprit becomes a dead letter and its neighbours are scored. Slower than in place, so only for repeated attempts.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np
import pandas as pd

from daybreak.errors import DaybreakError, ModelLoadError, ShardError
from daybreak.score.columns import take
from daybreak.score.device import on_host, share_memory
from daybreak.score.modules import search_path

__all__ = ["ChildLostError", "Isolated", "ModelError", "ProcessEndedError", "RowTimeoutError"]

Array = np.ndarray[Any, Any]

MOST_ENDS = 32
"""Processes that end in a row, with nothing scored between them, until the model is to blame and not its rows."""
MAX_ROWS = 256
"""Rows of a batch: a batch that ends its process is scored again row by row."""
_ORPHAN = 5  # seconds that a child outlives the limit, should its parent be gone


class ChildLostError(Exception):
    """A batch, or a row alone, cost a process."""

    phase = "worker"
    singly = True  # the pipeline tries the batch row by row


class ProcessEndedError(ChildLostError):
    """The process ended while it scored a batch."""


class RowTimeoutError(ChildLostError):
    """A batch, or a row alone, took longer than ``batch.row_timeout``."""


class ModelError(RuntimeError):
    """What the model raised in the other process; subclasses carry the name of the class it raised."""

    phase = "forward"


@dataclass(frozen=True)
class Encoded:
    """A window's rows with their cost in tokens, and how many were truncated."""

    rows: pd.DataFrame
    sizes: Array
    truncated: int


class Isolated:
    """A staged model whose model lives in a child process.

    Args:
        load: what ``load_cached`` takes, as keywords; must pickle.
        row_timeout: seconds for one call, of a batch or of a row alone; None waits for ever.
        gpu_share: the part of its GPU's memory that the child may have, 0 to 1.

    Raises, besides what the pipeline makes a dead letter of, ShardError when processes end one after the other with
    nothing scored, and ModelLoadError when the model does not load.
    """

    def __init__(self, load: dict[str, Any], *, row_timeout: float | None, gpu_share: float = 1.0) -> None:
        self._task = {"load": load, "limit": row_timeout, "gpu_share": gpu_share}
        self._lock = threading.Lock()  # the prefetch thread sizes while the main thread scores
        self._child: _Child | None = _Child(self._task)
        self._ends = 0
        self.ended = 0
        """Child processes that ended or were ended so far."""
        self.by_rows, self.device = self._child.by_rows, self._child.device

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.end()

    def encode(self, rows: pd.DataFrame) -> Encoded:
        """Asked for in batches, so that a row that ends the process is dear in none but its own."""
        places = np.split(np.arange(len(rows)), range(MAX_ROWS, len(rows), MAX_ROWS))
        parts = [self._ask("size", take(rows, some)) for some in places]
        sizes = np.concatenate([sizes for sizes, _ in parts])
        return Encoded(rows, sizes, sum(truncated for _, truncated in parts))

    def size(self, rows: pd.DataFrame) -> Array:
        return self.encode(rows).sizes

    def collate(self, encoded: Encoded, rows: Array) -> pd.DataFrame:
        return take(encoded.rows, rows)

    def preprocess(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows

    def forward(self, batch: pd.DataFrame) -> Any:
        """All that is left to do for a batch, in the other process."""
        return self._ask("score", batch)

    def postprocess(self, output: Any) -> Any:
        return output

    def _ask(self, what: str, rows: pd.DataFrame) -> Any:
        with self._lock:
            if self._child is None:
                self._child = _Child(self._task)
            try:
                answer = self._child.ask(what, rows)
            except ChildLostError as error:
                self._bury(error)
                raise
            self._ends = 0
        return _opened(answer)

    def _bury(self, error: Exception) -> None:
        assert self._child is not None
        self._child.end()
        self._child = None
        self.ended += 1
        self._ends += 1
        if self._ends >= MOST_ENDS:
            raise ShardError(
                f"the model ended {self._ends} processes one after the other, with nothing scored between: {error}",
                fix="no single row is to blame: try the model on a few rows in the workers' environment; once it is"
                " mended, the same command scores what is left",
            ) from None


class _Child:
    """One process with the model in it."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._limit: float | None = task["limit"]
        self._pipe, theirs = Pipe()
        path = os.pathsep.join(search_path())
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a model prints is for the executor's log
            start_new_session=True,  # to end it with all that the model has forked
            env={**os.environ, "PYTHONPATH": path},
        )
        theirs.close()
        # a process that the model has forked holds the pipe open when the child is gone
        self._gone = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        try:
            self._pipe.send(task)
            answer = self._pipe.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            raise ModelLoadError(
                f"the model ended its process while it was loaded ({_ending(code)})",
                fix="load it with mlflow.pyfunc.load_model in the workers' environment to see why",
            ) from None
        if isinstance(answer, DaybreakError):
            self.end()
            raise answer
        self.by_rows, self.device = answer

    def ask(self, what: str, rows: pd.DataFrame) -> tuple[str, Any]:
        try:
            self._pipe.send((what, rows))
            return self._answer()
        except (EOFError, OSError):
            raise ProcessEndedError(f"the model ended its process ({_ending(self._process.wait())})") from None

    def _answer(self) -> tuple[str, Any]:
        ready = wait([self._pipe, *([self._gone] if self._gone is not None else [])], self._limit)
        if not ready:
            raise RowTimeoutError(f"no answer within batch.row_timeout ({self._limit:g} s)")
        if self._pipe not in ready:
            raise EOFError
        try:
            answer: tuple[str, Any] = self._pipe.recv()
        except (ImportError, AttributeError) as error:  # of a class that only the model's own code knows
            return "error", (type(error).__name__, f"the output cannot be read here: {error}", "postprocess")
        return answer

    def end(self) -> None:
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._gone is not None:
            os.close(self._gone)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _opened(answer: tuple[str, Any]) -> Any:
    kind, value = answer
    if kind == "result":
        return value
    if isinstance(value, DaybreakError):
        raise value
    name, message, phase = value
    raise type(name, (ModelError,), {"phase": phase})(message)


# ------------------------------------------------------------------------------------------------- in the child


def _serve(pipe: Connection) -> None:
    """Load the model, then answer until the parent is gone."""
    from daybreak.score.model import load_cached

    task = pipe.recv()
    limit = task["limit"]
    share_memory(task["gpu_share"])
    try:
        model = load_cached(**task["load"])
    except DaybreakError as error:
        pipe.send(error)
        return
    pipe.send((getattr(model, "by_rows", False), str(getattr(model, "device", ""))))
    while True:
        try:
            what, rows = pipe.recv()
        except EOFError:
            return
        if limit is not None:  # the parent ends a child that hangs, unless it is gone itself
            faulthandler.dump_traceback_later(limit + _ORPHAN, exit=True)
        answer = _answer(model, what, rows)
        faulthandler.cancel_dump_traceback_later()
        pipe.send_bytes(_sealed(answer))


def _sealed(answer: tuple[str, Any]) -> bytes:
    try:
        return pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps(("error", (type(error).__name__, f"the output does not pickle: {error}", "postprocess")))


def _answer(model: Any, what: str, rows: pd.DataFrame) -> tuple[str, Any]:
    phase = "size"
    try:
        if what == "size":
            return "result", _sizes(model, rows)
        phase = "preprocess"
        prepared = model.preprocess(rows)
        phase = "forward"
        output = on_host(model.forward(prepared))
        phase = "postprocess"
        return "result", model.postprocess(output)
    except (Exception, SystemExit) as error:
        return "error", _told(error, phase)


def _sizes(model: Any, rows: pd.DataFrame) -> tuple[Array, int]:
    if not hasattr(model, "encode"):
        return model.size(rows), 0
    encoded = model.encode(rows)
    return encoded.sizes, int(getattr(encoded, "truncated", 0))


def _told(error: BaseException, phase: str) -> Any:
    """An error as the parent can raise it; one that leaves this process unusable ends it."""
    from daybreak.score.pipeline import is_device_error, is_out_of_memory, release_memory

    if isinstance(error, DaybreakError):
        return error
    if isinstance(error, ImportError):
        return ShardError(
            f"the model cannot import what it needs: {error}",
            fix="install it on every worker; then the same command scores what is left",
        )
    if is_device_error(error):
        os._exit(70)
    if is_out_of_memory(error):
        release_memory()
    return type(error).__name__, str(error) or "no message", phase


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
