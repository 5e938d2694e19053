"""Refuse an input that is older than the job allows: the trigger may have raced the pipeline that fills it."""

from __future__ import annotations

from datetime import datetime

from daybreak.config import Freshness
from daybreak.errors import StaleInputError
from daybreak.source.snapshot import Pin


def check(pinned: Pin, freshness: Freshness | None, now: datetime) -> None:
    """Raises StaleInputError when the pinned version was committed longer than ``max_age`` before ``now``."""
    if freshness is None:
        return
    age = now - pinned.committed_at
    if age > freshness.max_age:
        raise StaleInputError(
            f"version {pinned.version} of {pinned.table!r} was committed at {pinned.committed_at.isoformat()},"
            f" {age} ago, and input.freshness.max_age is {freshness.max_age}",
            fix="see why the table was not refreshed, then run again; or raise input.freshness.max_age",
        )
