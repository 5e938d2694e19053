"""The run log: one row a run, written before scoring and after. The row is also the lease of the job.

A lease has a holder (host, process, its start, and where its number means something), an epoch that grows with each
holder, and a heartbeat. The epoch is a Delta transaction version, so of two drivers that reach for the same epoch one
gets it; Delta remembers the highest, also when rows are pruned or the table is restored. The heartbeat is
a file, since a Spark job would wait for a task slot behind the shards (docs/decisions/0002-heartbeat-is-a-file.md).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from daybreak import local, schema
from daybreak.errors import DaybreakError, LeaseError, root_cause
from daybreak.schema import literal
from daybreak.sink import tables
from daybreak.storage import Storage

log = logging.getLogger(__name__)

SCORING, REFUSED, FAILED, PUBLISHED, NOTHING = "scoring", "refused", "failed", "published", "nothing"
UNFINISHED = (SCORING, REFUSED, FAILED)

# Tables of a few rows a run: statistics for skipping files cost more to plan than they save.
_SMALL = {"delta.dataSkippingNumIndexedCols": "0"}

_BEGAN = "%Y%m%dT%H%M%SZ"
BEAT_EVERY = timedelta(seconds=10)
STALE_AFTER = timedelta(seconds=60)


_UNKNOWN = "?"
_HOST = socket.gethostname()  # once: a host may be renamed while a driver of it runs


@dataclass(frozen=True)
class Holder:
    """A driver process: no two are equal, not even by a process number that was used again.

    ``place`` is where the number names the process: the kernel's boot and the namespace of processes in it. Two
    containers of one host name differ in it, and a host that is renamed does not. Empty where it is not known, as in
    what an older Daybreak wrote.
    """

    host: str
    pid: int
    start: str
    place: str = ""

    @classmethod
    def here(cls) -> Holder:
        pid = os.getpid()
        return cls(_HOST, pid, process_start(pid) or _UNKNOWN, process_place())

    @classmethod
    def parse(cls, text: str) -> Holder:
        host, pid, rest = text.rsplit(":", 2)
        start, _, place = rest.partition("@")
        return cls(host, int(pid), start, place)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}" + (f"@{self.place}" if self.place else "")


def process_start(pid: int) -> str | None:
    """When a process of this machine started, in the kernel's own ticks; ``?`` where it is there and cannot be looked
    up, as another user's may be; None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return _UNKNOWN if _exists(pid) else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def process_place() -> str:
    """Where this process can look up others by their numbers; empty where the system does not tell (no /proc)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def is_alive(holder: Holder, beat: datetime | None, *, here: Holder, now: datetime, start: str | None) -> bool:
    """Whether the driver that holds a run may still be at work. Pure.

    ``start`` is :func:`process_start` of the holder's process as this one sees it. Where both number their processes
    alike, one that is gone is dead at once. Any other is dead when its heartbeat is stale: what cannot be looked up is
    no sign of death. It may be paused, and cannot publish then.
    """
    alike = holder.place == here.place and (bool(here.place) or holder.host == here.host)
    looked_up = alike and _UNKNOWN not in (holder.start, start, here.start)
    if holder == here or (looked_up and start != holder.start):
        return False
    return beat is not None and now - beat < STALE_AFTER


def name(now: datetime) -> str:
    """A new run's name: when it began, to the second, UTC, and what tells it from another of that second."""
    return f"{now.astimezone(UTC):{_BEGAN}}-{uuid.uuid4().hex[:8]}"


def began(run_id: str) -> datetime | None:
    """When a run began, by its name; None for what is no name of a run."""
    try:
        return datetime.strptime(run_id.partition("-")[0], _BEGAN).replace(tzinfo=UTC)
    except ValueError:
        return None


_AT_WORK: set[tuple[str, str]] = set()
_AT_WORK_LOCK = threading.Lock()


