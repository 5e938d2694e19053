"""What is kept of runs that are over: their rows in the run log for good, their staged files for a while."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import Row

from daybreak.ops import runlog
from daybreak.ops.runlog import RunLog

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


def begun_by(run_ids: Iterable[str], latest: datetime) -> list[str]:
    """The runs that began by then, by their names, which begin with the time. Pure. No store need keep the time of a
    folder; one of another name is nobody's run, and left alone."""
    return [run_id for run_id in run_ids if (began := runlog.began(run_id)) and began <= latest]


def sweep(logbook: RunLog, job: str, *, now: datetime, retention: timedelta, resume_within: timedelta) -> list[str]:
    """Remove the staged files and heartbeats of a job's runs that are over, and what a driver left of a run that it was
    killed before it wrote the row of. Returns the runs that lost files.

    Housekeeping after the run is published: what cannot be removed is a warning, and tried again by the next run.
    """
    try:
        old = begun_by((folder.name for folder in logbook.storage.folders("staging")), now - retention)
        if not old:  # as on most nights: no need to read the run log
            return []
        rows = runlog.newest_first(logbook.runs().select(*_LOOKED_AT).collect())
        of_job = [row for row in rows if row.job == job]
        over = set(spent(of_job, now=now, retention=retention, resume_within=resume_within))
        nameless = set(old) - {row.run_id for row in rows}
        over |= {run_id for run_id in nameless if not logbook.planned(run_id, now)}
        gone = sorted(over & set(old))
        for run_id in gone:
            logbook.storage.delete("staging", run_id)
            logbook.storage.delete("heartbeats", run_id)
    except Exception as error:
        log.warning("job %s: old staged files could not be removed: %s: %s", job, type(error).__name__, error)
        return []
    if gone:
        log.info("job %s: removed the staged files of %d runs that are over: %s", job, len(gone), ", ".join(gone))
    return gone
