"""Writing to Delta such that a repetition does nothing: Delta keeps, per application id, the last version written."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from delta import exceptions as delta_errors
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from daybreak import local
from daybreak.errors import DaybreakError, first_line
from daybreak.schema import Column
from daybreak.settings import settings
from daybreak.storage import Storage

log = logging.getLogger(__name__)
_R = TypeVar("_R")
CONFLICTS = (  # siblings in Python: not the subclasses of the first that they are in Java
    delta_errors.DeltaConcurrentModificationException,
    delta_errors.ConcurrentWriteException,
    delta_errors.MetadataChangedException,
    delta_errors.ProtocolChangedException,
    delta_errors.ConcurrentAppendException,
    delta_errors.ConcurrentDeleteReadException,
    delta_errors.ConcurrentDeleteDeleteException,
    delta_errors.ConcurrentTransactionException,
)
_TXN_APP, _TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_AWKWARD = set(" ,;{}()\n\t=")
_NO_TABLE_YET = (
    "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
)


def append_once(rows: DataFrame, path: str, *, app: str, version: int) -> None:
    """Append, unless this application id has already written this version."""
    once = rows.write.format("delta").mode("append").options(txnAppId=app, txnVersion=version)
    retried(lambda: once.save(path))


@contextmanager
def transaction(spark: SparkSession, *, app: str, version: int, note: str) -> Iterator[None]:
    """Commands inside commit once per (app, version), with a note in the table's history.

    The settings hold for the whole session, so it must be the run's own, with one committer.
    """
    with settings(spark, {_TXN_APP: app, _TXN_VERSION: str(version), _METADATA: note}):
        yield


def retried(action: Callable[[], _R], *, attempts: int = 8, sleep: Callable[[float], None] = time.sleep) -> _R:
    """Run an action again when another writer's commit came between. Raises DaybreakError after the last try."""
    for attempt in range(1, attempts + 1):
        try:
            return action()
        except CONFLICTS as conflict:
            said = first_line(conflict)
            log.warning("another writer committed first (try %d of %d): %s", attempt, attempts, said)
        if attempt < attempts:
            sleep(0.2 * 2**attempt)
    raise DaybreakError(
        f"another writer committed first at each of {attempts} tries: {said}",
        fix="what is staged stays: run the same command when the other writer is done, or keep it off this table",
    )


def create(
    spark: SparkSession,
    table: str,
    columns: Iterable[Column],
    *,
    by_path: bool,
    partition: str | None = None,
    properties: Mapping[str, str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Create a Delta table of declared columns if there is none. Two that race end with one table.

    A folder that another writer has only begun is waited for; one whose writer was killed then is made use of.
    Raises AnalysisException where the folder holds other files.
    """
    columns, wanted = list(columns), dict(properties or {})
    if any(_AWKWARD & set(column.name) for column in columns):
        wanted["delta.columnMapping.mode"] = "name"
    builder = DeltaTable.createIfNotExists(spark)
    builder = builder.location(table) if by_path else builder.tableName(table)
    builder = builder.addColumns(local.struct(columns))
    for name, value in wanted.items():
        builder = builder.property(name, value)
    if partition:
        builder = builder.partitionedBy(partition)
    for wait in (0.5, 1, 2, 4, None):
        try:
            retried(builder.execute)
            return
        except AnalysisException as error:
            if not by_path or not any(name in str(error) for name in _NO_TABLE_YET):
                raise
            if wait is None and not half_made(Storage(spark, table)):
                raise
        sleep(wait or 0)
    empty = local.frame(spark, [], columns).write.format("delta").mode("ignore").options(**wanted)
    retried(lambda: (empty.partitionBy(partition) if partition else empty).save(table))


def lacking(have: Iterable[str], columns: Iterable[Column]) -> list[Column]:
    """The columns that are not among those of a table. Pure."""
    there = {name.lower() for name in have}
    return [column for column in columns if column.name.lower() not in there]


def widen(spark: SparkSession, path: str, columns: Iterable[Column]) -> None:
    """Add to a Delta table the declared columns that it lacks, at its end; its rows have null there. Where several
    drivers do it at once, each column is added once."""
    wanted = list(columns)

    def add() -> None:
        if missing := lacking(spark.read.format("delta").load(path).columns, wanted):
            grown = local.frame(spark, [], missing).write.format("delta").mode("append").option("mergeSchema", "true")
            grown.save(path)
            log.info("%s: added the columns %s", path, ", ".join(column.name for column in missing))

    retried(add)


def half_made(storage: Storage) -> bool:
    """Whether a folder holds the beginnings of a Delta table but no version of it, as a killed writer leaves it."""
    if not storage.exists("_delta_log") or storage.files("_delta_log"):  # first: of a table, that is the short listing
        return False
    return [folder.name for folder in storage.folders()] == ["_delta_log"] and not storage.files()