@contextlib.contextmanager
def alone(state: str, job: str) -> Iterator[None]:
    """Keep another thread of this process off a job: to the lease, they are one holder. Raises LeaseError."""
    mine = (state, job)
    with _AT_WORK_LOCK:
        if mine in _AT_WORK:
            raise LeaseError(f"job {job!r} is running in another thread of this process", fix="wait for it")
        _AT_WORK.add(mine)
    try:
        yield
    finally:
        _AT_WORK.discard(mine)


def newest_first(runs: Iterable[Row]) -> list[Row]:
    """Sorted here: a few rows are not worth the jobs of a sort in Spark."""
    return sorted(runs, key=lambda row: row.started_at, reverse=True)


def next_epoch(runs: Iterable[Row]) -> int:
    """The epoch of a job's next holder."""
    return max((row.epoch for row in runs), default=0) + 1


def unfinished(runs: Sequence[Row], alike: Callable[[Row], bool], *, since: datetime) -> Row | None:
    """The newest of a job's runs, if it is unfinished, scores what the job does by now, and started after ``since``."""
    newest = runs[0] if runs else None
    if newest is None or newest.status not in UNFINISHED or not alike(newest):
        return None
    started = newest.started_at.astimezone(UTC)
    if started < since:
        told = "run %s of job %s is unfinished since %s, which is longer than resume_within: a new run starts"
        log.warning(told, newest.run_id, newest.job, started.isoformat())
        return None
    return newest


