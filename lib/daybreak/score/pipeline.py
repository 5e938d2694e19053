"""The engine: windows of rows in, predictions and failures out, with the device kept busy.

    prefetch thread   pull a window, hold it against the signature, size its rows
    pool threads      preprocess the next batches
    main thread       forward, and nothing else while all goes well
    waiting thread    wait for a device that goes on when forward has returned
    trailing thread   postprocess, conform to the signature's outputs

A batch that raises is halved, on the main thread, down to the rows that fail alone; their neighbours are
scored. One that runs out of memory is cut again under a smaller budget, and takes its turn.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from daybreak.errors import DaybreakError, text
from daybreak.score.batches import Budget, plan_batches
from daybreak.score.columns import own, take
from daybreak.score.inputs import admit
from daybreak.score.learned import Learned
from daybreak.score.model import StagedModel
from daybreak.score.outputs import Conformed, conform
from daybreak.score.signature import ModelSpec

__all__ = ["Failure", "OtherProcessError", "Pipeline", "Stats", "WindowResult"]

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

FIRST_TOKENS = 1_024  # of a batch, before anything is learned
FIRST_TOKENS_CUDA = 16_384
_WINDOW = 2**31  # rows; more than any window has
_MESSAGE = 2_000
_AHEAD = 4
_BEHIND = 2
_OPEN = 4  # windows with rows under way: with them, what is ahead is bounded in bytes
_SHRUNK = "out of memory on a batch of %d rows and %d tokens; the budget is %d tokens now"


@dataclass(frozen=True)
class Failure:
    """One row that has no prediction: its place in the window, the phase (input, size, preprocess, forward,
    postprocess, worker) and error that refused it, and how many times it was tried."""

    position: int
    phase: str
    error_class: str
    message: str
    attempts: int


@dataclass(frozen=True)
class WindowResult:
    """A window's rows, each exactly once: ``predictions`` (m rows in input order, the outputs' columns) with
    their ``positions`` (int64[m], increasing), and ``failures`` by position."""

    predictions: pd.DataFrame
    positions: Array
    failures: list[Failure]


@dataclass
class Stats:
    """What a pipeline did, in rows, tokens and seconds. Attempts count each time.

    ``read`` is the main thread's wait for input; ``forward`` the time in which the device had a batch; ``size``,
    ``preprocess`` and ``postprocess`` are thread seconds, which overlap with it; ``wall`` runs from the first
    window asked for to the last result taken.
    """

    rows_forward: int = 0
    batches: int = 0
    tokens_useful: int = 0
    tokens_computed: int = 0
    truncated: int = 0
    read: float = 0.0
    size: float = 0.0
    preprocess: float = 0.0
    forward: float = 0.0
    postprocess: float = 0.0
    wall: float = 0.0

    @property
    def device_busy(self) -> float:
        """The part of the wall time spent in forward, 0 to 1."""
        return self.forward / self.wall if self.wall else 0.0

    @property
    def padding(self) -> float:
        """The part of the computed tokens that was padding, 0 to 1."""
        return 1 - self.tokens_useful / self.tokens_computed if self.tokens_computed else 0.0

    def as_dict(self) -> dict[str, float]:
        return {**vars(self), "device_busy": self.device_busy, "padding": self.padding}


# ---------------------------------------------------------------------------------------------- work in hand


@dataclass(frozen=True)
class _Part:
    """Rows of a window (int64) whose sizes were told together, and what ``encode`` keeps for ``collate``."""

    rows: Array
    sizes: Array
    encoded: Any = None


@dataclass
class _Window:
    """A window under way. Its rows are those the signature admitted; ``positions`` are their places. A batch is
    collated from one ``encoded``: ``parts`` tells the rows of each, as slices, where the model encodes."""

    frame: pd.DataFrame
    positions: Array
    failures: list[Failure]
    sizes: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    parts: list[tuple[slice, Any]] = field(default_factory=list)
    scored: list[tuple[Array, pd.DataFrame]] = field(default_factory=list)
    left: int = 0

    def score(self, rows: Array, done: Conformed, attempts: int) -> None:
        self.left -= len(rows)
        self.scored.append((self.positions[rows[done.positions]], done.frame))
        for i, reason in done.refused.items():
            self._refuse(rows[i], "postprocess", reason.error_class, reason.message, attempts)

    def fail(self, row: int, caught: _Caught, attempts: int) -> None:
        self.left -= 1
        self.refuse(row, caught, attempts)

    def refuse(self, row: int, caught: _Caught, attempts: int) -> None:
        self._refuse(row, caught.phase, caught.error_class, caught.message, attempts)

    def _refuse(self, row: int, phase: str, error_class: str, message: str, attempts: int) -> None:
        position = int(self.positions[row])
        self.failures.append(Failure(position, phase, error_class, message[:_MESSAGE], attempts))

    def result(self, empty: pd.DataFrame) -> WindowResult:
        parts = [part for part in self.scored if len(part[0])]
        failures = sorted(self.failures, key=lambda failure: failure.position)
        if not parts:
            return WindowResult(empty, np.empty(0, dtype=np.int64), failures)
        positions = np.concatenate([rows for rows, _ in parts])
        order = np.argsort(positions, kind="stable")
        frame = pd.concat([frame for _, frame in parts], ignore_index=True) if len(parts) > 1 else parts[0][1]
        return WindowResult(take(frame, order), positions[order], failures)


@dataclass
class _Job:
    """A batch: rows of a window (int64), which attempt at them this is, the device's ``seconds`` for it, those of the
    ``slowest`` of its stages, and after an attempt without enough memory the budget as it was ``before``."""

    window: _Window
    rows: Array
    attempt: int = 1
    before: Budget | None = None
    seconds: float = 0.0
    slowest: float = 0.0

    @cached_property
    def longest(self) -> int:
        return max(1, int(self.window.sizes[self.rows].max()))

    @property
    def cost(self) -> int:
        return len(self.rows) * self.longest

    @property
    def halves(self) -> tuple[_Job, _Job]:
        middle = len(self.rows) // 2
        parts = (self.rows[:middle], self.rows[middle:])
        first, second = (_Job(self.window, rows, self.attempt + 1, self.before) for rows in parts)
        return first, second

    @property
    def singles(self) -> list[_Job]:
        return [_Job(self.window, self.rows[i : i + 1], self.attempt + 1) for i in range(len(self.rows))]


class OtherProcessError(Exception):
    """What became of a batch in another process, which knows its ``phase``. One that cost the process is dear, so
    its batch is tried row by row (``singly``) and not halved."""

    phase = "worker"
    singly = False


@dataclass(frozen=True)
class _Caught:
    """An error reduced to text, so that nothing holds on to the failed batch's memory."""

    phase: str
    error_class: str
    message: str
    out_of_memory: bool
    singly: bool

    @classmethod
    def of(cls, phase: str, error: BaseException) -> _Caught:
        told = (type(error).__name__, text(error, most=_MESSAGE), is_out_of_memory(error))
        if isinstance(error, OtherProcessError):  # a ``phase`` of any other error is the model's own affair
            return cls(error.phase, *told, error.singly)
        return cls(phase, *told, singly=False)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_out_of_memory, error.exceptions))
    name = type(error).__name__
    if "OutOfMemory" in name or "MemoryError" in name:
        return True
    said = text(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in said or "can't allocate memory" in said)


