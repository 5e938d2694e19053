"""Publish: one idempotent MERGE of a run's staged rows into the output table. Readers see the old run or the new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from daybreak import local, schema
from daybreak.config import absolute, is_path
from daybreak.errors import DaybreakError, PreflightError, root_cause
from daybreak.schema import Column, quoted
from daybreak.sink import constraints, tables
from daybreak.sink.staging import decoded_keys
from daybreak.storage import Storage

_DEAD = f"{schema.RESERVED}dead"
_NO_STATISTICS = ("binary", "boolean")  # Delta refuses to be asked for them


@dataclass(frozen=True)
class Target:
    """The output table: where it is, and the columns that it must have."""

    table: str
    keys: tuple[Column, ...]
    predictions: tuple[Column, ...]
    history: bool

    @property
    def columns(self) -> tuple[Column, ...]:
        return schema.output(self.keys, self.predictions, history=self.history)

    @property
    def location(self) -> str:
        return absolute(self.table)

    def delta(self, spark: SparkSession) -> DeltaTable:
        by_path = is_path(self.table)
        return DeltaTable.forPath(spark, self.location) if by_path else DeltaTable.forName(spark, self.table)

    def exists(self, spark: SparkSession) -> bool:
        if is_path(self.table):
            begun = DeltaTable.isDeltaTable(spark, self.location)
            return begun and not tables.half_made(Storage(spark, self.location))
        return spark.catalog.tableExists(self.table)


@dataclass(frozen=True)
class Provenance:
    """What every published row says of where it comes from."""

    run_id: str
    window: str
    model_name: str
    model_version: str
    input_version: str


def check(spark: SparkSession, target: Target, *, rows: DataFrame, known: Mapping[str, str]) -> None:
    """Refuse an output table that the scores would not fit, or that would not take them.

    ``rows`` has the keys of the rows to come, and ``known`` values that all of them will have. What the model's own
    values decide, as a CHECK on a prediction, is told by Delta when the run publishes. Raises PreflightError naming
    columns, types and constraints.
    """
    _refuse_clashes(target)
    try:
        if not target.exists(spark):
            _refuse_no_room(spark, target)
            return
        table = target.delta(spark)
        declared = constraints.declared(spark, table)
    except (PySparkException, Py4JJavaError) as error:
        raise PreflightError(
            f"output.table {target.table!r} cannot be written as a Delta table: {root_cause(error)}",
            fix="name a Delta table, or one that does not exist yet",
        ) from None
    problems = _misfits(target, declared.schema)
    if target.history and list(declared.partitions) != [schema.WINDOW.name]:
        problems.append(f"it is partitioned by {list(declared.partitions)}, and history mode needs ['window']")
    problems += constraints.unfilled(declared, filled := [column.name for column in target.columns])
    if not problems:
        known = {name: value for name, value in known.items() if name in filled}
        held = table.toDF()
        if target.history:
            held = held.where(F.col(schema.WINDOW.name) == F.lit(known[schema.WINDOW.name]))
        keys = [quoted(key.name) for key in target.keys]
        whole = rows.select(*map(F.col, keys)).where(" AND ".join(f"{key} IS NOT NULL" for key in keys))
        problems = constraints.violated(declared, held, keys=whole, known=known, filled=filled)
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise PreflightError(
            f"the scores do not fit the output table {target.table!r}:\n{lines}",
            fix=f"name another output.table, or alter this one{_addition(target, table)}; nothing is cast in silence",
        )


def _addition(target: Target, table: DeltaTable) -> str:
    """The command that adds the columns which the table lacks: it grows only when asked to."""
    have = {name.lower() for name in table.toDF().columns}
    lacking = [f"{quoted(column.name)} {column.type}" for column in target.columns if column.name.lower() not in have]
    name = f"delta.{quoted(target.location)}" if is_path(target.table) else target.table
    return f", as in ALTER TABLE {name} ADD COLUMNS ({', '.join(lacking)})" if lacking else ""


def _refuse_no_room(spark: SparkSession, target: Target) -> None:
    """Where the output table is not there yet, it must be possible to create it."""
    database, _, _ = target.table.rpartition(".")
    if is_path(target.table):
        folder = Storage(spark, target.location)
        if folder.holds_anything() and not tables.half_made(folder):
            raise PreflightError(
                f"output.table {target.location!r} holds files, and is no Delta table",
                fix="name an empty or a new folder",
            )
    elif database and not spark.catalog.databaseExists(database):
        raise PreflightError(
            f"output.table {target.table!r} is in the schema {database!r}, which does not exist",
            fix=f"CREATE SCHEMA {database}, or correct the name",
        )


def _refuse_clashes(target: Target) -> None:
    seen: dict[str, str] = {}
    for column in target.columns:
        if column.name.lower() in seen:
            raise PreflightError(
                f"the output would have two columns named {column.name!r} (keys"
                f" {[key.name for key in target.keys]}, predictions {[one.name for one in target.predictions]}, and"
                " Daybreak's own)",
                fix="rename the model's output in its signature, or the key column in the table",
            )
        seen[column.name.lower()] = column.name


def _misfits(target: Target, existing: T.StructType) -> list[str]:
    wanted = local.struct(target.columns)
    have = {field.name.lower(): field.dataType for field in existing.fields}
    problems = []
    for field in wanted.fields:
        kind = have.get(field.name.lower())
        if kind is None:
            problems.append(f"it has no column {field.name!r} ({field.dataType.simpleString()})")
        elif kind.simpleString() != field.dataType.simpleString():
            problems.append(
                f"its column {field.name!r} is {kind.simpleString()}, and the run has {field.dataType.simpleString()}"
            )
    if not target.history and schema.WINDOW.name in have and schema.WINDOW.name not in {f.name for f in wanted.fields}:
        problems.append("it has a column 'window', as history mode writes, and output.mode is latest")
    return problems


def scores(staged: DataFrame, target: Target, source: Provenance) -> DataFrame:
    """The staged rows in the output's columns, with a flag on those that are dead letters (their scores are null)."""
    values: dict[str, Any] = {
        **{column.name: F.col(f"p{i}") for i, column in enumerate(target.predictions)},
        schema.WINDOW.name: F.lit(source.window),
        "model_name": F.lit(source.model_name),
        "model_version": F.lit(source.model_version),
        "run_id": F.lit(source.run_id),
        "input_version": F.lit(source.input_version),
        "input_hash": F.col("input_hash"),
        "scored_at": F.timestamp_micros("scored_us"),
    }
    keys = decoded_keys(target.keys)
    rest = [values[column.name].alias(column.name) for column in target.columns[len(keys) :]]
    named = " AND ".join(f"k{i} IS NOT NULL" for i in range(len(keys)))
    return staged.where(named).select(*keys, *rest, (F.col("kind") == schema.DEAD).alias(_DEAD))


