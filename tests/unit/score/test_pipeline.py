from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.errors import ModelLoadError
from daybreak.score.learned import Learned
from daybreak.score.pipeline import OtherProcessError, Pipeline, WindowResult
from daybreak.score.signature import Field, ModelSpec

SPEC = ModelSpec((Field("text", "string"),), (Field("length", "long"),))


class Lengths:
    """A staged model: the length of a text. A text tells the stage that is to fail on it, as in ``!forward``."""

    def __init__(self, memory: int | None = None) -> None:
        self.memory = memory  # tokens that a padded batch may have
        self.batches: list[tuple[int, int]] = []
        self.threads: dict[str, set[str]] = {}

    def _enter(self, stage: str, texts: Iterable[str]) -> None:
        self.threads.setdefault(stage, set()).add(threading.current_thread().name)
        for text in texts:
            if text.startswith(f"!{stage}"):
                raise ValueError(f"poisoned: {text}")

    def size(self, rows: pd.DataFrame) -> Any:
        self._enter("size", rows["text"])
        return rows["text"].str.len().to_numpy(dtype=np.int64)

    def preprocess(self, rows: pd.DataFrame) -> list[str]:
        self._enter("preprocess", rows["text"])
        return rows["text"].to_list()

    def forward(self, batch: list[str]) -> list[str]:
        self._enter("forward", batch)
        cost = len(batch) * max(len(text) for text in batch)
        if self.memory is not None and cost > self.memory:
            raise MemoryError(f"{cost} tokens")
        self.batches.append((len(batch), cost))
        return batch

    def postprocess(self, output: list[str]) -> pd.DataFrame:
        self._enter("postprocess", output)
        return pd.DataFrame({"length": [len(text) for text in output]})


def windows(texts: list[str | None], rows: int) -> Iterator[pd.DataFrame]:
    for start in range(0, len(texts), rows):
        yield pd.DataFrame({"text": pd.Series(texts[start : start + rows], dtype=object)})


def score(model: Any, texts: list[str | None], *, rows: int = 1000, **options: Any) -> list[WindowResult]:
    return list(Pipeline(model, SPEC, **options).run(windows(texts, rows)))


def flat(results: list[WindowResult], rows: int) -> tuple[dict[int, int], set[tuple[int, str, str, str]]]:
    """The predictions and failures of a run by their place in the whole input."""
    scored: dict[int, int] = {}
    failed = set()
    for i, result in enumerate(results):
        places = (result.positions + i * rows).tolist()
        scored.update(zip(places, result.predictions["length"].tolist(), strict=True))
        failed |= {(f.position + i * rows, f.phase, f.error_class, f.message) for f in result.failures}
    return scored, failed


def test_predictions_come_back_in_input_order_however_the_batches_were_sorted() -> None:
    texts: list[str | None] = ["x" * ((7 * i) % 23 + 1) for i in range(100)]
    model = Lengths()
    results = score(model, texts, rows=30, tokens=60)
    assert [len(result.predictions) for result in results] == [30, 30, 30, 10]
    got = pd.concat([result.predictions for result in results])["length"].tolist()
    assert got == [len(text or "") for text in texts]
    assert all(result.positions.tolist() == list(range(len(result.predictions))) for result in results)
    assert all(cost <= 60 for _, cost in model.batches)


def test_only_forward_runs_on_the_main_thread() -> None:
    model = Lengths()
    score(model, ["ab", "c"] * 50, rows=10)
    main = {threading.main_thread().name}
    assert model.threads["forward"] == main
    for stage in ("size", "preprocess", "postprocess"):
        assert not model.threads[stage] & main


@pytest.mark.parametrize("phase", ["size", "preprocess", "forward", "postprocess"])
def test_a_row_that_fails_alone_is_told_and_its_neighbours_are_scored(phase: str) -> None:
    texts: list[str | None] = ["a", "bb", f"!{phase} it", "cccc", "ddddd"]
    (result,) = score(Lengths(), texts)
    assert result.positions.tolist() == [0, 1, 3, 4]
    assert result.predictions["length"].tolist() == [1, 2, 4, 5]
    (failure,) = result.failures
    assert (failure.position, failure.phase, failure.error_class) == (2, phase, "ValueError")
    assert failure.message == f"poisoned: !{phase} it"
    assert failure.attempts >= 2


class MuteError(Exception):
    def __str__(self) -> str:
        raise TypeError("no text")


class OwnPhaseError(Exception):
    phase = 3
    singly = "yes"


