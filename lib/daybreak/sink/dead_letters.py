"""Rows that could not be scored, each with its key, where it failed and why."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from daybreak import schema
from daybreak.schema import Column
from daybreak.sink.staging import decoded_keys
from daybreak.sink.tables import append_once

_SECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"  # to_json itself would stop at milliseconds
_JSON = {"ignoreNullFields": "false", "timestampFormat": f"{_SECONDS}XXX", "timestampNTZFormat": _SECONDS}


def letters(staged: DataFrame, keys: Sequence[Column], *, run_id: str, job: str, window: str) -> DataFrame:
    """The staged dead rows as rows of ``schema.DEAD_LETTERS``."""
    key = F.to_json(F.struct(*decoded_keys(keys)), _JSON)
    named = staged.where(F.col("kind") == schema.DEAD).select(
        F.lit(run_id).alias("run_id"),
        F.lit(job).alias("job"),
        F.lit(window).alias("window"),
        key.alias("key"),
        F.timestamp_micros("scored_us").alias("at"),
        *("shard_id", "phase", "error_class", "message", "attempts", "input"),
    )
    return named.select(*(column.name for column in schema.DEAD_LETTERS))


def write(rows: DataFrame, path: str, *, run_id: str) -> None:
    """Append a run's dead letters; a repetition for the same run does nothing."""
    append_once(rows, path, app=f"daybreak/dead_letters/{run_id}", version=1)
