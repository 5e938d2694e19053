"""What is kept of runs that are over: their rows in the run log for good, their staged files for a while."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import Row

from daybreak.ops import runlog
from daybreak.ops.runlog import RunLog
from daybreak.storage import Stored

log = logging.getLogger(__name__)
_LOOKED_AT = ("run_id", "job", "status", "started_at", "ended_at")  # a run's pins may list thousands of files


def spent(runs: Sequence[Row], *, now: datetime, retention: timedelta, resume_within: timedelta) -> list[str]:
    """The runs of a job, of those given newest first, whose staged files serve nobody any more. Pure.

    A published run's are kept for ``retention`` after its end, to look into. An unfinished run's are kept as long as
    it can be resumed (the newest run, within ``resume_within``), and for ``retention`` after its start.
    """
    over = []
    for place, row in enumerate(runs):
        unfinished = row.status in runlog.UNFINISHED
        if unfinished and place == 0 and now - row.started_at.astimezone(UTC) <= resume_within:
            continue
        since = row.started_at if unfinished or row.ended_at is None else row.ended_at
        if now - since.astimezone(UTC) > retention:
            over.append(row.run_id)
    return over


def nameless(folders: Iterable[Stored], known: set[str], *, now: datetime, retention: timedelta) -> list[str]:
    """Folders of no run: its driver was killed before the run's row was written. Pure."""
    oldest = (now - retention).timestamp() * 1000
    return [folder.name for folder in folders if folder.name not in known and folder.modified_ms < oldest]


def sweep(logbook: RunLog, job: str, *, now: datetime, retention: timedelta, resume_within: timedelta) -> list[str]:
    """Remove the staged files and heartbeats of a job's runs that are over. Returns the runs that lost files.

    Housekeeping after the run is published: what cannot be removed is a warning, and tried again by the next run.
    """
    try:
        left = {folder.name: folder for folder in logbook.storage.folders("staging")}
        rows = runlog.newest_first(logbook.runs().select(*_LOOKED_AT).collect())
        over = spent([row for row in rows if row.job == job], now=now, retention=retention, resume_within=resume_within)
        over = [one for one in over if one in left]
        over += nameless(left.values(), {row.run_id for row in rows}, now=now, retention=retention)
        for run_id in over:
            logbook.storage.delete("staging", run_id)
            logbook.storage.delete("heartbeats", run_id)
    except Exception as error:
        log.warning("job %s: old staged files could not be removed: %s: %s", job, type(error).__name__, error)
        return []
    if over:
        log.info("job %s: removed the staged files of %d runs that are over: %s", job, len(over), ", ".join(over))
    return over
