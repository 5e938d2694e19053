"""Rows that could not be scored, each with its key, where it failed and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from daybreak import schema
from daybreak.schema import Column, literal
from daybreak.sink.staging import decoded_keys
from daybreak.sink.tables import append_once, retried

_SECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"  # to_json itself would stop at milliseconds
_JSON = {"ignoreNullFields": "false", "timestampFormat": f"{_SECONDS}XXX", "timestampNTZFormat": _SECONDS}


def letters(
    staged: DataFrame, keys: Sequence[Column], *, run_id: str, job: str, window: str, redact: bool
) -> DataFrame:
    """The staged dead rows as rows of ``schema.DEAD_LETTERS``.

    ``redact`` leaves out inputs and messages, also those of shards that were staged before the job said so.
    """
    told = {"message": F.lit(schema.REDACTED), "input": F.lit(None).cast("string")} if redact else {}
    key = F.to_json(F.struct(*decoded_keys(keys)), _JSON)
    named = staged.where(F.col("kind") == schema.DEAD).select(
        F.lit(run_id).alias("run_id"),
        F.lit(job).alias("job"),
        F.lit(window).alias("window"),
        key.alias("key"),
        F.timestamp_micros("scored_us").alias("at"),
        *("shard_id", "phase", "error_class", "message", "attempts", "input"),
    )
    named = named.withColumns(told)
    return named.select(*(column.name for column in schema.DEAD_LETTERS))


def write(rows: DataFrame, path: str, *, run_id: str) -> None:
    """Append a run's dead letters; a repetition for the same run does nothing."""
    append_once(rows, path, app=f"daybreak/dead_letters/{run_id}", version=1)


def redact(spark: SparkSession, path: str, *, run_id: str) -> None:
    """Take inputs and messages out of the letters that a run has written already, if any. The table's older versions
    have them until they are vacuumed."""
    quoting = f"run_id = {literal(run_id)} AND (input IS NOT NULL OR message <> {literal(schema.REDACTED)})"
    blank: dict[str, Any] = {"input": F.lit(None).cast("string"), "message": F.lit(schema.REDACTED)}
    retried(lambda: DeltaTable.forPath(spark, path).update(quoting, blank))
