"""A model in a process of its own, for a shard that has cost a worker before.

A row that ends the process (a native crash, ``os._exit``) or never returns would end every attempt at its shard. Here
it ends a child: the parent sees it, starts another, and the pipeline tries the batch again row by row, so that the
culprit becomes a dead letter and its neighbours are scored. Slower than in place, so only after an attempt that
ended its worker (:mod:`daybreak.score.attempts`).
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
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np
import pandas as pd

from daybreak.errors import DaybreakError, ModelLoadError, ShardError, text
from daybreak.score.device import on_host, share_memory
from daybreak.score.modules import search_path
from daybreak.score.pipeline import OtherProcessError, is_device_error, is_out_of_memory, release_memory

__all__ = ["ChildLostError", "Isolated", "ModelError", "ProcessEndedError", "RowTimeoutError"]

Array = np.ndarray[Any, Any]

MOST_ENDS = 32
"""Processes that end in a row, with nothing scored between them, until the model is to blame and not its rows."""
MAX_ROWS = 256
"""Rows of a batch: a batch that ends its process is scored again row by row."""
_ORPHAN = 5  # seconds that a child outlives the limit, should its parent be gone
_MESSAGE = 2_000  # characters of an error that are told
_GRACE = 5  # seconds for a child that has closed its pipe to end


class ChildLostError(OtherProcessError):
    """A batch, or a row alone, cost a process."""

    singly = True


class ProcessEndedError(ChildLostError):
    """The process ended while it scored a batch."""


class RowTimeoutError(ChildLostError):
    """A batch, or a row alone, took longer than ``batch.row_timeout``."""


class ModelError(OtherProcessError, RuntimeError):
    """What the model raised in the other process; subclasses carry the name of the class it raised."""


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
        self.ended = self.truncated = 0
        """Child processes that ended or were ended so far, and rows that were truncated."""
        self.max_rows = MAX_ROWS
        self.by_rows, self.device = self._child.by_rows, self._child.device

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.end()

    def size(self, rows: pd.DataFrame) -> Array:
        sizes, truncated = self._ask("size", rows)
        self.truncated += truncated
        return np.asarray(sizes)

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
            raise ModelLoadError(
                f"the model ended its process while it was loaded ({self._ending()})",
                fix="load it with mlflow.pyfunc.load_model in the workers' environment to see why",
            ) from None
        if isinstance(answer, DaybreakError):
            self.end()
            raise answer
        self.by_rows, self.device = answer

    def ask(self, what: str, rows: pd.DataFrame) -> tuple[str, Any]:
        """The child's answer, or a ChildLostError that says in what it was lost."""
        during = " while it told the size of rows" if what == "size" else ""
        try:
            if self._gone is not None and wait([self._gone], 0):
                raise EOFError
            self._pipe.send((what, rows))
            answer = self._answer(during)
        except (EOFError, OSError):
            raise ProcessEndedError(f"the model ended its process ({self._ending()}){during}") from None
        return _unsealed(answer)

    def _answer(self, during: str) -> bytes:
        ready = wait([self._pipe, *([self._gone] if self._gone is not None else [])], self._limit)
        if not ready:
            raise RowTimeoutError(f"no answer within batch.row_timeout ({self._limit:g} s){during}")
        if self._pipe not in ready:
            raise EOFError
        return self._pipe.recv_bytes()

    def _ending(self) -> str:
        """How the process ended. One that has closed its pipe and goes on is ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return _ending(self._process.wait(_GRACE))
        self._process.kill()
        self._process.wait()
        return "it closed what it answers by"

    def end(self) -> None:
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._gone is not None:
            os.close(self._gone)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _unsealed(answer: bytes) -> tuple[str, Any]:
    """An answer may hold what the model's own code knows alone, or what fails when it is read."""
    try:
        kind, value = pickle.loads(answer)
    except Exception as error:
        return "error", (type(error).__name__, f"the output cannot be read here: {text(error)}", "postprocess")
    return kind, value


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
            faulthandler.dump_traceback_later(limit + _ORPHAN, exit=True, file=2)
        answer = _answer(model, what, rows)
        faulthandler.cancel_dump_traceback_later()
        pipe.send_bytes(_sealed(answer))


def _sealed(answer: tuple[str, Any]) -> bytes:
    try:
        return pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        told = (type(error).__name__, f"the output does not pickle: {text(error)}", "postprocess")
        return pickle.dumps(("error", told))


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
    except BaseException as error:  # nobody interrupts this process: whatever is raised, the model raises
        return "error", _told(error, phase)


def _sizes(model: Any, rows: pd.DataFrame) -> tuple[Array, int]:
    if not hasattr(model, "encode"):
        return model.size(rows), 0
    encoded = model.encode(rows)
    return encoded.sizes, int(getattr(encoded, "truncated", 0))


def _told(error: BaseException, phase: str) -> Any:
    """An error as the parent can raise it; one that leaves this process unusable ends it."""
    if isinstance(error, DaybreakError):
        return error
    if isinstance(error, ImportError):
        return ShardError(
            f"the model cannot import what it needs: {text(error)}",
            fix="install it on every worker; then the same command scores what is left",
        )
    if is_device_error(error):
        os._exit(70)
    if is_out_of_memory(error):
        release_memory()
    return type(error).__name__, text(error, most=_MESSAGE), phase


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
