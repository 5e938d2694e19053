"""The type matrix: what becomes of a column, decided once for each Spark type and each MLflow type.

Pre-flight, the wire to the workers, the gates around the model and ``docs/types.md`` read this table and nothing else:
``python -m daybreak.types > docs/types.md`` prints it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
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


# -- docs/types.md ---------------------------------------------------------------------------------------------------

_DOCUMENT = """# What becomes of a type

Made from [`daybreak/types.py`](../lib/daybreak/types.py) by `python -m daybreak.types > docs/types.md`. The rules
depend on the declared types alone: not on which rows share a batch, nor on the time zone of a session or a machine.
What is not allowed here is refused in pre-flight, before any executor works, with the column and both types.

## From a table's column to a model's input

A dash is refused. Columns that the model does not take may be of any type.

{inputs}

`varchar` and `char` are strings. A decimal of any precision and scale is rounded once. A signature's `array` takes an
array, `map` a map with string keys, `struct` (an MLflow object) a struct, if what is inside is in the table above;
members are taken by name, in any order and case; what the model does not declare stays behind. Refused inside them:
times, and structs or maps in an array of arrays.

These feed no model:

{unfit}

## What reaches the model

{kinds}

A null in a required input is a dead letter, phase `input`, but for floats, where it is NaN. Inside an array, map or
struct a null is NaN where a float stands, `None` in a member that is optional, and else the row is a dead letter. A
datetime before 1677-09-22 or after 2262-04-11, which `datetime64[ns]` cannot hold, is a dead letter.

### Tensors

A named tensor takes one column, of the type below; each dimension beyond the rows' makes it an array (`(-1, 1)` takes a
scalar as well). An unnamed one takes the columns of `input.columns`. Tensors know no optional inputs.

{tensors}

A number out of the dtype's range is a dead letter, and so are another shape than the declared one and a text or bytes
that end in NUL, which numpy would cut. Rows of unequal shape, where -1 allows it, are scored apart.

## From a model's output to the Delta table

{outputs}

A float that is NaN or missing is NULL in the table, alone and inside an array, map or struct; infinity stays. Any other
missing value is a dead letter, phase `postprocess`, unless the signature says that the output is optional: then NULL.
A value of another type is one too, unless it is equal: 2.0 for an integer, 1 for a boolean. So are a text with half a
surrogate pair and a time beyond the years 1 to 9999. An output without a name is `prediction`.

## Keys

Exact to the last digit, and in the output of the type that the table has:

{keys}

A row with a null in its key is a dead letter, phase `key`; a key that names two rows is refused in pre-flight. Not
keys:

{no_keys}
"""


def document() -> str:
    """``docs/types.md``."""
    names = list(dict.fromkeys(name for kind in KINDS.values() for name in kind.takes))
    return _DOCUMENT.format(
        inputs=_table(["column", *KINDS], ([f"`{name}`", *_ways(name)] for name in sorted(names, key=[*KEYS].index))),
        unfit=_listing(UNFIT),
        kinds=_table(
            ["MLflow type", "dtype", "dtype, optional input", "null, optional input"],
            ([f"`{name}`", f"`{kind.dtype}`", f"`{kind.optional}`", _null(kind)] for name, kind in KINDS.items()),
        ),
        tensors=_table(["dtype", "as"], ([f"`{name}`", f"`{kind}`"] for name, kind in TENSORS.items())),
        outputs=_table(
            ["MLflow type", "Delta type"],
            [
                *([f"`{name}`", f"`{kind.delta}`"] for name, kind in KINDS.items()),
                ["array, or tensor of more dimensions", "`ARRAY<...>`"],
                ["map", "`MAP<STRING, ...>`"],
                ["object", "`STRUCT<...>`"],
            ],
        ),
        keys=", ".join(f"`{name}`" for name in KEYS),
        no_keys=_listing(NO_KEY),
    )


def _ways(name: str) -> Iterator[str]:
    return (kind.takes[name].note if name in kind.takes else "-" for kind in KINDS.values())


def _null(kind: Kind) -> str:
    missing = {"boolean": "`NA`", "Int32": "`NA`", "Int64": "`NA`", "object": "`None`", "datetime64[ns]": "`NaT`"}
    return missing.get(kind.optional, "`NaN`")


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _listing(reasons: Mapping[str, str]) -> str:
    return "\n".join(f"- `{name}`: {why}" for name, why in reasons.items())


if __name__ == "__main__":
    sys.stdout.write(document())