@pytest.mark.parametrize(
    "error",
    [
        MuteError(),
        OwnPhaseError("x"),
        StopIteration(1),
        StopAsyncIteration(),
        SystemExit(2),
        GeneratorExit(),
        asyncio.CancelledError("x"),
        type("PanicException", (BaseException,), {})("index out of bounds"),
        ExceptionGroup("two", [ValueError("a"), MuteError()]),
        ValueError("x" * 10_000_000),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("stage", ["size", "preprocess", "forward", "postprocess"])
def test_whatever_a_stage_raises_is_the_failure_of_its_row(error: BaseException, stage: str) -> None:
    class Raising(Lengths):
        def _enter(self, at: str, texts: Iterable[str]) -> None:
            if at == stage and "bad" in list(texts):
                raise error

    (result,) = score(Raising(), ["a", "bad", "cc"])
    assert result.predictions["length"].tolist() == [1, 2]
    (failure,) = result.failures
    assert (failure.position, failure.phase, failure.error_class) == (1, stage, type(error).__name__)
    assert 0 < len(failure.message) <= 2_000


def test_a_null_never_reaches_the_model() -> None:
    (result,) = score(Lengths(), ["a", None, ""])
    assert result.positions.tolist() == [0, 2]
    assert [(f.position, f.phase, f.error_class) for f in result.failures] == [(1, "input", "NullInput")]


def test_windows_without_a_row_to_score_have_their_result_too() -> None:
    results = score(Lengths(), [None, None, "a"], rows=2)
    assert [len(result.failures) for result in results] == [2, 0]
    assert list(results[0].predictions.columns) == ["length"]
    assert list(Pipeline(Lengths(), SPEC).run([])) == []
    (empty,) = Pipeline(Lengths(), SPEC).run([pd.DataFrame({"text": pd.Series([], dtype=object)})])
    assert (len(empty.predictions), empty.failures) == (0, [])


def test_messages_are_bounded() -> None:
    (result,) = score(Lengths(), ["!forward" + "x" * 10_000])
    assert len(result.failures[0].message) == 2_000


TEXTS = st.lists(
    st.sampled_from(["", "a", "bb" * 9, "c" * 60, None, "!size", "!preprocess", "!forward", "!postprocess it"]),
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.integers(1, 15), st.integers(1, 200), st.integers(1, 9))
def test_the_failures_are_the_same_for_any_cut(texts: list[str | None], rows: int, tokens: int, max_rows: int) -> None:
    cut = flat(score(Lengths(), texts, rows=rows, tokens=tokens, max_rows=max_rows), rows)
    assert cut == flat(score(Lengths(), texts), 1000)
    scored, failed = cut
    assert len(scored) + len(failed) == len(texts)


def test_case_14_one_text_that_exhausts_the_device_fails_alone_and_the_budget_recovers() -> None:
    short = ["x" * 10] * 31
    model = Lengths(memory=5_000)
    pipeline = Pipeline(model, SPEC, tokens=10**9)  # far too large a budget: the long text drags all down
    texts: list[str | None] = [*short, "y" * 100_000]
    first, second = pipeline.run(windows([*texts, *short, "z"], 32))
    assert len(first.predictions) == 31
    assert [(f.position, f.error_class) for f in first.failures] == [(31, "MemoryError")]
    assert len(second.predictions) == 32
    assert model.batches[-1][0] >= 31  # the next batch is whole again


def test_case_14_a_row_that_always_exhausts_memory_does_not_make_all_later_batches_small() -> None:
    class Poisoned(Lengths):
        def forward(self, batch: list[str]) -> list[str]:
            if "!oom" in batch:
                raise MemoryError("!oom")
            return super().forward(batch)

    model = Poisoned()
    texts: list[str | None] = ["!oom", *["good"] * 639]
    results = list(Pipeline(model, SPEC, tokens=512).run(windows(texts, 64)))
    assert [len(result.predictions) for result in results] == [63, *[64] * 9]
    assert model.batches[-1][0] == 64  # the first ones are cut while the row's own batches are still being halved


def test_case_14_the_budget_stays_under_the_cost_that_failed() -> None:
    model = Lengths(memory=1_000)
    texts: list[str | None] = ["x" * 10] * 4_000
    pipeline = Pipeline(model, SPEC, tokens=1_500)
    results = list(pipeline.run(windows(texts, 500)))
    assert sum(len(result.predictions) for result in results) == 4_000
    costs = [cost for _, cost in model.batches]
    assert max(costs) > 900  # it came back up
    failed_calls = pipeline.stats.batches - len(model.batches)
    assert failed_calls < 12  # and did not go on trying what cannot fit


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("tokens", [40_000, None])
def test_14_memory_that_runs_out_at_random_above_a_hidden_limit(seed: int, tokens: int | None) -> None:
    """All rows are scored, nothing is tried at a size known to fail, and the batches come back up."""
    random, failed, in_vain = np.random.default_rng(seed), [10**9], list[int]()

    class Fickle(Lengths):
        def forward(self, batch: list[str]) -> list[str]:
            cost = len(batch) * max(len(text) for text in batch)
            if cost >= min(failed):
                in_vain.append(cost)
            if cost > 1_500 and random.random() < 0.5:
                failed.append(cost)
                raise MemoryError(f"{cost} tokens")
            return super().forward(batch)

    model = Fickle()
    texts: list[str | None] = ["x" * int(n) for n in random.integers(1, 100, 4_000)]
    scored, dead = flat(score(model, texts, tokens=tokens), 1000)
    assert scored == {i: len(text or "") for i, text in enumerate(texts)}
    assert not dead
    assert in_vain == []
    assert len(failed) < 20
    assert max(cost for _, cost in model.batches[-40:]) > 1_000


@pytest.mark.parametrize("message", ["CUDA out of memory. Tried", "DefaultCPUAllocator: can't allocate memory"])
def test_runtime_errors_of_the_allocators_count_as_out_of_memory(message: str) -> None:
    failed: list[int] = []

    class Full(Lengths):
        def forward(self, batch: list[str]) -> list[str]:
            if len(batch) > 4:
                failed.append(len(batch))
                raise RuntimeError(message)
            return super().forward(batch)

    pipeline = Pipeline(Full(), SPEC, tokens=64)
    (result,) = pipeline.run(windows(["x"] * 64, 64))
    assert len(result.predictions) == 64
    assert failed[:4] == [64, 32, 16, 8]
    assert pipeline._budget.ceiling == min(failed)  # not 8 if it has tried to come back up by then


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'xgboost'", name="xgboost"),
        ModelLoadError("gone"),
        RuntimeError("CUDA error: device-side assert triggered"),
        KeyboardInterrupt(),
    ],
)
@pytest.mark.parametrize("stage", ["size", "preprocess", "forward", "postprocess"])
def test_what_no_row_is_to_blame_for_is_raised(error: BaseException, stage: str) -> None:
    def broken(_: Any) -> Any:
        raise error

    model = Lengths()
    setattr(model, stage, broken)
    with pytest.raises(type(error)):
        score(model, ["a", "b"])
    assert not _helpers()