def is_device_error(error: BaseException) -> bool:
    """What leaves the process unusable, as a device-side assertion does."""
    return "CUDA error" in text(error) and not is_out_of_memory(error)


def ends_worker(error: BaseException) -> bool:
    """What only a new process can bear: a broken device, an interrupt, which in a worker only a model raises."""
    return isinstance(error, KeyboardInterrupt) or is_device_error(error)


def _is_fatal(error: BaseException) -> bool:
    """What no row is to blame for, as a missing module, or what ends the worker."""
    return isinstance(error, ImportError | DaybreakError) or ends_worker(error)


def _caught(phase: str, step: Callable[..., Any], *args: Any) -> Any:
    """What ``step`` returns, or a ``_Caught``; fatal errors propagate. Whatever else a model raises is its rows'
    failure: sys.exit, a panic of Rust or a cancelled task of asyncio end no worker."""
    try:
        return step(*args)
    except BaseException as error:
        if _is_fatal(error):
            raise
        return _Caught.of(phase, error)


@dataclass(frozen=True)
class _Launched:
    """What forward returned before the device was done, and when it was called."""

    output: Any
    at: float


# ---------------------------------------------------------------------------------------------- prefetch


_END = object()


class _Feed:
    """Windows prepared by a thread, at most one waiting and one in hand; the thread ends with the feed."""

    def __init__(self, windows: Iterable[pd.DataFrame], prepare: Callable[[pd.DataFrame], _Window]) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._fill, args=(windows, prepare), name="daybreak-prefetch", daemon=True
        )
        self._last: Any = None

    def __enter__(self) -> _Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _fill(self, windows: Iterable[pd.DataFrame], prepare: Callable[[pd.DataFrame], _Window]) -> None:
        last: Any = _END
        try:
            for window in windows:
                if self._stop.is_set() or not self._put(prepare(window)):
                    return
        except BaseException as error:  # carried to the main thread, which raises it
            last = error
        self._put(last)

    def _put(self, item: Any) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def get(self, *, wait: bool) -> _Window | None:
        """The next window; None if there is none yet, or, after waiting, none any more.

        What the source raised is raised to a caller that waits, which has finished the windows before it.
        """
        if self._last is None:
            try:
                item = self._queue.get(block=wait)
            except queue.Empty:
                return None
            if isinstance(item, _Window):
                return item
            self._last = item
        if wait and isinstance(self._last, BaseException):
            raise self._last
        return None


