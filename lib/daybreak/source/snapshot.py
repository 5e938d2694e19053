"""Pin the input: a table becomes one version of it before anything else looks at it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from daybreak.config import Input, absolute, is_path
from daybreak.errors import PreflightError


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
    """The pinned rows. Raises PreflightError when a pinned file has gone or has changed since."""
    if pinned.format == "delta":
        return spark.read.format("delta").option("versionAsOf", pinned.version).load(pinned.location)
    _refuse_changed(spark, pinned)
    return _read_files(spark, pinned)


def _read_files(spark: SparkSession, pinned: Pin) -> DataFrame:
    return spark.read.option("basePath", pinned.location).parquet(*(file.path for file in pinned.files))


def _locate(spark: SparkSession, table: Input) -> tuple[str, str]:
    if is_path(table.table):
        return table.format, _existing_path(spark, table)
    if not spark.catalog.tableExists(table.table):
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
    return format_, facts["Location"]


def _existing_path(spark: SparkSession, table: Input) -> str:
    path = absolute(table.table)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    folder = spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    if not folder.getFileSystem(hadoop).exists(folder):
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
    pinned = Pin(table.table, "delta", location, str(newest["version"]), newest["timestamp"].astimezone(UTC))
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
    try:
        now = _list_files(_read_files(spark, pinned))
    except AnalysisException as error:
        raise PreflightError(f"a pinned file of {pinned.table!r} has gone: {error}", fix="--fresh") from None
    changed = sorted({file.path for file in pinned.files} - {file.path for file in set(now) & set(pinned.files)})
    if changed:
        raise PreflightError(
            f"{len(changed)} file(s) of {pinned.table!r} were rewritten since the run pinned them: {changed[:3]}",
            fix="start over on the present files with --fresh; a Delta table keeps its versions",
        )