def test_an_error_of_the_source_is_raised_after_the_windows_before_it() -> None:
    ended = threading.Event()

    class Late(Lengths):
        def forward(self, batch: list[str]) -> list[str]:
            ended.wait(0.3)  # so that the error is known before the windows are through
            return super().forward(batch)

    def source() -> Iterator[pd.DataFrame]:
        yield from windows(["a", "b"], 1)
        ended.set()
        raise OSError("the socket closed")

    run = Pipeline(Late(), SPEC).run(source())
    assert [len(next(run).predictions) for _ in range(2)] == [1, 1]
    with pytest.raises(OSError, match="the socket closed"):
        next(run)
    assert not _helpers()


def test_closing_the_generator_ends_the_threads() -> None:
    run = Pipeline(Lengths(), SPEC).run(windows(["a"] * 1_000, 1))
    next(run)
    assert any(thread.name.startswith("daybreak-") for thread in threading.enumerate())
    run.close()
    assert not _helpers()


def test_the_source_is_read_a_bounded_way_ahead() -> None:
    pulled: list[int] = []

    def source() -> Iterator[pd.DataFrame]:
        for i, window in enumerate(windows(["a"] * 100, 1)):
            pulled.append(i)
            yield window

    class Unhurried(Lengths):
        def forward(self, batch: list[str]) -> list[str]:
            time.sleep(0.01)  # so that whatever may be ahead is
            return super().forward(batch)

        def postprocess(self, output: list[str]) -> pd.DataFrame:
            time.sleep(0.03)
            return super().postprocess(output)

    ahead = [len(pulled) - given for given, _ in enumerate(Pipeline(Unhurried(), SPEC).run(source()))]
    assert max(ahead) <= 6  # four with rows under way, one prepared, and one that is being prepared


