"""What in a condition would select other rows at another time."""

from __future__ import annotations

import pytest

from daybreak.source.condition import unstable_words


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("day = current_date()", ["current_date"]),
        ("day = CURRENT_DATE and at < now ( )", ["CURRENT_DATE", "now ( )"]),
        ("id IN (SELECT id FROM other)", ["SELECT"]),
        ("unix_timestamp() > 5", ["unix_timestamp()"]),
        ("unix_timestamp(at) > 5", []),
        ("note = 'now() select current_date'", []),
        ("note = 'it\\'s now()' AND `current_date` = 1", []),
        ("selected = 1 AND currents > 2", []),
        ("day = DATE 'yesterday'", ["'yesterday'"]),
        ('at < timestamp_ntz " Now UTC"', ['" Now UTC"']),
        ("day = DATE '2026-11-30' AND note = 'today'", []),
        ("date = 'tomorrow'", []),  # of a column of that name: the types decide, in the plan
    ],
)
def test_case_31_words_that_make_a_condition_unstable(condition: str, told: list[str]) -> None:
    assert unstable_words(condition) == told