# ---------------------------------------------------------------------------------------------- the pipeline


class Pipeline:
    """Scores windows with one model, in this process, on the calling thread and a few helpers.

    Args:
        model: the staged model, as ``daybreak.score.model.load`` returns it.
        spec: its signature.
        tokens: budget of a batch, padding included; None learns it, beginning with what is ``learned`` so far.
        max_rows: the most rows of a batch.
        seconds: the most that a stage of a batch should take, sizing too; None for as long as it likes. The first
            batch is one row then, and the next ones grow as far as their pace allows.
        threads: threads that preprocess.
        clock: seconds, for the statistics.
        guard: entered around each stage of the model, for who watches over stages that hang.
    """

    def __init__(
        self,
        model: StagedModel,
        spec: ModelSpec,
        *,
        tokens: int | None = None,
        learned: Learned | None = None,
        max_rows: int = 4096,
        seconds: float | None = None,
        threads: int = 1,
        clock: Callable[[], float] = time.perf_counter,
        guard: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.stats = Stats()
        self._guard = guard
        self._model = model
        self._spec = spec
        self._max_rows = max_rows
        self._threads = threads
        self._clock = clock
        self._lock = threading.Lock()
        self._budget = _budget(model, tokens, learned, max_rows, seconds)
        self._rows = Budget(max_rows, seconds=seconds, first=1)  # a row may cost what its tokens do not tell
        self._again: list[_Job] = []
        self._device_free = -math.inf
        self._empty = conform(spec, pd.DataFrame(), 0).frame
        self._encodes = hasattr(model, "encode") and hasattr(model, "collate")
        self._by_rows = bool(getattr(model, "by_rows", False))
        # rows whose size is asked for at a time: of a model with a limit, as many as its pace allows
        self._sizing = Budget(getattr(model, "max_rows", _WINDOW), seconds=seconds, first=1)

    def run(self, windows: Iterable[pd.DataFrame]) -> Iterator[WindowResult]:
        """One result for each window, in order. Every row is in it exactly once, scored or failed.

        ``windows`` is read by another thread, one or two windows ahead. What it raises is raised here, as are
        errors that no row is to blame for (a missing module, a broken device). Closing the generator ends the
        threads.
        """
        started = self._clock()
        with (
            _Feed(windows, self._prepare) as feed,
            _Pool(self._threads, "daybreak-preprocess") as pool,
            _Pool(1, "daybreak-wait") as waiting,
            _Pool(1, "daybreak-postprocess") as trail,
        ):
            for result in _Run(self, feed, pool, waiting, trail):
                self.stats.wall = self._clock() - started
                yield result
        self.stats.wall = self._clock() - started

    @property
    def learned(self) -> Learned:
        """The budget of a batch by now, to begin the next pipeline with."""
        return Learned(self._budget.limit, not self._budget.learning, self._budget.most)

    # -- stages, each timed; called by _Run and _prepare

    def _timed(self, stage: str, step: Callable[..., Any], *args: Any) -> Any:
        started = self._clock()
        try:
            with self._guard() if stage != "read" else nullcontext():
                return step(*args)
        finally:
            with self._lock:
                setattr(self.stats, stage, getattr(self.stats, stage) + self._clock() - started)

    def _prepare(self, frame: pd.DataFrame) -> _Window:
        admitted = admit(self._spec, frame)
        failures = [
            Failure(position, "input", reason.error_class, reason.message, 0)
            for position, reason in admitted.refused.items()
        ]
        window = _Window(admitted.frame, admitted.positions, failures)
        if len(window.frame):
            self._measure(window)
        window.left = len(window.frame)
        return window

    def _measure(self, window: _Window) -> None:
        """Fill in the sizes; rows whose size cannot be told alone become failures."""
        parts: list[_Part] = []
        start, end = 0, len(window.frame)
        while start < end:
            rows = np.arange(start, min(end, start + self._sizing.allowed))
            parts += self._together(window, self._sized(window, rows, 1))
            start += len(rows)
        good = np.concatenate([np.empty(0, dtype=np.int64), *(part.rows for part in parts)])
        if len(good) < end:
            window.frame, window.positions = take(window.frame, good), window.positions[good]
        window.sizes = np.concatenate([np.empty(0, dtype=np.int64), *(part.sizes for part in parts)])
        ends = np.cumsum([len(part.rows) for part in parts]).tolist()
        window.parts = [(slice(e - len(p.rows), e), p.encoded) for e, p in zip(ends, parts, strict=True)]
        self.stats.truncated += sum(int(getattr(part.encoded, "truncated", 0)) for part in parts)

    def _sized(self, window: _Window, rows: Array, attempt: int) -> list[_Part]:
        """The rows whose size can be told, found by halving, or one by one where a failure costs a process."""
        if not len(rows):
            return []
        sized = _caught("size", self._timed, "size", self._sizes, window, rows)
        if not isinstance(sized, _Caught):
            return [sized]
        if len(rows) == 1:
            window.refuse(int(rows[0]), sized, attempt)
            return []
        middle = len(rows) // 2
        parts = np.split(rows, len(rows)) if sized.singly else [rows[:middle], rows[middle:]]
        return [found for part in parts for found in self._sized(window, part, attempt + 1)]

    def _together(self, window: _Window, parts: list[_Part]) -> list[_Part]:
        """As one part again, where batches are cut from what was encoded together, and small ones are dear."""
        if len(parts) < 2 or not self._encodes:
            return parts
        again = _caught("size", self._timed, "size", self._sizes, window, np.concatenate([part.rows for part in parts]))
        return parts if isinstance(again, _Caught) else [again]

    def _sizes(self, window: _Window, rows: Array) -> _Part:
        frame = window.frame if len(rows) == len(window.frame) else take(window.frame, rows)
        started = self._clock()
        encoded: Any = self._model.encode(frame) if self._encodes else None  # type: ignore[attr-defined]
        told = encoded.sizes if self._encodes else self._model.size(frame)
        self._sizing.paced(len(rows), self._clock() - started)
        sizes = np.asarray(told, dtype=np.int64)
        if sizes.shape != (len(rows),):
            raise ValueError(f"size returned the shape {sizes.shape} for {len(rows)} rows")
        return _Part(rows, sizes, encoded)

    def _plan(self, window: _Window) -> list[_Job]:
        whole = [part for part, _ in window.parts] if self._encodes else [slice(0, len(window.sizes))]
        return [
            _Job(window, rows + part.start)
            for part in whole
            for rows in plan_batches(window.sizes[part], tokens=self._budget.offers(), max_rows=self._max_rows)
        ]

    def _recut(self, job: _Job) -> list[_Job]:
        """The rows of a batch that was cut under a larger budget than there is now: a batch for now, and the rest."""
        sizes = job.window.sizes[job.rows]
        limit = self._budget.limit
        budgets = itertools.chain((min(limit, self._budget.allowed),), itertools.repeat(limit))
        parts = plan_batches(sizes, tokens=budgets, max_rows=self._max_rows)
        if len(parts[0]) > self._rows.allowed:
            parts[:1] = np.split(parts[0], [self._rows.allowed])
        return [_Job(job.window, job.rows[part], job.attempt, job.before) for part in parts]

    def _preprocess(self, job: _Job) -> Any:
        return _caught("preprocess", self._staged, job, "preprocess", self._prepared)

    def _staged(self, job: _Job, stage: str, step: Callable[..., Any], *args: Any) -> Any:
        started = self._clock()
        done = self._timed(stage, step, job, *args)
        if not self._by_rows:  # else all is in forward, and the rest waits at most for the interpreter's lock
            job.slowest = max(job.slowest, self._clock() - started)
        return done

    def _prepared(self, job: _Job) -> Any:
        if not self._encodes:
            return self._model.preprocess(own(job.window.frame, job.rows))
        part, encoded = next(one for one in job.window.parts if one[0].start <= job.rows[0] < one[0].stop)
        return self._model.collate(encoded, job.rows - part.start)  # type: ignore[attr-defined]

    def _forward(self, job: _Job, prepared: Any) -> Any:
        self.stats.rows_forward += len(job.rows)
        self.stats.batches += 1
        self.stats.tokens_useful += int(np.maximum(job.window.sizes[job.rows], 1).sum())
        self.stats.tokens_computed += job.cost
        started = self._clock()
        output = _caught("forward", self._guarded, self._model.forward, prepared)
        if hasattr(output, "wait"):
            return _Launched(output, started)
        self._book(job, started, output)
        return output

    def _guarded(self, step: Callable[..., Any], *args: Any) -> Any:
        with self._guard():
            return step(*args)

    def _book(self, job: _Job, started: float, output: Any) -> None:
        """The device has had this batch from ``started`` until now, but for the time in which it had an earlier one."""
        now = self._clock()
        with self._lock:
            job.seconds = now - max(started, self._device_free)
            self._device_free = now
            self.stats.forward += job.seconds
        job.slowest = max(job.slowest, job.seconds)
        if not isinstance(output, _Caught):  # how soon a batch fails says nothing
            self._paced(job, so_far=not self._by_rows)

    def _paced(self, job: _Job, *, so_far: bool = False) -> None:
        self._budget.paced(job.cost, job.slowest, so_far=so_far)
        self._rows.paced(len(job.rows), job.slowest, so_far=so_far)

    def _finish(self, job: _Job, launched: _Launched) -> Any:
        """The output, once the device is done: the moment is told by a thread that does nothing else."""
        output = _caught("forward", self._guarded, launched.output.wait)
        self._book(job, launched.at, output)
        return output

    def _postprocess(self, job: _Job, output: Any) -> Any:
        if isinstance(output, Future):
            output = output.result()
        if isinstance(output, _Caught):
            return output
        return _caught("postprocess", self._staged, job, "postprocess", self._conformed, output)

    def _conformed(self, job: _Job, output: Any) -> Conformed:
        return conform(self._spec, self._model.postprocess(output), len(job.rows))

    # -- what becomes of a batch

    def _fits(self, job: _Job) -> bool:
        """Whether the budget, as it is now, lets a batch through. One row always is."""
        return len(job.rows) == 1 or (job.cost <= self._budget.allowed and len(job.rows) <= self._rows.allowed)

    def _attempt(self, job: _Job, trail: ThreadPoolExecutor) -> None:
        """One batch from end to end, for the rare case."""
        if not self._fits(job):
            for part in self._recut(job):
                self._attempt(part, trail)
            return
        prepared = self._preprocess(job)
        output = prepared if isinstance(prepared, _Caught) else self._forward(job, prepared)
        del prepared
        if isinstance(output, _Launched):
            output = self._finish(job, output)
        done = output if isinstance(output, _Caught) else trail.submit(self._postprocess, job, output).result()
        del output
        self._settle(job, done, trail)

    def _settle(self, job: _Job, done: Conformed | _Caught, trail: ThreadPoolExecutor) -> None:
        """Book a batch that went through; take apart one that failed."""
        if not isinstance(done, _Caught):
            self._budget.fitted(job.cost)
            self._budget.timed(job.cost, job.seconds)
            self._paced(job)
            job.window.score(job.rows, done, job.attempt)
        elif done.out_of_memory:
            release_memory()
            self._shrink(job, done)
        elif len(job.rows) == 1:
            job.window.fail(int(job.rows[0]), done, job.attempt)
        else:
            for part in job.singles if done.singly else job.halves:
                self._attempt(part, trail)

    def _shrink(self, job: _Job, done: _Caught) -> None:
        """Have the rows of a batch that was too large cut again. A row that fails alone says nothing of the budget,
        which is then what it was before that row's first batch."""
        if len(job.rows) == 1:
            job.window.fail(int(job.rows[0]), done, job.attempt)
            self._budget = job.before.copy() if job.before else self._budget
            return
        before = job.before or self._budget.copy()
        self._budget.failed(job.cost)
        with contextlib.suppress(ValueError):  # a model may have closed stderr
            logger.warning(_SHRUNK, len(job.rows), job.cost, self._budget.limit)
        self._again += self._recut(_Job(job.window, job.rows, job.attempt + 1, before))


def _budget(model: Any, tokens: int | None, learned: Learned | None, max_rows: int, seconds: float | None) -> Budget:
    by_rows = bool(getattr(model, "by_rows", False))
    if tokens or by_rows:
        return Budget(tokens or max_rows, seconds=seconds, first=1)
    if learned:
        return Budget(learned.tokens, learn=not learned.settled, most=learned.most, seconds=seconds, first=1)
    on_cuda = str(getattr(model, "device", "cpu")).startswith("cuda")
    return Budget(FIRST_TOKENS_CUDA if on_cuda else FIRST_TOKENS, learn=True, seconds=seconds, first=1)


def release_memory() -> None:
    """Give a CUDA device's cached blocks back, where torch has one in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


class _Pool:
    """A thread pool that drops what is queued when it is left."""

    def __init__(self, threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def __enter__(self) -> ThreadPoolExecutor:
        return self._executor

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


class _Run:
    """One pass over a feed: batches ahead being preprocessed, batches behind being postprocessed."""

    def __init__(self, pipeline: Pipeline, feed: _Feed, *pools: ThreadPoolExecutor) -> None:
        self._pipeline = pipeline
        self._feed = feed
        self._pool, self._waiting, self._trail = pools
        self._open: deque[_Window] = deque()
        self._jobs: deque[_Job] = deque()
        self._ahead: deque[tuple[_Job, Future[Any]]] = deque()
        self._behind: deque[tuple[_Job, Future[Any]]] = deque()

    def __iter__(self) -> Iterator[WindowResult]:
        while self._fill():
            if self._ahead:
                self._step()
            self._collect(all_of_it=not self._ahead and not self._jobs)
            while self._open and not self._open[0].left:
                yield self._open.popleft().result(self._pipeline._empty)

    def _fill(self) -> bool:
        """Keep batches ahead; wait for input only when nothing else is left to do. False at the end."""
        while len(self._ahead) < _AHEAD + self._pipeline._threads:
            if not self._jobs and not self._next_window():
                break
            while self._jobs and len(self._ahead) < _AHEAD + self._pipeline._threads:
                self._submit(self._next_job())
        return bool(self._open)

    def _next_window(self) -> bool:
        if len(self._open) >= _OPEN:
            return False
        if self._open:
            window = self._feed.get(wait=False)
        else:
            window = self._pipeline._timed("read", lambda: self._feed.get(wait=True))
        if window is None:
            return False
        self._open.append(window)
        self._jobs.extend(self._pipeline._plan(window))
        return True

    def _next_job(self) -> _Job:
        """The next batch, no larger than the budget is now: to preprocess takes its time too."""
        job = self._jobs.popleft()
        if self._pipeline._fits(job):
            return job
        first, *rest = self._pipeline._recut(job)
        self._jobs.extendleft(reversed(rest))
        return first

    def _submit(self, job: _Job, *, first: bool = False) -> None:
        entry = (job, self._pool.submit(self._pipeline._preprocess, job))
        (self._ahead.appendleft if first else self._ahead.append)(entry)

    def _step(self) -> None:
        """Forward one batch; one that was cut before the budget shrank is cut again first."""
        job, future = self._ahead.popleft()
        if not self._pipeline._fits(job):
            future.cancel()
            self._first(self._pipeline._recut(job))
            return
        prepared = future.result()
        del future
        output = prepared if isinstance(prepared, _Caught) else self._pipeline._forward(job, prepared)
        del prepared
        if isinstance(output, _Caught):
            self._settle(job, output)
            return
        if isinstance(output, _Launched):
            output = self._waiting.submit(self._pipeline._finish, job, output)
        self._behind.append((job, self._trail.submit(self._pipeline._postprocess, job, output)))

    def _settle(self, job: _Job, done: Conformed | _Caught) -> None:
        self._pipeline._settle(job, done, self._trail)
        again, self._pipeline._again = self._pipeline._again, []
        self._first(again)

    def _first(self, jobs: list[_Job]) -> None:
        for job in reversed(jobs):
            self._submit(job, first=True)

    def _collect(self, *, all_of_it: bool) -> None:
        while self._behind and (all_of_it or len(self._behind) > _BEHIND or self._behind[0][1].done()):
            job, future = self._behind.popleft()
            self._settle(job, future.result())