def test_a_result_does_not_wait_for_the_window_after_it() -> None:
    """Spark sends the next batch only when it has had the answer to an earlier one."""
    answered = threading.Event()

    def source() -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"text": ["a"]})
        assert answered.wait(10)
        yield pd.DataFrame({"text": ["b"]})

    run = Pipeline(Lengths(), SPEC).run(source())
    next(run)
    answered.set()
    assert next(run).positions.tolist() == [0]
    assert list(run) == []


def _helpers() -> list[str]:
    deadline = time.monotonic() + 2
    names: list[str] = []
    while time.monotonic() < deadline:
        names = [t.name for t in threading.enumerate() if t.name.startswith("daybreak-")]
        if not names:
            break
        time.sleep(0.01)
    return names


class Clock:
    """Moves only when a stage says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_statistics_count_each_attempt_and_time_each_stage() -> None:
    clock = Clock()

    class Slow(Lengths):
        def forward(self, batch: list[str]) -> list[str]:
            clock.now += 2.0
            return super().forward(batch)

    pipeline = Pipeline(Slow(), SPEC, tokens=8, clock=clock)
    list(pipeline.run(windows(["aaaa", "aaaa", "aa"], 3)))
    stats = pipeline.stats
    assert (stats.rows_forward, stats.batches) == (3, 2)
    assert (stats.tokens_useful, stats.tokens_computed) == (10, 10)
    assert (stats.forward, stats.wall, stats.device_busy) == (4.0, 4.0, 1.0)
    told = stats.as_dict()
    assert told["padding"] == 0
    assert {"read", "size", "preprocess", "postprocess", "device_busy", "truncated"} <= set(told)


def test_rows_through_forward_count_again_when_a_batch_is_taken_apart() -> None:
    pipeline = Pipeline(Lengths(), SPEC)
    list(pipeline.run(windows(["!forward", "a"], 2)))
    assert pipeline.stats.rows_forward == 4


def test_stages_overlap() -> None:
    """While the device has a batch, the next is preprocessed and the last is postprocessed: each waits for the other,
    so that without the overlap this would never end well."""
    forwarding, preprocessed, posted = threading.Event(), threading.Event(), threading.Event()
    turns = iter(range(3))
    met: list[str] = []

    class Overlapping(Lengths):
        def preprocess(self, rows: pd.DataFrame) -> list[str]:
            if rows["text"].iloc[0] == "b":  # the second batch is prepared while the first is on the device
                assert forwarding.wait(10)
                met.append("preprocess")
                preprocessed.set()
            return super().preprocess(rows)

        def forward(self, batch: list[str]) -> list[str]:
            turn = next(turns)
            if turn == 0:
                forwarding.set()
                assert preprocessed.wait(10)
            if turn == 2:  # the first batch is postprocessed while the third is on the device
                assert posted.wait(10)
            return super().forward(batch)

        def postprocess(self, output: list[str]) -> pd.DataFrame:
            if output[0] == "aaa":
                met.append("postprocess")
                posted.set()
            return super().postprocess(output)

    (result,) = score(Overlapping(), ["aaa", "b", "c"], tokens=1, max_rows=1)
    assert result.predictions["length"].tolist() == [3, 1, 1]
    assert met == ["preprocess", "postprocess"]


def test_an_output_that_is_still_under_way_is_awaited_behind_and_the_device_counts_as_busy_until_then() -> None:
    clock = Clock()
    main = threading.main_thread()
    waited: list[bool] = []

    class Later:
        def __init__(self, batch: list[str]) -> None:
            self.batch = batch

        def wait(self) -> list[str]:
            waited.append(threading.current_thread() is main)
            if self.batch[0] == "!wait":
                raise ValueError("the device says no")
            clock.now += 2.0
            return self.batch

    class Launching(Lengths):
        def forward(self, batch: list[str]) -> Any:
            return Later(super().forward(batch))

    pipeline = Pipeline(Launching(), SPEC, tokens=1, max_rows=1, clock=clock)
    (result,) = pipeline.run(windows(["aaa", "bb", "c", "!wait"], 4))
    assert result.predictions["length"].tolist() == [3, 2, 1]
    assert [(f.position, f.phase, f.message) for f in result.failures] == [(3, "forward", "the device says no")]
    assert waited == [False] * 4
    assert pipeline.stats.forward == 6.0


class Slowly:
    """An output that says that its batch is awaited."""

    def __init__(self, batch: list[str], awaited: dict[str, threading.Event]) -> None:
        self.batch, self.awaited = batch, awaited

    def wait(self) -> list[str]:
        self.awaited[self.batch[0]].set()
        return self.batch


def test_a_device_is_awaited_while_an_earlier_batch_is_postprocessed() -> None:
    """Or the time for which it had the second batch would count what the first took behind it."""
    awaited = {text: threading.Event() for text in ("aaa", "bb", "c")}

    class Launching(Lengths):
        def forward(self, batch: list[str]) -> Any:
            return Slowly(super().forward(batch), awaited)

        def postprocess(self, output: list[str]) -> pd.DataFrame:
            if output[0] == "aaa":
                assert awaited["bb"].wait(10)
            return super().postprocess(output)

    (result,) = score(Launching(), ["aaa", "bb", "c"], tokens=1, max_rows=1)
    assert result.predictions["length"].tolist() == [3, 2, 1]


def test_a_model_postprocesses_on_one_thread_when_a_batch_is_taken_apart_too() -> None:
    model = Lengths()
    (result,) = score(model, [*["in order"] * 7, "!forward"], tokens=64)
    assert (len(result.failures), model.batches) == (1, [(4, 32), (2, 16), (1, 8)])
    assert {name.split("_")[0] for name in model.threads["postprocess"]} == {"daybreak-postprocess"}


def test_halves_of_a_batch_that_failed_keep_to_the_size_known_to_fail() -> None:
    """The first batch fails behind the device, after a later one has run out of memory."""
    costs: list[int] = []
    full = threading.Event()

    class Full(Lengths):
        def forward(self, batch: list[str]) -> list[str]:
            cost = sum(map(len, batch))
            costs.append(cost)
            if cost >= 60 and "y" in batch[0]:
                full.set()
                raise MemoryError
            return super().forward(batch)

        def postprocess(self, output: list[str]) -> pd.DataFrame:
            if len(output) == 16:
                assert full.wait(10)
                raise ValueError("together they do not fit")
            return super().postprocess(output)

    (result,) = score(Full(), ["x" * 16] * 16 + ["y" * 15] * 4 + ["y"], tokens=256, max_rows=16)
    assert result.failures == []
    assert costs[:2] == [256, 60]
    assert max(costs[2:]) < 60


def test_batches_of_a_slow_model_end_in_time() -> None:
    """It starts with one row, and no batch takes longer than it may; one that fails soon is no reason for a larger."""
    clock, took = Clock(), list[float]()

    class Slow(Lengths):
        by_rows = True

        def size(self, rows: pd.DataFrame) -> Any:
            return np.ones(len(rows), dtype=np.int64)

        def forward(self, batch: list[str]) -> list[str]:
            self._enter("forward", batch)
            clock.now += 0.25 * len(batch)
            took.append(0.25 * len(batch))
            return super().forward(batch)

    model = Slow()
    texts: list[str | None] = [*["a"] * 500, "!forward", *["a"] * 499]
    pipeline = Pipeline(model, SPEC, seconds=10, clock=clock)
    (result,) = pipeline.run(windows(texts, 1_000))
    assert (len(result.predictions), len(result.failures)) == (999, 1)
    assert (took[0], max(took)) == (0.25, 10.0)
    assert model.batches[-2][0] == 40
    free = Slow()
    list(Pipeline(free, SPEC, clock=clock).run(windows(["a"] * 1_000, 1_000)))
    assert [rows for rows, _ in free.batches] == [1_000]


@pytest.mark.parametrize("stage", ["size", "encode", "preprocess", "forward", "postprocess"])
@pytest.mark.parametrize("tokens", [None, 512])
def test_no_stage_is_given_more_rows_at_a_time_than_end_in_time(stage: str, tokens: int | None) -> None:
    """Each row takes a quarter of a second in one stage; a call may take ten."""
    clock, took = Clock(), list[float]()

    class Slow(Encoding if stage == "encode" else Lengths):  # type: ignore[misc]
        def _enter(self, at: str, texts: Iterable[str]) -> None:
            super()._enter(at, texts)
            if at == {"encode": "size"}.get(stage, stage):
                took.append(0.25 * len(list(texts)))
                clock.now += took[-1]

    texts: list[str | None] = ["a" * (i % 3 + 1) for i in range(600)]
    texts[77] = f"!{stage}" if stage != "encode" else "!size"
    known = Learned(1_024, settled=True) if tokens is None else None
    results = score(Slow(), texts, rows=300, tokens=tokens, seconds=10, clock=clock, learned=known)
    scored, failed = flat(results, 300)
    assert scored == {i: len(text or "") for i, text in enumerate(texts) if i != 77}
    assert {(place, phase) for place, phase, *_ in failed} == {(77, {"encode": "size"}.get(stage, stage))}
    assert took[0] == 0.25
    assert 5 < max(took) <= 10


def test_a_row_that_costs_a_process_when_it_is_sized_costs_two() -> None:
    """A process is dear: after the batch each row is tried alone."""
    lost = list[int]()

    class LostError(OtherProcessError):
        singly = True

    class Elsewhere(Lengths):
        max_rows = 16

        def size(self, rows: pd.DataFrame) -> Any:
            if "!" in rows["text"].to_list():
                lost.append(len(rows))
                raise LostError("ended")
            return super().size(rows)

    (result,) = score(Elsewhere(), [*["a"] * 40, "!", *["b"] * 23])
    assert len(result.predictions) == 63
    assert [(f.position, f.phase, f.error_class) for f in result.failures] == [(40, "worker", "LostError")]
    assert lost == [16, 1]


def test_rows_that_end_in_time_only_alone_are_not_sized_together_again() -> None:
    class Together(Encoding):
        def encode(self, rows: pd.DataFrame) -> Any:
            if len(rows) > 1:
                raise TimeoutError
            return super().encode(rows)

    (result,) = score(Together(), ["a", "bbb", "cc"])
    assert result.predictions["length"].tolist() == [1, 3, 2]
    assert not result.failures


def test_what_one_pipeline_learned_the_next_begins_with() -> None:
    clock = Clock()

    class Overhead(Lengths):
        def forward(self, batch: list[str]) -> list[str]:
            clock.now += 1.0 + 0.0001 * sum(map(len, batch))  # the larger the batch the better
            return super().forward(batch)

    texts: list[str | None] = ["x" * 64] * 2_000
    first = Pipeline(Overhead(), SPEC, clock=clock)
    list(first.run(windows(texts, 500)))
    assert first.learned.tokens > 1_024
    second = Pipeline(Overhead(), SPEC, learned=first.learned, clock=clock)
    assert second.learned == first.learned
    settled = Lengths()
    list(Pipeline(settled, SPEC, learned=Learned(640, settled=True)).run(windows(texts, 500)))
    assert {rows for rows, _ in settled.batches} == {10}


class Encoding(Lengths):
    """With the private extension: rows are encoded once and batches gathered from that."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded = 0

    def encode(self, rows: pd.DataFrame) -> Any:
        self._enter("size", rows["text"])
        self.encoded += len(rows)
        texts = rows["text"].to_list()

        class Kept:
            sizes = np.array([len(text) for text in texts])
            truncated = 1

        Kept.texts = texts  # type: ignore[attr-defined]
        return Kept

    def collate(self, kept: Any, rows: Any) -> list[str]:
        return [kept.texts[row] for row in rows]


