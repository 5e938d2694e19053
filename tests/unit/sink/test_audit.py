"""input = scored + dead + skipped, shard by shard, from three counts that do not know each other."""

from __future__ import annotations

import pytest

from daybreak.config import Gates
from daybreak.errors import GateError
from daybreak.sink.audit import Counts, hold_gates, reconcile
from daybreak.sink.staging import Receipt
from daybreak.source.shards import Shard

PLAN = [Shard(0, None, None, 10, 0, 10), Shard(1, None, None, 8, 3, 5), Shard(2, None, None, 4, 4, 0)]
RECEIPTS = [Receipt(0, "a", 10, 9, 1), Receipt(1, "b", 5, 5, 0)]
STAGED = {0: {"scored": 9, "dead": 1}, 1: {"scored": 5}}


def test_counts_that_agree_are_added_up() -> None:
    assert reconcile(PLAN, RECEIPTS, STAGED) == Counts(22, 14, 1, 7)
    assert reconcile([], [], {}) == Counts(0, 0, 0, 0)


WRONG = [
    (RECEIPTS[:1], STAGED, "shard 1 has 5 rows to score and no receipt"),
    ([Receipt(0, "a", 9, 8, 1), RECEIPTS[1]], STAGED, "shard 0: 10 rows to score in the input, 9 in the receipt"),
    (RECEIPTS, {**STAGED, 1: {"scored": 4}}, "shard 1: 5 rows .* and 4 scored, 0 dead staged"),
    (RECEIPTS, {**STAGED, 1: {"scored": 6}}, "shard 1: 5 rows .* and 6 scored, 0 dead staged"),
    (RECEIPTS, {**STAGED, 1: {"scored": 4, "dead": 1}}, "shard 1: "),
    ([*RECEIPTS, Receipt(7, "c", 1, 1, 0)], STAGED, "shard 7 is staged and not in the plan"),
]


@pytest.mark.parametrize(("receipts", "staged", "message"), WRONG)
def test_counts_that_do_not_agree_publish_nothing(
    receipts: list[Receipt], staged: dict[int, dict[str, int]], message: str
) -> None:
    with pytest.raises(GateError, match=message) as refusal:
        reconcile(PLAN, receipts, staged)
    assert refusal.value.exit_code == 3
    assert "--fresh" in str(refusal.value)


@pytest.mark.parametrize(
    ("counts", "gates", "refused"),
    [
        (Counts(100, 99, 1, 0), Gates(), None),
        (
            Counts(100, 98, 2, 0),
            Gates(),
            r"2 of 100 rows are dead letters \(2\.00%\), and gates.max_dead_fraction is 1",
        ),
        (Counts(100, 0, 100, 0), Gates(max_dead_fraction=1), None),
        (Counts(0, 0, 0, 0), Gates(), r"the input has 0 rows, and gates\.min_rows is 1"),
        (Counts(0, 0, 0, 0), Gates(min_rows=0), None),
        (Counts(3, 0, 3, 0), Gates(min_rows=4), r"has 3 rows.*; 3 of 3 rows are dead"),
        (Counts(100, 0, 0, 100), Gates(min_rows=100), None),
        (Counts(1010, 0, 10, 1000), Gates(), r"10 of 10 rows are dead letters \(100\.00%\)"),
        (Counts(1010, 9, 1, 1000), Gates(), r"1 of 10 rows are dead letters \(10\.00%\)"),
        (Counts(1100, 99, 1, 1000), Gates(), None),
    ],
)
def test_gates(counts: Counts, gates: Gates, refused: str | None) -> None:
    if refused is None:
        hold_gates(counts, gates)
    else:
        with pytest.raises(GateError, match=refused):
            hold_gates(counts, gates)
