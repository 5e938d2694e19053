"""Who may hold a job's lease."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

from daybreak.ops.runlog import STALE_AFTER, Holder, is_alive, process_start

NOW = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
HERE = Holder("here", 100, "5000")
FRESH, STALE = NOW - timedelta(seconds=5), NOW - STALE_AFTER


@pytest.mark.parametrize(
    ("holder", "beat", "start", "alive"),
    [
        (HERE, FRESH, "5000", False),  # this driver itself
        (Holder("here", 7, "10"), FRESH, "10", True),
        (Holder("here", 7, "10"), STALE, "10", False),  # a process of this machine that was paused
        (Holder("here", 7, "10"), FRESH, None, False),  # killed a moment ago
        (Holder("here", 7, "10"), FRESH, "99", False),  # its number was used again
        (Holder("there", 7, "10"), FRESH, None, True),
        (Holder("there", 7, "10"), STALE, None, False),
        (Holder("there", 7, "10"), None, None, False),
    ],
)
def test_is_alive(holder: Holder, beat: datetime | None, start: str | None, alive: bool) -> None:
    assert is_alive(holder, beat, here=HERE, now=NOW, start=start) is alive


def test_a_holder_is_read_back_from_its_text() -> None:
    assert Holder.parse(str(Holder("host:with:colons", 7, "10"))) == Holder("host:with:colons", 7, "10")
    assert Holder.here() == Holder.here()
    assert Holder.here().pid == os.getpid()


def test_a_process_that_is_not_there_has_no_start() -> None:
    assert process_start(os.getpid()) == process_start(os.getpid())
    assert process_start(2**22 + 1) is None
