"""Rows that the driver holds, as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from daybreak import schema
from daybreak.schema import Column


def struct(columns: Iterable[Column]) -> T.StructType:
    """The columns as Spark's own type."""
    parsed = T.StructType.fromDDL(schema.ddl(columns))
    assert isinstance(parsed, T.StructType)  # the stubs say DataType
    return parsed


def frame(spark: SparkSession, rows: Sequence[Sequence[Any]], columns: Iterable[Column]) -> DataFrame:
    """A few rows of so many columns. They cross as one Arrow table and become part of the query itself; of a list,
    Spark would make an RDD, and run a job to read it."""
    wanted = struct(columns)
    values = zip(*rows, strict=True) if rows else [()] * len(wanted)
    held = pa.table({name: pa.array(column) for name, column in zip(wanted.names, values, strict=True)})
    return spark.createDataFrame(held, wanted)
