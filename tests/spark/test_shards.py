"""Shards on real rows: what they are estimated to cost, and which one is started first."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from daybreak.ops import session
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


EDGES = {
    "boolean": ("true", "false"),
    "long": ("-9223372036854775808", "0"),
    "float": ("CAST('-0.0' AS FLOAT)", "CAST('NaN' AS FLOAT)"),
    "double": ("-0.0D", "CAST('-Infinity' AS DOUBLE)"),
    "string": ("''", "'é\\0'"),
    "binary": ("X''", "X'FF'"),
    "datetime": ("TIMESTAMP '0001-01-01 00:00:00Z'", "TIMESTAMP '9999-12-31 23:59:59.999999Z'"),
    "decimal(38,18)": ("-1BD", "12345678901234567890.123456789012345678BD"),
    "array<double>": ("array(-0.0D, null)", "array(CAST('NaN' AS DOUBLE))"),
    "struct<a:double>": ("named_struct('a', -0.0D)", "named_struct('a', 1D)"),
    "map<string,long>": ("map('a', null)", "map('b', 1L)"),
}


def test_hashes_are_the_same_whether_spark_compiles_or_not(spark: SparkSession) -> None:
    """Else a shard's counts would not reconcile, and ``select: changed`` would score what has not changed."""
    own = spark.newSession()
    one = "element_at(array({}, {}, null), CAST(id + 1 AS INT))"  # by row, or Spark would work it out while planning
    rows = own.range(3).selectExpr(*(f"{one.format(*edges)} AS c{i}" for i, edges in enumerate(EDGES.values())))
    features = [Feature(Field(f"c{i}", kind), f"c{i}", f"c{i}") for i, kind in enumerate(EDGES)]
    keys = [Column(f"c{i}", kind, "") for i, kind in enumerate(EDGES) if "<" not in kind]

    def hashed(settings: dict[str, str], *, compiles: bool) -> list[tuple[int, ...]]:
        for key, value in settings.items():
            own.conf.set(key, value)
        each = [selection.input_hash([feature]) for feature in features]
        frame = rows.select(*each, *(shards.bucket([key], 1 << 30) for key in keys), shards.bucket(keys, 8))
        told = [tuple(row) for row in frame.collect()]
        assert ("*(1)" in frame._jdf.queryExecution().executedPlan().toString()) == compiles
        return told

    interpreted = hashed(session._INTERPRETED, compiles=False)
    assert interpreted == hashed(session._COMPILED, compiles=True)
    assert all(len(set(column)) == 3 for column in list(zip(*interpreted, strict=True))[1 : len(features)])
