"""The function that Spark maps over a shard. The only module of ``score`` that knows of Spark's task.

One call is one shard: it loads the model (once per worker process), scores, and ends with the shard's receipt.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import os
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from daybreak import schema
from daybreak.errors import WorkerEndedError, text
from daybreak.score import attempts, device, learned, precision
from daybreak.score.isolated import MAX_ROWS, Isolated
from daybreak.score.model import StagedModel, forget, load_cached
from daybreak.score.pipeline import Failure, Pipeline, WindowResult, ends_worker, release_memory
from daybreak.score.registry import ModelPin
from daybreak.score.signature import Field, ModelSpec
from daybreak.score.values import is_null
from daybreak.score.watchdog import Watchdog
from daybreak.score.windows import gather

_WITHIN = 4  # parts of row_timeout: a batch that takes one of them at the pace of the last may be slower than that


@dataclass(frozen=True)
class Scorer:
    """Scores one shard: frames off the wire in, rows of ``schema.staging`` out.

    A picklable description; nothing of the model travels with it. ``features`` are the inputs that the frames
    carry as ``f0..``, and ``keys`` is the number of key columns, ``k0..``. ``gpu_share`` (0 to 1) is the part of a
    GPU that a task has.

    A task scores in a child process after an attempt that ended its worker, since a row may be to blame; so does every
    task where ``isolated`` says so. A stage of the model that takes longer than ``row_timeout`` seconds ends the
    process, or the child. ``max_failures`` is how many failed attempts at a task end the job, and ``job`` names this
    job among all that the host has seen.

    Raises what ends the task, and with it the attempt: ModelLoadError, and WorkerEndedError for what only a new process
    can bear. A row that fails is no exception but a dead letter.
    """

    pin: ModelPin
    spec: ModelSpec
    features: tuple[Field, ...]
    keys: int
    tokens: int | None
    precision: str
    params: dict[str, Any]
    cache_dir: str
    redact: bool
    row_timeout: float | None = None
    isolated: bool = False
    gpu_share: float = 1.0
    window_rows: int = 8192
    max_failures: int = 4
    job: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        first = next((frame for frame in frames if len(frame)), None)
        if first is None:
            return
        began = time.time()
        _claim(self.gpu_share, self.cache_dir)
        _open_streams()
        number, attempt = _attempt()
        shard = _Shard(self, int(first["shard_id"].iloc[0]), attempt)
        waiting: deque[_Frame] = deque()

        def windows() -> Iterator[pd.DataFrame]:
            for frame in gather(map(exact, itertools.chain((first,), frames)), max_rows=self.window_rows):
                waiting.append(_Frame(frame, self.keys))
                yield waiting[-1].inputs(self.features)

        name = f"{self.job}-{shard.shard_id}"
        isolated = self.isolated or (number > 0 and self._has_ended_a_worker(name, number))
        with attempts.under_way(self.cache_dir, name, attempt), _told(), self._engine(isolated=isolated) as engine:
            pipeline, about = engine
            loaded = time.time()
            for result in pipeline.run(windows()):
                yield from shard.rows(waiting.popleft(), result)
            facts = {**pipeline.stats.as_dict(), **about(), "load_seconds": round(loaded - began, 4)}
        yield shard.receipt(facts, began=began)

    def _has_ended_a_worker(self, shard: str, number: int) -> bool:
        """Whether an earlier attempt did, as far as this host knows. When one more failure may end the job, those on
        other hosts are taken for it (docs/decisions/0013)."""
        return number >= max(2, self.max_failures - 1) or attempts.ended_a_worker(self.cache_dir, shard)

    def decide(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """What precision ``auto`` means on this worker's device, as one row of JSON; whatever the rows are."""
        deque(frames, maxlen=0)
        _claim(self.gpu_share, self.cache_dir)
        choice = precision.decide(self.pin, self.spec, cache_dir=self.cache_dir, params=self.params)
        yield pd.DataFrame({"choice": [json.dumps(asdict(choice))]})

    @contextmanager
    def _engine(self, *, isolated: bool) -> Iterator[tuple[Pipeline, Callable[[], dict[str, Any]]]]:
        """The pipeline with the model in place or in a child, and what the receipt says of that."""
        load: dict[str, Any] = {"pin": self.pin, "spec": self.spec, "cache_dir": self.cache_dir}
        load |= {"precision": self.precision, "params": self.params}
        seconds = self.row_timeout / _WITHIN if self.row_timeout else None
        if isolated:
            forget()  # a device has room for one model
            release_memory()
            with Isolated(load, row_timeout=self.row_timeout, gpu_share=self.gpu_share) as child:
                pipeline = Pipeline(child, self.spec, tokens=self.tokens, max_rows=MAX_ROWS, seconds=seconds)
                told = {"precision": self.precision, "isolated": 1}
                yield pipeline, lambda: {**told, "processes_ended": child.ended, "truncated": child.truncated}
            return
        model = load_cached(**load)
        share = f", {self.gpu_share:.0%} of it" if self.gpu_share < 1 else ""
        where = f"{_device(model)}{share}, {self.precision}"
        known = learned.recall(self.cache_dir, self.pin.digest, where)
        guard = Watchdog(self.row_timeout) if self.row_timeout else nullcontext
        pipeline = Pipeline(model, self.spec, tokens=self.tokens, learned=known, guard=guard, seconds=seconds)
        first = pipeline.learned
        yield pipeline, lambda: {"precision": self.precision, "device": where, "batch": asdict(pipeline.learned)}
        if self.tokens is None and pipeline.learned != first:
            learned.remember(self.cache_dir, self.pin.digest, where, pipeline.learned)