def test_a_model_that_encodes_does_so_once_a_row() -> None:
    model = Encoding()
    pipeline = Pipeline(model, SPEC, tokens=10)
    (result,) = pipeline.run(windows(["aaaa", "b", "!forward", "cc"], 4))
    assert result.predictions["length"].tolist() == [4, 1, 2]
    assert model.encoded == 4
    assert "preprocess" not in model.threads
    assert pipeline.stats.truncated == 1


def test_a_row_that_cannot_be_encoded_fails_alone() -> None:
    (result,) = Pipeline(Encoding(), SPEC).run(windows(["a", "!size", "bb", None], 4))
    assert result.predictions["length"].tolist() == [1, 2]
    assert [(f.position, f.phase) for f in result.failures] == [(1, "size"), (3, "input")]


def test_rows_that_a_model_leaves_out_fail_alike_for_any_cut() -> None:
    class Dropping(Lengths):
        def postprocess(self, output: list[str]) -> pd.DataFrame:
            frame = super().postprocess(output)
            return frame[frame["length"] != 2].reset_index(drop=True)  # which row is which is lost

    texts: list[str | None] = ["a", "bb", "ccc", "bb", "a"]
    whole = flat(score(Dropping(), texts), 1000)
    assert whole == flat(score(Dropping(), texts, rows=2, max_rows=1), 2)
    assert whole[0] == {0: 1, 2: 3, 4: 1}
    assert {(place, error) for place, _, error, _ in whole[1]} == {(1, "NoOutput"), (3, "NoOutput")}
