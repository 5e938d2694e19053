"""Pin the input: a table becomes one version of it before anything else looks at it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from daybreak.config import Input, absolute, is_path
from daybreak.errors import PreflightError, first_line
from daybreak.storage import Storage


@dataclass(frozen=True)
class File:
    path: str
    size: int
    modified_ms: int


@dataclass(frozen=True)
class Pin:
    """One version of one table. A resumed run reads the same rows, whatever has happened to the table since."""

    table: str
    format: str
    location: str
    version: str
    committed_at: datetime
    files: tuple[File, ...] = ()
    table_id: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "committed_at": self.committed_at.isoformat()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Pin:
        files = tuple(File(**file) for file in saved["files"])
        return cls(**{**saved, "files": files, "committed_at": datetime.fromisoformat(saved["committed_at"])})


def pin(spark: SparkSession, table: Input) -> Pin:
    """Resolve the job's input to a version: of a Delta table its number, of a Parquet one its list of files.

    Raises PreflightError when there is no such table, version or readable format.
    """
    format_, location = _locate(spark, table)
    if format_ == "delta":
        return _pin_delta(spark, table, location)
    if table.version != "latest":
        raise PreflightError(
            f"input.version is {table.version}, and {table.table} is a {format_} table, which keeps no versions",
            fix="leave input.version out, or convert the table to Delta",
        )
    return _pin_parquet(spark, table, location)


def read(spark: SparkSession, pinned: Pin) -> DataFrame:
    """The pinned rows."""
    if pinned.format == "delta":
        return spark.read.format("delta").option("versionAsOf", pinned.version).load(pinned.location)
    return _read_files(spark, pinned)


def verify(spark: SparkSession, pinned: Pin) -> None:
    """Raises PreflightError when what was pinned is not there any more: the table was made anew, or files changed."""
    try:
        if pinned.format == "parquet":
            _refuse_changed(spark, pinned)
        elif (now := _table_id(spark, pinned.location)) != pinned.table_id:
            raise PreflightError(
                f"{pinned.table!r} was deleted and made anew since the run pinned its version {pinned.version}"
                f" (table id {pinned.table_id}, now {now})",
                fix="start over on the present table with --fresh",
            )
        else:
            read(spark, pinned).schema  # noqa: B018  (resolves the snapshot)
    except AnalysisException as error:
        raise PreflightError(
            f"version {pinned.version} of {pinned.table!r} cannot be read any more: {first_line(error)}",
            fix="start over on the present table with --fresh",
        ) from None


def _table_id(spark: SparkSession, location: str) -> str:
    row = DeltaTable.forPath(spark, location).detail().select("id").first()
    return str(row["id"]) if row else ""


def _read_files(spark: SparkSession, pinned: Pin) -> DataFrame:
    return spark.read.option("basePath", pinned.location).parquet(*(file.path for file in pinned.files))


def _locate(spark: SparkSession, table: Input) -> tuple[str, str]:
    if is_path(table.table):
        return table.format, _existing_path(spark, table)
    if not _exists(spark, table.table):
        known = ", ".join(sorted(found.name for found in spark.catalog.listTables())[:10]) or "none"
        raise PreflightError(
            f"there is no table {table.table!r} in the catalog (tables of the current database: {known})",
            fix="name an existing table; a path has a '/' in it, like ./scores",
        )
    facts = {row[0]: row[1] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {table.table}").collect()}
    format_ = facts.get("Provider", "").lower()
    if "VIEW" in facts.get("Type", "VIEW"):
        raise PreflightError(
            f"{table.table!r} is a view, and a view has no version to pin",
            fix="name the table below it and use input.where and input.columns, or write the view to a table",
        )
    if format_ not in ("delta", "parquet"):
        raise PreflightError(f"{table.table!r} is a {format_} table; Daybreak reads delta and parquet")
    if format_ == "parquet":
        _refuse_more_than_files(spark, table.table, facts["Location"])
    return format_, facts["Location"]


def _exists(spark: SparkSession, name: str) -> bool:
    try:
        return bool(spark.catalog.tableExists(name))
    except (AnalysisException, ParseException) as error:
        raise PreflightError(
            f"{name!r} is no catalog name: {first_line(error)}",
            fix="put a part with other characters than letters, digits and _ in backticks: lake.`my-table`",
        ) from None


def _refuse_more_than_files(spark: SparkSession, name: str, location: str) -> None:
    """A Parquet table is pinned by its files, so the catalog may not say anything that the files do not."""
    declared, found = spark.table(name), spark.read.parquet(location)
    differs = [
        what
        for what, one, other in (
            ("columns or their types", declared.schema.simpleString(), found.schema.simpleString()),
            ("files", set(declared.inputFiles()), set(found.inputFiles())),
        )
        if one != other
    ]
    if differs:
        raise PreflightError(
            f"the catalog's {' and '.join(differs)} of the Parquet table {name!r} are not those at {location!r}",
            fix="convert it to Delta (CONVERT TO DELTA), which keeps columns, partitions and versions itself",
        )


def _existing_path(spark: SparkSession, table: Input) -> str:
    path = absolute(table.table)
    if not Storage(spark, path).exists():
        raise PreflightError(
            f"there is no table at {path!r}", fix="check input.table; relative paths start at the working directory"
        )
    is_delta = DeltaTable.isDeltaTable(spark, path)
    if is_delta != (table.format == "delta"):
        actual = "a Delta table" if is_delta else "no Delta table (it has no _delta_log)"
        raise PreflightError(
            f"input.format is {table.format!r}, and {path!r} is {actual}",
            fix="input.format: delta" if is_delta else "input.format: parquet",
        )
    return path


def _pin_delta(spark: SparkSession, table: Input, location: str) -> Pin:
    history = DeltaTable.forPath(spark, location).history
    newest = history(1).select("version", "timestamp").first()
    if newest is not None and table.version not in ("latest", newest["version"]):
        found = history().where(F.col("version") == table.version).select("version", "timestamp").first()
        if found is None:
            raise PreflightError(
                f"input.version {table.version} of {table.table!r} cannot be read; the newest is {newest['version']}",
                fix="name a version that is still in the table's history, or 'latest'",
            )
        newest = found
    if newest is None:
        raise PreflightError(f"the Delta table {table.table!r} has no history", fix="write to it once")
    committed_at = newest["timestamp"].astimezone(UTC)
    table_id = _table_id(spark, location)
    pinned = Pin(table.table, "delta", location, str(newest["version"]), committed_at, table_id=table_id)
    try:
        read(spark, pinned).schema  # noqa: B018  (resolves the snapshot)
    except AnalysisException as error:
        raise PreflightError(f"version {pinned.version} of {table.table!r} cannot be read: {error}") from None
    return pinned


def _pin_parquet(spark: SparkSession, table: Input, location: str) -> Pin:
    try:
        files = _list_files(spark.read.parquet(location))
    except AnalysisException as error:
        raise PreflightError(f"{location!r} cannot be read as Parquet: {error}", fix="check input.format") from None
    if not files:
        raise PreflightError(f"the Parquet table at {location!r} holds no rows, so it has no version to pin")
    listing = "\n".join(f"{file.path} {file.size} {file.modified_ms}" for file in files)
    version = "files:" + hashlib.sha256(listing.encode()).hexdigest()[:12]
    newest = datetime.fromtimestamp(max(file.modified_ms for file in files) / 1000, UTC)
    return Pin(table.table, "parquet", location, version, newest, files)


def _list_files(table: DataFrame) -> tuple[File, ...]:
    meta = table.metadataColumn("_metadata")
    fields = (meta["file_path"], meta["file_size"], F.unix_millis(meta["file_modification_time"]))
    rows = table.select(*fields).distinct().collect()
    return tuple(sorted((File(unquote(row[0]), row[1], row[2]) for row in rows), key=lambda file: file.path))


def _refuse_changed(spark: SparkSession, pinned: Pin) -> None:
    now = _list_files(_read_files(spark, pinned))
    changed = sorted({file.path for file in pinned.files} - {file.path for file in set(now) & set(pinned.files)})
    if changed:
        raise PreflightError(
            f"{len(changed)} file(s) of {pinned.table!r} were rewritten since the run pinned them: {changed[:3]}",
            fix="start over on the present files with --fresh; a Delta table keeps its versions",
        )
