"""What a driver reads of the staged files: each one once, and what is there now."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from daybreak import local, schema
from daybreak.schema import Column
from daybreak.sink.staging import Receipt, Staging
from daybreak.storage import Storage

COLUMNS = schema.staging([], [])


def staged(shard_id: int, attempt: str, rows: int) -> list[tuple[Any, ...]]:
    """A shard's rows, one of them dead, and its receipt."""
    kinds = [schema.SCORED] * (rows - 1) + [schema.DEAD, schema.RECEIPT]
    told = {"receipt": "{}", "rows_in": rows, "rows_scored": rows - 1, "rows_dead": 1}
    at = {"shard_id": shard_id, "attempt": attempt}
    values = [{**at, "kind": kind, **(told if kind == schema.RECEIPT else {})} for kind in kinds]
    return [tuple(one.get(column.name) for column in COLUMNS) for one in values]


def test_a_staged_file_is_read_once_and_one_that_is_gone_counts_no_more(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, asked = Staging(spark, str(tmp_path), "run"), []
    tally = staging._tally
    monkeypatch.setattr(staging, "_tally", lambda names: asked.append(names) or tally(names))

    def write(*rows: tuple[Any, ...]) -> str:
        before = {file.name for file in staging.storage.files("shards")}
        staging.write(spark.createDataFrame(list(rows), schema.ddl(COLUMNS)).coalesce(1))
        (name,) = {file.name for file in staging.storage.files("shards")} - before
        return name

    assert (staging.receipts(), staging.counts([]), asked) == ([], {}, [])
    first = write(*staged(0, "a", 3))
    assert staging.receipts() == [Receipt(0, "a", 3, 2, 1)]
    second = write(*staged(1, "b", 2), *staged(0, "c", 3))  # shard 0 was scored twice: the first attempt counts
    receipts = staging.receipts()
    assert receipts == [Receipt(0, "a", 3, 2, 1), Receipt(1, "b", 2, 1, 1)]
    counted = staging.counts(receipts)
    assert {shard: (kinds["scored"], kinds["dead"]) for shard, kinds in counted.items()} == {0: (2, 1), 1: (1, 1)}
    assert asked == [{first}, {second}]

    (tmp_path / "staging/run/shards" / first).unlink()
    assert staging.receipts() == [Receipt(0, "c", 3, 2, 1), Receipt(1, "b", 2, 1, 1)]
    assert asked == [{first}, {second}]


@pytest.mark.parametrize("root", ["/", "file:/", "file:///"])
def test_the_root_of_a_store_is_a_folder_like_any_other(spark: SparkSession, root: str) -> None:
    assert Storage(spark, root).exists()
    assert Storage(spark, root).exists("tmp")


def test_rows_of_the_driver_are_part_of_the_query_and_keep_their_values(spark: SparkSession) -> None:
    kinds = {"n": "INT", "big": "BIGINT", "x": "DOUBLE", "text": "STRING", "at": "TIMESTAMP", "never": "STRING"}
    columns = [Column(name, kind, "") for name, kind in kinds.items()]
    at = datetime(2026, 11, 30, 6, 0, 0, 123456, tzinfo=UTC)
    rows = [(1, 2**53 + 1, 0.1, "Größe\n'", at, None), (None, None, None, None, None, None)]
    held = local.frame(spark, rows, columns)
    assert held._jdf.queryExecution().optimizedPlan().toString().startswith("LocalRelation")  # so no job reads them
    told = held.withColumn("at", F.unix_micros("at")).collect()
    assert [tuple(row) for row in told] == [(*rows[0][:4], int(at.timestamp() * 1_000_000), None), rows[1]]
    assert dict(held.dtypes) == {name: kind.lower() for name, kind in kinds.items()}
    empty = local.frame(spark, [], columns)
    assert (empty.count(), empty.dtypes) == (0, held.dtypes)
