"""Who may hold a job's lease."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daybreak.ops import runlog
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


PLACED = replace(HERE, place="boot-a.1")


@pytest.mark.parametrize(
    ("holder", "start", "here", "alive"),
    [
        (Holder("here", 7, "10", "boot-a.1"), None, PLACED, False),  # killed a moment ago
        (Holder("old-name", 7, "10", "boot-a.1"), None, PLACED, False),  # before its host was renamed
        (Holder("old-name", 7, "10", "boot-a.1"), "10", PLACED, True),
        (Holder("here", 7, "10", "boot-a.2"), None, PLACED, True),  # another container of this host name
        (Holder("here", 7, "10", "boot-b.1"), "99", PLACED, True),  # another machine of this host name
        (Holder("here", 7, "10"), None, PLACED, True),  # an older Daybreak's: it may be either
        (Holder("here", 7, "10", "boot-a.1"), "?", PLACED, True),  # another user's, which cannot be looked up
        (Holder("here", 7, "?"), None, replace(HERE, start="?"), True),  # no /proc
        (Holder("here", 7, "10"), None, replace(HERE, start="?"), True),  # none here
        (Holder("here", 7, "10", "boot-a.1"), None, replace(HERE, start="?"), True),
    ],
)
def test_a_process_that_cannot_be_looked_up_is_alive_while_it_beats(
    holder: Holder, start: str | None, here: Holder, alive: bool
) -> None:
    assert is_alive(holder, FRESH, here=here, now=NOW, start=start) is alive
    assert is_alive(holder, STALE, here=here, now=NOW, start=start) is False


def test_where_there_is_no_proc_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlog, "Path", lambda path: Path("/nowhere") / path.lstrip("/"))
    assert (Holder.here().start, Holder.here().place, process_start(os.getpid())) == ("?", "", "?")
    assert process_start(2**22 + 1) is process_start(2**70) is None


def test_a_driver_is_the_same_when_its_host_is_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Holder.here()
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    assert Holder.here() == before


def test_a_holder_is_read_back_from_its_text() -> None:
    assert Holder.parse(str(Holder("host:with:colons", 7, "10"))) == Holder("host:with:colons", 7, "10")
    assert Holder.parse(str(PLACED)) == PLACED
    assert Holder.parse(str(Holder.here())) == Holder.here()
    assert Holder.here().pid == os.getpid()


def test_a_process_that_is_not_there_has_no_start() -> None:
    assert process_start(os.getpid()) == process_start(os.getpid())
    assert process_start(2**22 + 1) is None
