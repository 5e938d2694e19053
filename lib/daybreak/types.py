"""The type matrix: what becomes of a column, decided once for each Spark type and each MLflow type.

Pre-flight, the wire to the workers, the gates around the model and ``docs/types.md`` read this table and nothing else:
``python -m daybreak.types > docs/types.md`` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """How a Spark type reaches a model: the SQL that takes it out of the table, and what that does to a value."""

    sql: str
    note: str


@dataclass(frozen=True)
class Kind:
    """One scalar MLflow type: an output's type in Delta, an input's dtype (also where nulls may be), and which
    Spark types feed it."""

    delta: str
    dtype: str
    optional: str
    takes: Mapping[str, Way]


@dataclass(frozen=True)
class Wire:
    """How a key crosses to Python and back: its type on the way, and two SQL templates."""

    type: str
    encode: str = "{}"
    decode: str = "{}"


# -- model inputs and outputs --------------------------------------------------------------------------------------

EXACT, ROUNDED = "exact", "rounded"
NARROWED = "rounded; beyond a float: dead letter"
VALID = "exact; bytes that are no UTF-8 become U+FFFD"


def _cast(to: str, note: str, *spark: str) -> dict[str, Way]:
    return {kind: Way("{}" if kind.upper() == to else f"CAST({{}} AS {to})", note) for kind in spark}


_MICROS = "unix_micros(CAST({} AS TIMESTAMP))"  # pandas ends in 2262, Python's datetime in 9999: a number has no end

KINDS = {
    "boolean": Kind("BOOLEAN", "bool", "boolean", _cast("BOOLEAN", EXACT, "boolean")),
    "integer": Kind("INT", "int32", "Int32", _cast("INT", EXACT, "tinyint", "smallint", "int")),
    "long": Kind("BIGINT", "int64", "Int64", _cast("BIGINT", EXACT, "tinyint", "smallint", "int", "bigint")),
    "float": Kind(
        "FLOAT",
        "float32",
        "float32",
        {
            **_cast("FLOAT", EXACT, "tinyint", "smallint", "float"),
            **_cast("FLOAT", ROUNDED, "int", "bigint", "decimal"),
            **_cast("DOUBLE", NARROWED, "double"),  # a cast to FLOAT would make infinity of 1e300
        },
    ),
    "double": Kind(
        "DOUBLE",
        "float64",
        "float64",
        {
            **_cast("DOUBLE", EXACT, "tinyint", "smallint", "int", "float", "double"),
            **_cast("DOUBLE", ROUNDED, "bigint", "decimal"),
        },
    ),
    "string": Kind("STRING", "object", "object", {"string": Way("make_valid_utf8({})", VALID)}),
    "binary": Kind("BINARY", "object", "object", _cast("BINARY", EXACT, "binary")),
    "datetime": Kind(
        "TIMESTAMP",
        "datetime64[ns]",
        "datetime64[ns]",
        {
            "date": Way(_MICROS, "midnight, UTC"),
            "timestamp": Way(_MICROS, "the instant, in UTC"),
            "timestamp_ntz": Way(_MICROS, "as it is, taken for UTC"),
        },
    ),
}

TENSORS = {
    "bool": "boolean",
    "int8": "integer",
    "int16": "integer",
    "int32": "integer",
    "int64": "long",
    "uint8": "integer",
    "uint16": "integer",
    "uint32": "long",
    "float16": "float",
    "float32": "float",
    "float64": "double",
    "str": "string",
    "object": "string",
    "bytes": "binary",
    "datetime64": "datetime",
}

# -- Spark types that feed no model ----------------------------------------------------------------------------------

UNFIT = {
    "interval": "an interval has no MLflow type; store its length as a number",
    "time": "a time of day has no MLflow type; store it as a number or a string",
    "variant": "a variant holds another type in each row; take the value out with variant_get into a typed column",
    "void": "a void column holds nothing but nulls; give it a type",
    "geometry": "a geometry has no MLflow type; store its WKB as binary",
    "geography": "a geography has no MLflow type; store its WKB as binary",
}
UNFIT_ELSE = "Daybreak knows no MLflow type for it"

# -- keys ------------------------------------------------------------------------------------------------------------

_AS_LONG = Wire("BIGINT", "CAST({} AS BIGINT)", "CAST({} AS %s)")
_AS_TEXT = Wire("STRING", "CAST({} AS STRING)", "CAST({} AS %s)")

KEYS = {
    "boolean": Wire("BOOLEAN"),
    "tinyint": _AS_LONG,
    "smallint": _AS_LONG,
    "int": _AS_LONG,
    "bigint": Wire("BIGINT"),
    "float": _AS_TEXT,
    "double": _AS_TEXT,
    "decimal": Wire("%s"),
    "string": Wire("BINARY", "CAST({} AS BINARY)", "CAST({} AS STRING)"),
    "binary": Wire("BINARY"),
    "date": Wire("BIGINT", "CAST(unix_date({}) AS BIGINT)", "date_from_unix_date(CAST({} AS INT))"),
    "timestamp": Wire("BIGINT", "unix_micros({})", "timestamp_micros({})"),
    "timestamp_ntz": _AS_TEXT,
}
NO_KEY = {
    "array": "an array has no order",
    "map": "a map has no order",
    "struct": "a struct has no order; name its members' columns",
    "variant": "a variant has no order",
    "interval": "an interval is no column of a Delta table",
    "time": "a time of day is no column of a Delta table",
    "string collate": "a collation makes one key of several texts; cast the column to STRING",
}
NO_KEY_ELSE = "it has no order"


def spark_name(simple: str) -> str:
    """The row of the matrix for a Spark type's ``simpleString``: ``decimal`` for ``decimal(10,2)``."""
    found = re.match(r"string collate|\w+", simple)
    name = found.group() if found else simple
    return {"varchar": "string", "char": "string"}.get(name, name)


def wire(kind: str) -> Wire:
    """The wire of a key of a Spark type (its ``simpleString``), which is one of ``KEYS``.

    pandas holds neither an integer column with a null (it turns to float64) nor a time after 2262 in
    nanoseconds, a float key that crossed as a number could not tell null from NaN, and a string may hold bytes
    that are no UTF-8.
    """
    found = KEYS.get(spark_name(kind), Wire(kind))
    return Wire(found.type.replace("%s", kind), found.encode, found.decode.replace("%s", kind))
