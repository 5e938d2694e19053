"""docs/types.md, cell by cell on real runs: what each Spark type is to a model, and each answer of a model in Delta.

Expected values are written by hand. The session is not in UTC, nor are the driver's process and the JVM.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from mlflow.types.schema import Array, ColSpec, DataType, Map, Object, Property, Schema
from models import Witness
from pyspark.sql import SparkSession

from daybreak import score

Make = Callable[..., Any]

# -- inputs ----------------------------------------------------------------------------------------------------------

INF, NAN = float("inf"), float("nan")
LOW_HIGH = {  # a column's Spark type: its lowest and its highest value here, as SQL
    "boolean": ("false", "true"),
    "tinyint": ("-128Y", "127Y"),
    "smallint": ("-32768S", "32767S"),
    "int": ("-2147483648", "2147483647"),
    "bigint": ("-9223372036854775807L", "9223372036854775707L"),
    "float": ("float('-Infinity')", "16777217f"),
    "double": ("-0.1D", "3.4028235E38D"),
    "decimal(38,18)": ("-0.100000000000000000BD", "12345678901234567890.123456789012345678BD"),
    "string": ("''", "'é\U0001f600 \\'x'"),
    "binary": ("X''", "X'00FF'"),
    "date": ("DATE '1677-09-22'", "DATE '2262-04-11'"),
    "timestamp": ("TIMESTAMP '1677-09-22 02:00:00+02:00'", "TIMESTAMP '2262-04-10 23:59:59.999999Z'"),
    "timestamp_ntz": ("TIMESTAMP_NTZ '1900-01-01 00:00:00'", "TIMESTAMP_NTZ '2024-03-31 02:30:00.000001'"),
    "array<int>": ("array()", "array(1, -2147483648)"),
    "array<bigint>": ("array(9223372036854775707L)", "array(1L)"),
    "array<double>": ("array(0.1D, CAST(NULL AS DOUBLE))", "array()"),
    "array<array<string>>": ("array(array('a'), array())", "array()"),
    "map<string,int>": ("map('a', 1)", "map()"),
    "struct<b:int,extra:interval day,A:string,d:double>": (
        "named_struct('b', 7, 'extra', INTERVAL '1' DAY, 'A', 'x', 'd', 1e300D)",
        "named_struct('b', 8, 'extra', NULL, 'A', '', 'd', NULL)",
    ),
    "array<struct<n:bigint>>": ("array(named_struct('n', 9223372036854775707L))", "array()"),
    "map<string,array<bigint>>": ("map('a', array(9223372036854775707L))", "map()"),
}


def at(text: str) -> int:
    return int(np.datetime64(text, "ns").astype("int64"))


REQUIRED, OPTIONAL = "required", "optional"
S = Object([Property("a", DataType.string), Property("b", DataType.long), Property("c", DataType.long, required=False)])
CELLS: list[tuple[str, Any, str, list[Any]]] = [  # Spark type, MLflow type, dtype (and dtype if optional), low and high
    ("boolean", DataType.boolean, "bool boolean", [False, True]),
    ("tinyint", DataType.integer, "int32 Int32", [-128, 127]),
    ("smallint", DataType.integer, "int32 Int32", [-32768, 32767]),
    ("int", DataType.integer, "int32 Int32", [-2147483648, 2147483647]),
    ("tinyint", DataType.long, "int64 Int64", [-128, 127]),
    ("smallint", DataType.long, "int64 Int64", [-32768, 32767]),
    ("int", DataType.long, "int64 Int64", [-2147483648, 2147483647]),
    ("bigint", DataType.long, "int64 Int64", [-9223372036854775807, 9223372036854775707]),
    ("tinyint", DataType.float, "float32", [-128.0, 127.0]),
    ("smallint", DataType.float, "float32", [-32768.0, 32767.0]),
    ("int", DataType.float, "float32", [-2147483648.0, 2147483648.0]),
    ("bigint", DataType.float, "float32", [-9223372036854775808.0, 9223372036854775808.0]),
    ("float", DataType.float, "float32", [-INF, 16777216.0]),
    ("double", DataType.float, "float32", [-0.10000000149011612, 3.4028234663852886e38]),
    ("decimal(38,18)", DataType.float, "float32", [-0.10000000149011612, 12345679395506094080.0]),
    ("tinyint", DataType.double, "float64", [-128.0, 127.0]),
    ("smallint", DataType.double, "float64", [-32768.0, 32767.0]),
    ("int", DataType.double, "float64", [-2147483648.0, 2147483647.0]),
    ("bigint", DataType.double, "float64", [-9223372036854775808.0, 9223372036854775808.0]),
    ("float", DataType.double, "float64", [-INF, 16777216.0]),
    ("double", DataType.double, "float64", [-0.1, 3.4028235e38]),
    ("decimal(38,18)", DataType.double, "float64", [-0.1, 12345678901234567168.0]),
    ("string", DataType.string, "object", ["", "é\U0001f600 'x"]),
    ("binary", DataType.binary, "object", [b"", b"\x00\xff"]),
    ("date", DataType.datetime, "datetime64[ns]", [at("1677-09-22"), at("2262-04-11")]),
    ("timestamp", DataType.datetime, "datetime64[ns]", [at("1677-09-22"), at("2262-04-10T23:59:59.999999")]),
    ("timestamp_ntz", DataType.datetime, "datetime64[ns]", [at("1900-01-01"), at("2024-03-31T02:30:00.000001")]),
    ("array<int>", Array(DataType.integer), "object", [[], [1, -2147483648]]),
    ("array<int>", Array(DataType.double), "object", [[], [1.0, -2147483648.0]]),
    ("array<bigint>", Array(DataType.long), "object", [[9223372036854775707], [1]]),
    ("array<double>", Array(DataType.float), "object", [[0.10000000149011612, NAN], []]),
    ("array<array<string>>", Array(Array(DataType.string)), "object", [[["a"], []], []]),
    ("map<string,int>", Map(DataType.double), "object", [{"a": 1.0}, {}]),
    ("struct<b:int,extra:interval day,A:string,d:double>", S, "object", [{"a": "x", "b": 7}, {"a": "", "b": 8}]),
    ("array<struct<n:bigint>>", Array(Object([Property("n", DataType.long)])), "object", [[{"n": 9223372036854775707}], []]),
    ("map<string,array<bigint>>", Map(Array(DataType.long)), "object", [{"a": [9223372036854775707]}, {}]),
]
