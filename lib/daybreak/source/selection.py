"""Choose the rows that need a score, and shape them for the wire to the workers."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from daybreak.schema import NULLS, RESERVED, Column, quoted
from daybreak.source.preflight import Binding, Feature
from daybreak.source.shards import SHARD, SKIP
from daybreak.types import wire

HASH = "input_hash"
_HASH, _HELD_HASH = f"{RESERVED}hash", f"{RESERVED}held_hash"
_COMPLEX = ("array", "struct", "map")


def input_hash(features: Sequence[Feature]) -> SparkColumn:
    """xxhash64 over the model's inputs, and over which of them are null: xxhash64 alone passes over nulls."""
    values = [F.expr(feature.sql) for feature in features]
    plain = [
        _as_json(value) if feature.field.type.startswith(_COMPLEX) else value
        for value, feature in zip(values, features, strict=True)
    ]
    return F.xxhash64(*plain, *(value.isNull() for value in values))


def _as_json(value: SparkColumn) -> SparkColumn:
    """xxhash64 takes no map, and passes over nulls inside a value."""
    return F.to_json(F.struct(value.alias("v")), {"ignoreNullFields": "false"})


def mark_scored(rows: DataFrame, binding: Binding, scored: DataFrame | None) -> DataFrame:
    """Add the column that says whether a row's score in the output still holds.

    ``scored`` has the keys and the ``input_hash`` of the output's rows that the same model and settings scored;
    None selects every row.
    """
    if scored is None:
        return rows.withColumn(SKIP, F.lit(False))
    names = [F.col(quoted(key.name)).alias(f"{RESERVED}held_{i}") for i, key in enumerate(binding.keys)]
    held = scored.select(*names, F.col(HASH).alias(_HELD_HASH))
    hashed = rows.withColumn(_HASH, input_hash(binding.features))
    same = F.col(_HASH) == F.col(_HELD_HASH)
    for i, key in enumerate(binding.keys):
        same &= F.col(quoted(key.name)) == F.col(f"{RESERVED}held_{i}")
    joined = hashed.join(held, on=same, how="left")
    return joined.withColumn(SKIP, F.col(_HELD_HASH).isNotNull()).drop(*held.columns, _HASH)


def on_the_wire(rows: DataFrame, binding: Binding) -> DataFrame:
    """What crosses to a worker: the shard, the keys as ``k0..``, the inputs as ``f0..``, their hash, and no more."""
    sent = rows.where(~F.col(SKIP)).select(
        F.col(SHARD).alias("shard_id"),
        *(_encoded(key).alias(f"k{i}") for i, key in enumerate(binding.keys)),
        *(F.expr(feature.sql).alias(f"f{i}") for i, feature in enumerate(binding.features)),
        input_hash(binding.features).alias(HASH),
    )
    return sent.select(*(column for field in sent.schema for column in _exact(field)))


def _exact(field: T.StructField) -> list[SparkColumn]:
    """A column as pandas takes it without loss. One of 64-bit integers with nulls it makes through float64, and of the
    digits lost it looks at the largest value only; so zeros cross for the nulls, and beside them which they are."""
    column = F.col(field.name)
    if not isinstance(field.dataType, T.LongType) or not field.nullable:
        return [column]
    return [F.coalesce(column, F.lit(0)).alias(field.name), column.isNull().alias(field.name + NULLS)]


def _encoded(key: Column) -> SparkColumn:
    return F.expr(wire(key.type).encode.format(quoted(key.name)))
