from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.score.batches import Budget, padding, plan_batches


@pytest.mark.parametrize(
    ("sizes", "tokens", "max_rows", "expected"),
    [
        ([], 100, 10, []),
        ([5], 100, 10, [[0]]),
        ([500], 100, 10, [[0]]),  # longer than the budget: by itself
        ([10, 10, 10, 10], 20, 10, [[0, 1], [2, 3]]),  # the budget cuts
        ([10, 10, 10, 10], 1000, 3, [[0, 1, 2], [3]]),  # max_rows cuts
        ([1, 3, 2], 640, 10, [[1, 2, 0]]),  # longest first; a little padding is cheaper than a batch
        ([100, 1, 1], 640, 10, [[0], [1, 2]]),  # a cliff: padding would cost more than a batch
        ([0, 0, 0], 2, 10, [[0, 1], [2]]),  # zero counts as one
        ([7, 7, 7], 100, 10, [[0, 1, 2]]),  # ties keep their order
    ],
)
def test_table_of_cases(sizes: list[int], tokens: int, max_rows: int, expected: list[list[int]]) -> None:
    batches = plan_batches(np.array(sizes, dtype=np.int64), tokens=tokens, max_rows=max_rows)
    assert [batch.tolist() for batch in batches] == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=300), st.integers(1, 5000), st.integers(1, 64))
def test_every_position_once_and_within_the_budget(sizes: list[int], tokens: int, max_rows: int) -> None:
    costs = np.array(sizes, dtype=np.int64)
    batches = plan_batches(costs, tokens=tokens, max_rows=max_rows)
    assert sorted(p for batch in batches for p in batch.tolist()) == list(range(len(sizes)))
    for batch in batches:
        assert 1 <= len(batch) <= max_rows
        assert len(batch) == 1 or len(batch) * max(1, costs[batch].max()) <= tokens
    longest = [max(1, costs[batch].max()) for batch in batches]  # zero counts as one
    assert longest == sorted(longest, reverse=True)


def test_padding_stays_under_three_percent_on_a_docstring_like_skew() -> None:
    lengths = np.random.default_rng(0).lognormal(3.2, 1.1, 2000)
    sizes = np.clip(lengths, 3, 256).astype(np.int64)
    told = padding(sizes, plan_batches(sizes, tokens=2048, max_rows=4096))
    assert told.useful == sizes.sum()
    assert told.fraction < 0.03


def test_padding_of_nothing_is_none() -> None:
    assert padding(np.empty(0, dtype=np.int64), []).fraction == 0


def test_budget_halves_remembers_the_ceiling_and_recovers_below_it() -> None:
    budget = Budget(2048)
    budget.failed(2000)
    assert (budget.limit, budget.ceiling) == (1000, 2000)
    limits = []
    for _ in range(200):
        budget.fitted(budget.limit)
        limits.append(budget.limit)
    assert limits[0] == 1000  # one success is no reason
    assert limits == sorted(limits)
    assert 1875 <= limits[-1] < 2000  # near enough: the next failure would cost more than it could gain


def test_budget_does_not_grow_on_small_batches_or_above_what_was_asked() -> None:
    budget = Budget(2048)
    budget.failed(2000)
    for _ in range(100):
        budget.fitted(10)
    assert budget.limit == 1000
    fresh = Budget(64)
    for _ in range(100):
        fresh.fitted(64)
    assert fresh.limit == 64


def rate(cost: int, knee: int) -> float:
    """Tokens a second of a device that is no faster above the knee."""
    return 1000.0 * min(1.0, (cost / knee) ** 0.5)


@pytest.mark.parametrize(("first", "knee", "settled"), [(256, 2048, 2048), (256, 100, 256), (2048, 2048, 2048)])
def test_the_budget_doubles_up_to_the_knee_and_stays_there(first: int, knee: int, settled: int) -> None:
    budget = Budget(first, learn=True)
    offers = budget.offers()
    for _ in range(200):
        cost = next(offers)
        assert cost <= budget.allowed
        budget.timed(cost, cost / rate(cost, knee))
    assert (budget.limit, budget.learning) == (settled, False)
    assert {next(offers) for _ in range(4)} == {settled}


def test_batches_that_are_not_full_teach_nothing_and_one_slow_batch_does_not_decide() -> None:
    budget = Budget(256, learn=True)
    for _ in range(50):
        budget.timed(100, 1.0)
        budget.timed(500, 0.5)  # above the limit, but without neighbours within it
    assert (budget.limit, budget.learning) == (256, True)
    offers = budget.offers()
    for i in range(14):
        cost = next(offers)
        budget.timed(cost, cost / rate(cost, 2048) * (20 if i == 7 else 1))
    assert budget.limit == 512


def test_memory_that_runs_out_ends_the_learning_below_it() -> None:
    budget = Budget(1000, learn=True)
    budget.failed(1900)
    assert (budget.limit, budget.ceiling, budget.learning) == (950, 1900, False)
    for _ in range(200):
        budget.fitted(budget.limit)
    assert 1780 <= budget.limit < 1900


def test_a_budget_that_memory_made_small_recovers_in_the_next_shard_too() -> None:
    budget = Budget(16_384)
    budget.failed(16_384)
    for _ in range(3):  # each shard is too short for it
        for _ in range(7):
            budget.fitted(budget.limit)
        budget = Budget(budget.limit, most=budget.most)
    assert budget.limit == 8_192
    for _ in range(100):
        budget.fitted(budget.limit)
    assert 15_400 < budget.limit < 16_384


def test_the_pace_of_a_batch_bounds_the_next_which_is_no_more_than_eight_times_as_large() -> None:
    budget = Budget(4_096, seconds=15.0, first=1)
    allowed = [budget.allowed]
    for cost, seconds in ((1, 0.5), (8, 0.8), (64, 1.0), (4, 0.5), (500, 20.0), (375, 0.0)):
        budget.paced(cost, seconds)
        allowed.append(budget.allowed)
    assert allowed == [1, 8, 64, 512, 120, 375, 3_000]
    unbounded = Budget(4_096, first=1)
    unbounded.paced(4_096, 3_600.0)
    assert unbounded.allowed == 4_096


def test_budgets_may_alternate() -> None:
    batches = plan_batches(np.full(6, 10), tokens=iter([10, 20, 10, 20]), max_rows=10)
    assert [len(batch) for batch in batches] == [1, 2, 1, 2]


def test_a_copy_of_the_budget_does_not_follow_it() -> None:
    budget = Budget(100)
    before = budget.copy()
    budget.failed(80)
    assert (before.limit, before.ceiling) == (100, None)