def publish(
    spark: SparkSession, rows: DataFrame, target: Target, source: Provenance, *, allowed: Callable[[], None]
) -> int:
    """MERGE the rows of :func:`scores` into the output, creating it if need be. Returns the Delta version made.

    A row that is a dead letter in this run loses the score that an earlier run gave it in the same window (in
    latest mode: at all), so that every key has a score or a dead letter, never both. Publishing a run again
    changes nothing and returns the version of the first time. ``allowed`` raises when this driver may not publish any
    more; it is asked before each try, since a conflict may be its successor's commit, and again right before the MERGE,
    which reads the output as it is then.
    """

    def merge() -> None:
        allowed()
        _create(spark, target)
        _merge(spark, rows, target, source, allowed)

    try:
        tables.retried(merge)
    except (PySparkException, Py4JJavaError) as error:
        raise DaybreakError(
            f"{target.table!r} did not take the scores: {root_cause(error)}",
            fix="what is staged stays: mend the table, or its constraint, and run the same command, or daybreak publish"
            f" {source.run_id}; nothing is scored again",
        ) from error
    return version_of(spark, target, source.run_id)


def _create(spark: SparkSession, target: Target) -> None:
    """Delta keeps statistics of the keys and the run alone: of all columns they were half the time of a light MERGE."""
    keys = [quoted(key.name) for key in target.keys if not key.type.startswith(_NO_STATISTICS)]
    tables.create(
        spark,
        target.location,
        target.columns,
        by_path=is_path(target.table),
        partition=schema.WINDOW.name if target.history else None,
        properties={"delta.dataSkippingStatsColumns": ",".join([*keys, "run_id"])},
    )


def _merge(
    spark: SparkSession, rows: DataFrame, target: Target, source: Provenance, allowed: Callable[[], None]
) -> None:
    table = target.delta(spark)
    window = F.col(f"t.{schema.WINDOW.name}") == F.lit(source.window)  # no SQL text: settings say how that is read
    on = [f"t.{quoted(key.name)} = s.{quoted(key.name)}" for key in target.keys]
    values: dict[str, Any] = {quoted(column.name): f"s.{quoted(column.name)}" for column in target.columns}
    there = table.toDF().alias("t")
    if (there.where(window) if target.history else there).isEmpty():
        merge = table.alias("t").merge(_only_scored(rows).alias("s"), _both(on, window, target))
        clauses = merge.whenNotMatchedInsert(values=values)
    else:
        merge = table.alias("t").merge(rows.alias("s"), _both(on, window, target))
        clauses = (
            merge.whenMatchedDelete(condition=f"s.{_DEAD}")
            .whenMatchedUpdate(set=values)
            .whenNotMatchedInsert(condition=f"NOT s.{_DEAD}", values=values)
        )
    with tables.transaction(spark, app=_app(source.run_id), version=1, note=_app(source.run_id)):
        allowed()
        clauses.execute()


def _only_scored(rows: DataFrame) -> DataFrame:
    return rows.where(~F.col(_DEAD))


def _both(on: Sequence[str], window: SparkColumn, target: Target) -> SparkColumn:
    keys = F.expr(" AND ".join(on))
    return window & keys if target.history else keys


def _app(run_id: str) -> str:
    return f"daybreak/publish/{run_id}"


def version_of(spark: SparkSession, target: Target, run_id: str) -> int:
    """The Delta version in which a run was published, by the note in its commit.

    A MERGE that has nothing to change may make no commit of its own; then it is the newest version.
    """
    commits = target.delta(spark).history().select("version", "userMetadata").collect()
    noted = [commit.version for commit in commits if commit.userMetadata == _app(run_id)]
    return int(min(noted, default=max(commit.version for commit in commits)))