def _open_streams() -> None:
    """What an earlier task's model has closed, so that it is no fault of this one's rows: a worker is used again."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None and getattr(stream, "closed", False):
            with suppress(OSError):
                setattr(sys, name, open(descriptor, "w", closefd=False, errors="backslashreplace"))  # noqa: SIM115


@contextmanager
def _told() -> Iterator[None]:
    """What only a new process can bear, as what it is to a driver."""
    try:
        yield
    except BaseException as error:
        if not ends_worker(error):
            raise
        raise WorkerEndedError(
            f"a worker cannot go on after {type(error).__name__}: {text(error)}",
            fix="the finished shards are staged; the executors' log says more",
        ) from error


def exact(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame off the wire with the nulls of its 64-bit integers, which crossed beside them, in their place."""
    masks = {name: name.removesuffix(schema.NULLS) for name in frame.columns if name.endswith(schema.NULLS)}
    restored = {
        name: pd.arrays.IntegerArray(frame[name].to_numpy("int64"), frame[mask].to_numpy(bool))
        for mask, name in masks.items()
    }
    return frame.assign(**restored).drop(columns=list(masks)) if masks else frame


class _Frame:
    """One frame off the wire. Rows with a null in their key are set apart: they name nothing, so have no score."""

    def __init__(self, frame: pd.DataFrame, keys: int) -> None:
        names = [f"k{i}" for i in range(keys)]
        named = frame[names].notna().all(axis=1).to_numpy()
        self.nameless = frame[~named].reset_index(drop=True) if not named.all() else frame.iloc[:0]
        self.frame = frame if named.all() else frame[named].reset_index(drop=True)
        self.keys = names

    def inputs(self, features: Iterable[Field]) -> pd.DataFrame:
        """The model's inputs by their own names; datetimes from microseconds."""
        return decode(self.frame, features)


def decode(frame: pd.DataFrame, features: Iterable[Field]) -> pd.DataFrame:
    columns = {field.name: _decoded(frame[f"f{i}"], field) for i, field in enumerate(features)}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame)))


def _decoded(values: pd.Series[Any], field: Field) -> Any:
    if field.type != "datetime":
        return values.array
    microseconds = values.fillna(0).to_numpy("int64").view("datetime64[us]")
    return np.where(values.isna(), np.datetime64("NaT"), microseconds)


