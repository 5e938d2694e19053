from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import Row

from daybreak.ops.retention import nameless, spent
from daybreak.storage import Stored

NOW = datetime(2026, 11, 30, 6, tzinfo=UTC)
WEEK, NIGHT = timedelta(days=7), timedelta(hours=18)


def run(name: str, status: str, started: float, ended: float | None = None) -> Row:
    """A run that started and ended so many hours ago."""
    ends = None if ended is None else NOW - timedelta(hours=ended)
    return Row(run_id=name, status=status, started_at=NOW - timedelta(hours=started), ended_at=ends)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], []),
        ([run("new", "published", 3, 2)], []),
        ([run("old", "published", 200, 169)], ["old"]),
        ([run("long", "published", 200, 167)], []),  # from its end
        ([run("none", "nothing", 200, 199)], ["none"]),
        ([run("killed", "scoring", 17)], []),
        ([run("killed", "scoring", 100)], []),  # cannot be resumed, and is not old
        ([run("killed", "scoring", 169)], ["killed"]),
        ([run("new", "published", 1, 1), run("killed", "scoring", 169), run("older", "failed", 300, 299)],
         ["killed", "older"]),
        ([run("new", "published", 1, 1), run("refused", "refused", 10, 9)], []),
    ],
)  # fmt: skip
def test_what_serves_nobody_any_more(runs: list[Row], expected: list[str]) -> None:
    assert spent(runs, now=NOW, retention=WEEK, resume_within=NIGHT) == expected


def test_a_resumable_run_outlives_a_short_retention() -> None:
    runs = [run("killed", "scoring", 17), run("done", "published", 20, 19)]
    assert spent(runs, now=NOW, retention=timedelta(hours=1), resume_within=NIGHT) == ["done"]
    assert spent(runs, now=NOW, retention=timedelta(hours=1), resume_within=timedelta(hours=16)) == ["killed", "done"]


def test_folders_of_no_run_go_when_they_are_old() -> None:
    hours_ago = {"young": 1, "old": 169, "known": 169}
    stored = [
        Stored(name, name, 0, int((NOW - timedelta(hours=hours)).timestamp() * 1000))
        for name, hours in hours_ago.items()
    ]
    assert nameless(stored, {"known"}, now=NOW, retention=WEEK) == ["old"]
