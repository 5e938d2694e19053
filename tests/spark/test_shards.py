"""Shards on real rows: what they are estimated to cost, and which one is started first."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from daybreak.schema import Column
from daybreak.score.signature import Field
from daybreak.source import selection, shards
from daybreak.source.preflight import Binding, Feature


def test_the_dearest_shard_is_started_first(spark: SparkSession) -> None:
    long, skipped = 7, 8
    rows = spark.range(40).select(
        "id",
        F.when(F.col("id") == long, F.repeat(F.lit("é"), 5000)).when(F.col("id") > 1, "text").alias("words"),
        (F.col("id") == skipped).alias(shards.SKIP),
    )
    key = (Column("id", "bigint", ""),)
    binding = Binding(
        key, (Feature(Field("words", "string"), "words", "words"), Feature(Field("n", "long"), "id", "id"))
    )
    plan = shards.Plan("key", 4, 1, "")

    cut = shards.cut(rows, plan, binding, [])
    assert sum(shard.cost for shard in cut) == 39 + 36 * len("text") + 2 * 5000
    placed = shards.assign(rows, plan, key, cut).select("id", shards.SHARD, F.spark_partition_id().alias("place"))
    first = {row["place"]: row[shards.SHARD] for row in placed.collect()}
    assert [first[place] for place in range(4)] == [
        shard.shard_id for shard in sorted(cut, key=lambda shard: shard.cost, reverse=True)
    ]
    assert placed.where(f"id = {long}").collect()[0]["place"] == 0


def test_a_hash_of_inputs_knows_which_of_them_are_null(spark: SparkSession) -> None:
    features = [Feature(Field(name, "long"), name, name) for name in "ab"]
    rows = [(1, None), (None, 1), (1, 1), (None, None), (0, None), (None, 0)]
    hashed = spark.createDataFrame(rows, "a bigint, b bigint").select(selection.input_hash(features)).collect()
    assert len(set(hashed)) == len(rows)