class _Shard:
    """Turns results into staged rows, and counts them."""

    def __init__(self, scorer: Scorer, shard_id: int, attempt: str) -> None:
        self.scorer, self.shard_id, self.attempt = scorer, shard_id, attempt
        self.columns = [column.name for column in schema.staging([""] * scorer.keys, [""] * len(scorer.spec.outputs))]
        self.scored = self.dead = 0

    def rows(self, window: _Frame, result: WindowResult) -> Iterator[pd.DataFrame]:
        if len(result.positions):
            self.scored += len(result.positions)
            yield self._scored(window, result)
        if result.failures:
            self.dead += len(result.failures)
            yield self._dead(window.frame, window.keys, result.failures)
        if len(window.nameless):
            self.dead += len(window.nameless)
            null = [Failure(i, "key", "NullKey", "a key column is null", 0) for i in range(len(window.nameless))]
            yield self._dead(window.nameless, window.keys, null)

    def receipt(self, facts: dict[str, Any], *, began: float) -> pd.DataFrame:
        facts = {
            **facts,
            "began": round(began, 3),
            "ended": round(time.time(), 3),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        counts = {"rows_in": self.scored + self.dead, "rows_scored": self.scored, "rows_dead": self.dead}
        return self._frame(1, schema.RECEIPT, receipt=[json.dumps(facts)], **{k: [v] for k, v in counts.items()})

    def _scored(self, window: _Frame, result: WindowResult) -> pd.DataFrame:
        rows = window.frame if len(result.positions) == len(window.frame) else window.frame.iloc[result.positions]
        outputs = {f"p{i}": result.predictions[name].array for i, name in enumerate(result.predictions.columns)}
        keys = {name: rows[name].array for name in window.keys}
        return self._frame(len(rows), schema.SCORED, input_hash=rows["input_hash"].array, **keys, **outputs)

    def _dead(self, frame: pd.DataFrame, keys: list[str], failures: list[Failure]) -> pd.DataFrame:
        rows = frame.iloc[[failure.position for failure in failures]].reset_index(drop=True)
        told = {
            "phase": [failure.phase for failure in failures],
            "error_class": [failure.error_class for failure in failures],
            # a message quotes the value that it complains of
            "message": [schema.REDACTED if self.scorer.redact else _storable(failure.message) for failure in failures],
            "attempts": [failure.attempts for failure in failures],
        }
        inputs = [None] * len(rows) if self.scorer.redact else _as_json(decode(rows, self.scorer.features))
        kept = {name: rows[name].array for name in keys}
        return self._frame(len(rows), schema.DEAD, input_hash=rows["input_hash"].array, input=inputs, **kept, **told)

    def _frame(self, rows: int, kind: str, **columns: Any) -> pd.DataFrame:
        values = {
            "shard_id": self.shard_id,
            "attempt": self.attempt,
            "kind": kind,
            "scored_us": time.time_ns() // 1000,
            **columns,
        }
        absent = pd.arrays.ArrowExtensionArray(pa.nulls(rows))  # goes back as it is: of None's, each is looked at
        return pd.DataFrame({name: values.get(name, absent) for name in self.columns}, index=pd.RangeIndex(rows))


def _storable(text: str) -> str:
    """A text as UTF-8 holds it: a message may quote half a surrogate pair, and would take the whole shard down."""
    return text.encode(errors="replace").decode()


def _as_json(frame: pd.DataFrame) -> list[str]:
    return [json.dumps(_plain(row), ensure_ascii=False, allow_nan=False) for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    """A value as JSON has it: what is missing is null, bytes are hex, times ISO 8601, and all else is text."""
    if isinstance(value, dict):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(member) for member in value]
    if is_null(value):
        return None
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return f"{value.isoformat()}+00:00"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes | bytearray):
        return value.hex()
    finite = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if finite else str(value)


def _device(model: StagedModel) -> str:
    """The device's make for a model that has a place; any other runs where it was loaded, and torch may be absent."""
    placed = getattr(model, "device", None)
    return device.label(str(placed)) if placed else "cpu"


def _claim(gpu_share: float, cache_dir: str) -> None:
    """The task's GPU and cores for this process, before anything starts CUDA."""
    from pyspark import TaskContext

    context = TaskContext.get()
    gpus = context.resources().get("gpu") if context else None
    cores = context.cpus() if context else os.cpu_count() or 1
    device.claim(gpus.addresses[0] if gpus else None, cores, notes=cache_dir if gpu_share >= 1 else None)
    if gpus and gpu_share < 1:
        device.share_memory(gpu_share)


def _attempt() -> tuple[int, str]:
    """How often this task was tried before, and a name of this execution of it: no two are alike, whatever the
    application or the driver."""
    from pyspark import TaskContext

    context = TaskContext.get()
    number = f"{context.stageId()}.{context.taskAttemptId()}" if context else "local"
    return context.attemptNumber() if context else 0, f"{number}-{uuid.uuid4().hex[:12]}"
