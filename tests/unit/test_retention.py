from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql import Row

from daybreak.ops import runlog
from daybreak.ops.retention import begun_by, spent

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


def test_what_began_long_ago_is_known_by_its_name() -> None:
    old, young = (runlog.name(NOW - timedelta(hours=hours)) for hours in (169, 167))
    edge = runlog.name(NOW - WEEK)
    assert begun_by([old, young, edge, "notes", "2026-11-01", ""], NOW - WEEK) == [old, edge]


def test_a_name_tells_when_a_run_began_whatever_the_zone_and_no_two_are_alike() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=-8)))
    assert runlog.began(runlog.name(there)) == NOW
    assert len({runlog.name(NOW) for _ in range(100)}) == 100
