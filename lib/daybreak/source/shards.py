"""Cut the input into shards: the unit of scoring, of retry and of resume.

The plan is made once per run and recorded. A shard is a file split where the layout allows it, which needs no
shuffle, and else a hash bucket of the key. Either way a shard is a pure function of pinned input: a second driver,
on a cluster of another size, cuts the same shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from daybreak import local
from daybreak.config import Shards
from daybreak.schema import RESERVED, Column, quoted
from daybreak.settings import settings
from daybreak.source.preflight import Binding, Feature

SHARD, PATH, START, SKIP = (f"{RESERVED}{name}" for name in ("shard", "path", "start", "skip"))
_PLACE, _TODO_PATH, _TODO_START = (f"{RESERVED}{name}" for name in ("place", "todo_path", "todo_start"))
_ROWS, _SKIPPED, _COST = f"{RESERVED}rows", f"{RESERVED}skipped", f"{RESERVED}cost"

_TODO = (
    Column(SHARD, "INT", "the shard"),
    Column(_TODO_PATH, "STRING", "its file, if it is a file split"),
    Column(_TODO_START, "BIGINT", "first byte of the split"),
    Column(_PLACE, "INT", "its place in the order of the tasks"),
)

_UNEVEN = 4
_SPLIT_CONFS = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")


@dataclass(frozen=True)
class Shard:
    """``path`` and ``start`` name the split of a shard that is one; ``skipped`` rows need no score and cost nothing."""

    shard_id: int
    path: str | None
    start: int | None
    rows: int
    skipped: int
    cost: int


@dataclass(frozen=True)
class Plan:
    by: str
    count: int
    split_bytes: int
    reason: str


@dataclass(frozen=True)
class Split:
    path: str
    start: int
    rows: int
    cost: int


def choose(splits: Sequence[Split], wanted: Shards, *, split_bytes: int, selective: bool = False) -> Plan:
    """Decide how to cut. Pure.

    ``auto`` takes the file splits when most of the rows lie in splits of a quarter to four times ``shards.rows``
    and none is larger, none costs more than four times what so many rows cost on average, and ``selective`` (a join
    that would shuffle the rows anyway) is off.
    """
    rows, cost = sum(split.rows for split in splits), sum(split.cost for split in splits)
    buckets = max(1, -(-rows // wanted.rows))

    def by_key(reason: str) -> Plan:
        return Plan("key", buckets, split_bytes, reason)

    def by_files(reason: str) -> Plan:
        return Plan("files", len(splits), split_bytes, reason)

    if wanted.by == "key":
        return by_key("shards.by is key")
    if wanted.by == "files" and not selective:
        return by_files("shards.by is files")
    if selective:
        return by_key("select: changed compares keys, which shuffles the rows anyway")
    largest = max((split.rows for split in splits), default=0)
    fitting = sum(split.rows for split in splits if split.rows * _UNEVEN >= wanted.rows)
    if largest > wanted.rows * _UNEVEN:
        return by_key(f"a file split has {largest} rows, more than {_UNEVEN} times shards.rows ({wanted.rows})")
    dearest = max((split.cost for split in splits), default=0)
    if dearest * rows > wanted.rows * cost * _UNEVEN:
        times = dearest * rows / (wanted.rows * cost)
        return by_key(f"a file split costs {times:.1f} times what shards.rows ({wanted.rows}) rows cost on average")
    if fitting * 2 < rows:
        return by_key(f"most rows lie in file splits of under a quarter of shards.rows ({wanted.rows})")
    return by_files(f"{len(splits)} file splits of up to {largest} rows are near shards.rows ({wanted.rows})")


def split_bytes(spark: SparkSession) -> int:
    """The session's largest split, in bytes; recorded in the plan."""
    jvm_conf = spark._jsparkSession.sessionState().conf()
    return int(jvm_conf.filesMaxPartitionBytes())


@contextmanager
def one_split_a_partition(spark: SparkSession, size: int) -> Iterator[None]:
    """While it lasts, each file split read is a partition of its own: an open cost of a whole partition leaves no
    room in it for a second."""
    with settings(spark, dict.fromkeys(_SPLIT_CONFS, f"{size}b")):
        yield


def with_split(table: DataFrame) -> DataFrame:
    """Add the columns that name a row's file split."""
    meta = table.metadataColumn("_metadata")
    return table.withColumns({PATH: meta["file_path"], START: meta["file_block_start"]})


def cost(features: Sequence[Feature]) -> SparkColumn:
    """The estimated cost of scoring a row: one, and the bytes of its text. Null text has none."""
    text = [F.expr(feature.sql) for feature in features if feature.field.type in ("string", "binary")]
    return sum((F.coalesce(F.octet_length(one), F.lit(0)) for one in text), F.lit(1)).cast("long")


def layout(rows: DataFrame, features: Sequence[Feature]) -> list[Split]:
    """The splits that hold rows, in a fixed order."""
    counted = rows.groupBy(PATH, START).agg(F.count(F.lit(1)), F.sum(cost(features))).collect()
    return sorted((Split(*row) for row in counted), key=lambda split: (split.path, split.start))


def bucket(keys: Sequence[Column], count: int) -> SparkColumn:
    """The shard of a row by its key. A null key has a shard like any other."""
    return F.pmod(F.xxhash64(*(F.col(quoted(key.name)) for key in keys)), F.lit(count)).cast("int")


def cut(rows: DataFrame, plan: Plan, binding: Binding, splits: Sequence[Split]) -> list[Shard]:
    """The shards of the plan that hold rows, with the rows of each, counted from the input itself."""
    if plan.by == "files":
        return [Shard(i, split.path, split.start, split.rows, 0, split.cost) for i, split in enumerate(splits)]
    skipped = F.sum(F.col(SKIP).cast("long")).alias(_SKIPPED)
    costs = F.sum(F.when(F.col(SKIP), 0).otherwise(cost(binding.features))).alias(_COST)
    grouped = rows.groupBy(bucket(binding.keys, plan.count).alias(SHARD))
    counted = grouped.agg(F.count(F.lit(1)).alias(_ROWS), skipped, costs).collect()
    return [
        Shard(row[SHARD], None, None, row[_ROWS], row[_SKIPPED], row[_COST])
        for row in sorted(counted, key=lambda row: row[SHARD])
    ]


def assign(rows: DataFrame, plan: Plan, keys: Sequence[Column], outstanding: Sequence[Shard]) -> DataFrame:
    """The rows of the outstanding shards with their shard, one shard a partition, the dearest first.

    Spark starts tasks in the order of their partitions: what takes longest should not be what starts last. (It sorts
    file splits by their bytes itself.) Rows of finished shards fall out in the join with the (small, broadcast) list of
    what is left.
    """
    dearest_first = sorted(outstanding, key=lambda shard: (-shard.cost, shard.shard_id))
    listed = [(shard.shard_id, shard.path, shard.start, place) for place, shard in enumerate(dearest_first)]
    todo = F.broadcast(local.frame(rows.sparkSession, listed, _TODO))
    if plan.by == "files":
        at = (F.col(PATH) == F.col(_TODO_PATH)) & (F.col(START) == F.col(_TODO_START))
        return rows.join(todo, on=at, how="inner")
    placed = rows.withColumn(SHARD, bucket(keys, plan.count)).join(todo, on=SHARD, how="inner")
    return placed.repartitionById(len(outstanding), F.col(_PLACE))
