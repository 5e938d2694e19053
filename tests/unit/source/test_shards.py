"""How the input is cut: a pure decision, as a table of cases."""

from __future__ import annotations

import pytest

from daybreak.config import Shards
from daybreak.source.shards import Split, choose


def splits(*rows: int) -> list[Split]:
    return [Split(f"file{i}", 0, count, count) for i, count in enumerate(rows)]


CASES = [
    # rows of the splits, by, selective -> by, count
    ([5000, 4000, 6000], "auto", False, "files", 3),
    ([1250] * 4, "auto", False, "files", 4),
    ([20000], "auto", False, "files", 1),
    ([20001], "auto", False, "key", 5),
    ([100000], "auto", False, "key", 20),
    ([10] * 1000, "auto", False, "key", 2),
    ([5000, 10, 10], "auto", False, "files", 3),
    ([5000, *[1000] * 6], "auto", False, "key", 3),
    ([], "auto", False, "files", 0),
    ([100000], "files", False, "files", 1),
    ([5000] * 3, "key", False, "key", 3),
    ([5000] * 3, "auto", True, "key", 3),
    ([5000] * 3, "files", True, "key", 3),
]


@pytest.mark.parametrize(("rows", "by", "selective", "cut_by", "count"), CASES)
def test_choose(rows: list[int], by: str, selective: bool, cut_by: str, count: int) -> None:
    plan = choose(splits(*rows), Shards(by=by, rows=5000), split_bytes=1, selective=selective)  # type: ignore[arg-type]
    assert (plan.by, plan.count) == (cut_by, count)
    assert plan.reason


@pytest.mark.parametrize(
    ("costs", "by"),
    [
        ([100, 100, 100, 100], "files"),
        ([100, 100, 100, 400], "files"),
        ([100] * 20 + [450], "files"),
        ([100] * 20 + [500], "key"),
        ([1] * 9 + [1000], "key"),
        ([0, 0], "files"),
    ],
)
def test_a_split_that_costs_more_than_four_of_the_average_is_no_shard(costs: list[int], by: str) -> None:
    found = [Split(f"file{i}", 0, 5000, cost) for i, cost in enumerate(costs)]
    plan = choose(found, Shards(rows=5000), split_bytes=1)
    assert (plan.by, plan.count) == (by, len(costs))
    assert by == "files" or "times what shards.rows (5000) rows cost on average" in plan.reason
