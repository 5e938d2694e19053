"""What the receipts add up to."""

from __future__ import annotations

import pytest

from daybreak.ops.tracking import padding, summed
from daybreak.sink.staging import Receipt


def receipt(**facts: object) -> Receipt:
    return Receipt(0, "a", 1, 1, 0, dict(facts))


def test_sums_are_of_amounts_and_not_of_ratios_names_or_moments() -> None:
    first = receipt(forward=1.5, tokens_useful=90, tokens_computed=100, padding=0.1, device_busy=0.9, pid=7, host="h")
    second = receipt(
        forward=0.5, tokens_useful=50, tokens_computed=100, padding=0.5, device_busy=0.8, began=1.0, ended=2.0
    )
    totals = summed([first, second])
    assert totals == {"forward": 2.0, "tokens_useful": 140, "tokens_computed": 200}
    assert padding(totals) == pytest.approx(0.3)
    assert padding({}) == 0.0