class RunLog:
    """The tables ``runs`` and ``shards`` below a state folder."""

    def __init__(self, spark: SparkSession, state: str) -> None:
        self.spark = spark
        self.state = state
        self.storage = Storage(spark, state)
        self._mine: dict[str, Any] = {}

    def at(self, name: str) -> str:
        return self.storage.at(name)

    def exists(self) -> bool:
        return self.storage.exists("runs", "_delta_log")

    def create(self) -> None:
        """Make the state tables where they are not there yet, and give those of an older Daybreak the columns that
        they lack. No column is changed or removed; a driver that writes fewer columns leaves the others null."""
        for name, columns in (("runs", schema.RUNS), ("shards", schema.SHARDS), ("dead_letters", schema.DEAD_LETTERS)):
            if self.storage.exists(name, "_delta_log"):
                tables.widen(self.spark, self.at(name), columns)
            else:
                tables.create(self.spark, self.at(name), columns, by_path=True, properties=_SMALL)

    def runs(self) -> DataFrame:
        """All rows, in the columns of ``schema.RUNS``: null where the table is of an older Daybreak and lacks one."""
        rows = self.spark.read.format("delta").load(self.at("runs"))
        lacking = tables.lacking(rows.columns, schema.RUNS)
        return rows.withColumns({column.name: F.lit(None).cast(column.type) for column in lacking})

    def find(self, run_id: str) -> Row:
        """One run's row. Raises DaybreakError that lists the newest runs when there is none of that name."""
        row = self._row(run_id) if self.exists() else None
        if row is None:
            known = self.newest(5) if self.exists() else []
            listed = ", ".join(one.run_id for one in known) or "none yet"
            raise DaybreakError(f"there is no run {run_id!r} in {self.at('runs')}", fix=f"the newest runs: {listed}")
        return row

    def _row(self, run_id: str) -> Row | None:
        return next(iter(self.runs().where(F.col("run_id") == run_id).collect()), None)

    def newest(self, count: int) -> list[Row]:
        return self.runs().orderBy(F.desc("started_at")).limit(count).collect()

    def of_job(self, job: str) -> list[Row]:
        """The job's runs, newest first; none where there is no run log yet."""
        if not self.exists():
            return []
        return newest_first(self.runs().where(F.col("job") == job).collect())

    # -- the lease

    def held(self, row: Row, now: datetime) -> bool:
        """Whether a driver that may be alive holds a run."""
        return row.status == SCORING and _alive(Holder.parse(row.holder), self.last_beat(row.run_id), now)

    def refuse_if_held(self, runs: Iterable[Row], now: datetime) -> None:
        """Raises LeaseError when a driver that may be alive holds one of a job's runs."""
        for row in runs:
            if self.held(row, now):
                holder = Holder.parse(row.holder)
                raise LeaseError(
                    f"run {row.run_id} of job {row.job!r} is held by process {holder.pid} on {holder.host}, since"
                    f" {row.started_at.astimezone(UTC).isoformat()}; its last heartbeat: {self.last_beat(row.run_id)}",
                    fix="wait for it, or end that process; a dead driver's run is taken over once its heartbeat is"
                    f" {STALE_AFTER.seconds} s old",
                )

    def open(self, run: Mapping[str, Any]) -> None:
        """Write the row of a new run that has a heartbeat, which takes the lease. Raises LeaseError when another driver
        was faster."""

        def append(epoch: int) -> None:
            values = [{**run, "epoch": epoch}.get(column.name) for column in schema.RUNS]
            row = local.frame(self.spark, [values], schema.RUNS)
            tables.append_once(row, self.at("runs"), app=_lease(run["job"]), version=epoch)

        self._mine = {**run, "epoch": self._take(run["run_id"], run["job"], run["epoch"], append)}

    def take_over(self, row: Row, *, epoch: int) -> None:
        """Make this driver the holder of a run whose holder is dead. Raises LeaseError as :meth:`open`."""
        taken = {"status": SCORING, "holder": str(Holder.here()), "error": None, "ended_at": None}

        def update(epoch: int) -> None:
            with tables.transaction(self.spark, app=_lease(row.job), version=epoch, note=f"lease of {row.run_id}"):
                self.update(row.run_id, **taken, epoch=epoch)

        self._mine = {**row.asDict(), **taken, "epoch": self._take(row.run_id, row.job, epoch, update)}
        self.beat(row.run_id)  # not before: the beat of who came too late would end the winner's

    def _take(self, run_id: str, job: str, epoch: int, reach: Callable[[int], None]) -> int:
        """Take a job's lease by ``reach``, which does nothing where Delta has seen the epoch. Returns its epoch.

        That is so when another driver was faster, or when rows with this epoch and later ones were pruned or went with
        a restore. In the second case no row has it; then higher ones are tried, the same by each driver, so that one
        gets it.
        """
        mine = (run_id, str(Holder.here()))
        for doubled in range(63):
            reach(epoch)
            runs = self._holders(job)
            if (*mine, epoch) in {(row.run_id, row.holder, row.epoch) for row in runs}:
                return epoch
            if any(row.epoch >= epoch for row in runs):
                break
            log.info("run %s: the run log once had later rows than it has now (epoch %d)", run_id, epoch)
            epoch += 2**doubled
        raise LeaseError("another driver took the job's lease at the same moment", fix="see daybreak runs")

    def _holders(self, job: str) -> list[Row]:
        return self.runs().where(F.col("job") == job).select("run_id", "holder", "epoch", "started_at").collect()

    def still_held(self, run_id: str, job: str) -> None:
        """Raises LeaseError when another driver has taken the job over meanwhile, as after a pause of this process.

        The lease is the job's: a later run of it, or a later holder of this run, has a larger epoch. A row that was
        pruned while its run scored is written again.
        """
        runs = self._holders(job)
        if self._was_pruned(run_id, runs):
            log.warning("run %s: its row was removed from the run log, and is written again", run_id)
            self.open({**self._mine, "epoch": self._mine["epoch"] + 1})
            return
        latest = max(runs, key=lambda row: row.epoch, default=None)
        if latest is None or (latest.run_id, latest.holder) != (run_id, str(Holder.here())):
            raise LeaseError(
                f"run {run_id} of job {job!r} lost its lease to {latest and latest.run_id} while this driver was away",
                fix="nothing was published by this driver; see daybreak runs",
            )

    def _was_pruned(self, run_id: str, runs: Iterable[Row]) -> bool:
        """Whether the row of this driver's run was removed, and no other driver has begun since."""
        mine = self._mine
        if mine.get("run_id") != run_id:
            return False
        return not any(
            row.run_id == run_id
            or row.epoch > mine["epoch"]
            or row.started_at.astimezone(UTC) > mine["started_at"].astimezone(UTC)
            for row in runs
        )

    def conclude(self, run_id: str, **values: Any) -> None:
        """Change the run's row, unless another driver holds it by now."""
        self.update(run_id, only_by=str(Holder.here()), **values)

    def update(self, run_id: str, *, only_by: str | None = None, **values: Any) -> None:
        condition = f"run_id = {literal(run_id)}" + (f" AND holder = {literal(only_by)}" if only_by else "")
        kinds = {column.name: column.type for column in schema.RUNS}
        changes: dict[str, Any] = {name: F.lit(value).cast(kinds[name]) for name, value in values.items()}
        table = DeltaTable.forPath(self.spark, self.at("runs"))
        tables.retried(lambda: table.update(condition, changes))

    def add_shards(self, run_id: str, rows: list[tuple[Any, ...]]) -> None:
        """Write the receipts that count; a repetition for the same run does nothing."""
        if rows:
            frame = local.frame(self.spark, rows, schema.SHARDS).coalesce(1)
            tables.append_once(frame, self.at("shards"), app=f"daybreak/shards/{run_id}", version=1)

    # -- the heartbeat

    def beat(self, run_id: str) -> None:
        text = json.dumps({"holder": str(Holder.here()), "at": datetime.now(UTC).isoformat()})
        self.storage.write_text(text, "heartbeats", run_id)

    def beaten_by_another(self, run_id: str) -> bool:
        """Whether another driver has beaten for the run since this one did."""
        text = self.storage.read_text("heartbeats", run_id) or ""
        return '"holder"' in text and str(Holder.here()) not in text

    def last_beat(self, run_id: str) -> datetime | None:
        """When a run's driver last beat for it; None if it never did."""
        beat = self._beat(run_id)
        return datetime.fromisoformat(beat["at"]) if beat else None

    def _beat(self, run_id: str) -> dict[str, str] | None:
        """Read again where it was read in the middle of a write. What a driver that was killed then has left stays
        unreadable, and is none."""
        for wait in (0.5, 1.0, None):
            text = self.storage.read_text("heartbeats", run_id)
            with contextlib.suppress(ValueError):
                return dict(json.loads(text)) if text is not None else None
            time.sleep(wait or 0)
        return None

    def planned(self, run_id: str, now: datetime) -> bool:
        """Whether a driver that may be alive is about to write the row of a run."""
        beat = self._beat(run_id)
        if beat is None:
            return False
        holder = Holder.parse(beat["holder"])
        return holder == Holder.here() or _alive(holder, datetime.fromisoformat(beat["at"]), now)


class Heartbeat:
    """Beats for a run in a thread of its own, while the ``with`` block lasts and no other driver beats for it."""

    def __init__(self, runlog: RunLog, run_id: str, *, every: timedelta = BEAT_EVERY) -> None:
        self._runlog, self._run_id, self._every = runlog, run_id, every.total_seconds()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat {run_id}", daemon=True)

    def _run(self) -> None:
        while not self._done.wait(self._every):
            try:
                if self._runlog.beaten_by_another(self._run_id):
                    log.warning("run %s: another driver has taken it over", self._run_id)
                    return
                self._runlog.beat(self._run_id)
            except Exception as error:
                log.warning("run %s: a heartbeat could not be written: %s", self._run_id, root_cause(error))

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def _alive(holder: Holder, beat: datetime | None, now: datetime) -> bool:
    """As ``is_alive``, on this machine."""
    return is_alive(holder, beat, here=Holder.here(), now=now, start=process_start(holder.pid))


def _lease(job: str) -> str:
    return f"daybreak/lease/{job}"
