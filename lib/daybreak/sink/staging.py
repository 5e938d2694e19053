"""Staging: each finished shard's file becomes durable by itself, with its receipt as the last row.

The files are written by Spark's own Parquet writer under file output committer v2, which renames a task's file
into place when the task commits and not when the job does. Spark's OutputCommitCoordinator lets one attempt of a
task commit. So what survives a killed driver is whole shards, and a shard is done when its receipt is there.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from daybreak import local, schema
from daybreak.errors import DaybreakError
from daybreak.schema import Column, quoted
from daybreak.storage import Storage
from daybreak.types import wire

_COUNTS = ("rows_in", "rows_scored", "rows_dead")
PER_TASK = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass(frozen=True)
class Receipt:
    """What one attempt at a shard did, in its own words. ``facts`` holds seconds by stage, tokens and the device."""

    shard_id: int
    attempt: str
    rows_in: int
    rows_scored: int
    rows_dead: int
    facts: dict[str, Any] = field(default_factory=dict)


class Staging:
    """The staged files of one run: ``staging/<run>/plan`` and ``staging/<run>/shards`` below the state folder."""

    def __init__(self, spark: SparkSession, state: str, run_id: str) -> None:
        self.spark = spark
        self.storage = Storage(spark, f"{state}/staging/{run_id}")
        self._tallies: dict[str, list[Row]] = {}

    # -- the plan

    def write_plan(self, shards: Sequence[Any]) -> None:
        rows = [tuple(getattr(shard, column.name) for column in schema.PLAN) for shard in shards]
        frame = local.frame(self.spark, rows, schema.PLAN).coalesce(1)
        frame.write.mode("overwrite").parquet(self.storage.at("plan"))

    def read_plan(self) -> list[dict[str, Any]]:
        if not self.storage.exists("plan"):
            raise DaybreakError(
                f"the run has no plan in {self.storage.root}: its staged files were removed",
                fix="--fresh starts a new run; retention in the job file says how long staged files are kept",
            )
        plan = self.spark.read.schema(schema.ddl(schema.PLAN)).parquet(self.storage.at("plan"))
        return sorted((row.asDict() for row in plan.collect()), key=lambda shard: shard["shard_id"])

    # -- the shards

    def write(self, rows: DataFrame) -> None:
        """Run the job: one task, one shard, one file. Blocks until the last shard is staged."""
        rows.write.options(**PER_TASK).mode("append").parquet(self.storage.at("shards"))

    def receipts(self) -> list[Receipt]:
        """One receipt a finished shard. Of several attempts that finished one, the first by name counts."""
        told = (row for row in self._tallied() if row.kind == schema.RECEIPT)
        found = sorted(told, key=lambda row: (row.shard_id, row.attempt))
        winners = {row.shard_id: row for row in reversed(found)}
        return [_receipt(winners[shard_id]) for shard_id in sorted(winners)]

    def rows(self, receipts: Iterable[Receipt], key_types: Sequence[str], predictions: Sequence[str]) -> DataFrame:
        """The scored and dead rows of the attempts that count."""
        attempts = local.frame(self.spark, [(receipt.attempt,) for receipt in receipts], [schema.ATTEMPT])
        staged = self._read(key_types, predictions).where(F.col("kind") != schema.RECEIPT)
        return staged.join(F.broadcast(attempts), on="attempt", how="left_semi")

    def counts(self, receipts: Iterable[Receipt]) -> dict[int, dict[str, int]]:
        """Rows of each kind that are staged for each shard: counted, not believed from a receipt."""
        attempts, shards = {receipt.attempt for receipt in receipts}, defaultdict[int, Counter[str]](Counter)
        for row in self._tallied():
            if row.attempt in attempts:
                shards[row.shard_id][row.kind] += row.rows
        return {shard_id: dict(counted) for shard_id, counted in shards.items()}

    def _tallied(self) -> list[Row]:
        """What each staged file holds, by attempt. A file never changes, so a driver reads it once."""
        there = {file.name for file in self.storage.files("shards")}
        if new := there - self._tallies.keys():
            told = defaultdict[str, list[Row]](list)
            for row in self._tally(new).collect():
                told[row.file].append(row)
            self._tallies.update({name: told[name] for name in new})
        return [row for name in sorted(there) for row in self._tallies[name]]

    def _tally(self, names: set[str]) -> DataFrame:
        """Rows of each kind by file and attempt; a receipt is a kind of one row, told in full."""
        staged = self._read((), ())
        staged = staged.withColumn("file", staged.metadataColumn("_metadata")["file_name"])
        if self._tallies:
            staged = staged.where(F.col("file").isin(names))
        alike = ("file", "attempt", "shard_id", "kind", *_COUNTS, "receipt")
        return staged.groupBy(*alike).agg(F.count(F.lit(1)).alias("rows"))

    def _read(self, key_types: Sequence[str], predictions: Sequence[str]) -> DataFrame:
        columns = schema.staging(key_types, predictions)
        return self.spark.read.schema(schema.ddl(columns)).parquet(self.storage.at("shards"))


class Watch:
    """Counts finished shards as their files appear, from the files' footers: no Spark job, so no wait for a slot."""

    def __init__(self, staging: Staging) -> None:
        self._storage = staging.storage
        self._seen: dict[str, dict[str, int]] = {file.path: {} for file in self._storage.files("shards")}

    def poll(self) -> dict[str, int]:
        """Shards finished since the watch began, and the sums of their receipts."""
        for file in self._storage.files("shards"):
            if file.path not in self._seen:
                self._seen[file.path] = self._storage.largest(file.path, _COUNTS)
        counted = [counts for counts in self._seen.values() if counts]
        return {"shards": len(counted), **{name: sum(one.get(name, 0) for one in counted) for name in _COUNTS}}


def decoded_keys(keys: Sequence[Column]) -> list[Any]:
    """The keys of staged rows under their own names and in their own types."""
    crossed = [F.expr(wire(key.type).decode.format(quoted(f"k{i}"))) for i, key in enumerate(keys)]
    return [column.cast(key.type).alias(key.name) for column, key in zip(crossed, keys, strict=True)]


def _receipt(row: Row) -> Receipt:
    return Receipt(row.shard_id, row.attempt, row.rows_in, row.rows_scored, row.rows_dead, json.loads(row.receipt))
