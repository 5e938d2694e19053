"""Random schemas, values, nulls and cuts through the worker's function, held against a row-by-row reference.

Frames cross by Spark's own conversions between Arrow and pandas, both ways, without a JVM. ``make fuzz`` runs many.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow.models import Model, ModelSignature
from mlflow.pyfunc import PyFuncModel
from mlflow.types.schema import Array, ColSpec, DataType, Map, Object, Property, Schema
from pyspark.sql import types as T
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema

from daybreak import schema
from daybreak.score.model import PredictModel
from daybreak.score.pipeline import Pipeline
from daybreak.score.registry import ModelPin
from daybreak.score.signature import Field, model_spec
from daybreak.score.worker import Scorer

EXAMPLES = int(os.environ.get("EXAMPLES", "40"))
EPOCH = dt.datetime(1970, 1, 1)
LONG, DOUBLE, STRING, BINARY = pa.int64(), pa.float64(), pa.string(), pa.binary()


@dataclass(frozen=True)
class Kind:
    """An MLflow type: how it crosses from Spark, and values as the table holds them, nulls inside included."""

    mlflow: Any
    arrow: pa.DataType
    spark: T.DataType
    values: st.SearchStrategy[Any]


INT = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=4)
FLOAT = st.floats(width=32, allow_nan=False)
MICROS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999))
OPTIONAL = [Property("b", DataType.string, required=False), Property("c", DataType.long, required=False)]
STRUCT = Object([Property("a", DataType.long), *OPTIONAL])
A = pa.struct([("a", LONG), ("b", STRING), ("c", LONG)])
S = T.StructType().add("a", T.LongType()).add("b", T.StringType()).add("c", T.LongType())
KINDS = {
    "long": Kind(DataType.long, LONG, T.LongType(), INT),
    "integer": Kind(DataType.integer, pa.int32(), T.IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    "double": Kind(DataType.double, DOUBLE, T.DoubleType(), st.floats(allow_nan=False)),
    "narrowed": Kind(DataType.float, DOUBLE, T.DoubleType(), st.floats(allow_nan=False)),
    "boolean": Kind(DataType.boolean, pa.bool_(), T.BooleanType(), st.booleans()),
    "string": Kind(DataType.string, STRING, T.StringType(), TEXT),
    "binary": Kind(DataType.binary, BINARY, T.BinaryType(), st.binary(max_size=4)),
    "datetime": Kind(DataType.datetime, LONG, T.LongType(), MICROS),
    "longs": Kind(
        Array(DataType.long), pa.list_(LONG), T.ArrayType(T.LongType()), st.lists(st.none() | INT, max_size=3)
    ),
    "floats": Kind(
        Array(DataType.float),
        pa.list_(pa.float32()),
        T.ArrayType(T.FloatType()),
        st.lists(st.none() | FLOAT, max_size=3),
    ),
    "texts": Kind(
        Array(Array(DataType.string)),
        pa.list_(pa.list_(STRING)),
        T.ArrayType(T.ArrayType(T.StringType())),
        st.lists(st.lists(st.none() | TEXT, max_size=2), max_size=3),
    ),
    "struct": Kind(
        STRUCT,
        A,
        S,
        st.fixed_dictionaries({"a": st.none() | INT, "b": st.none() | TEXT, "c": st.none() | INT}),
    ),
    "structs": Kind(
        Array(STRUCT),
        pa.list_(A),
        T.ArrayType(S),
        st.lists(st.fixed_dictionaries({"a": INT, "b": st.none() | TEXT, "c": st.none() | INT}), max_size=2),
    ),
    "map": Kind(
        Map(DataType.long),
        pa.map_(STRING, LONG),
        T.MapType(T.StringType(), T.LongType()),
        st.dictionaries(TEXT, st.none() | INT, max_size=2),
    ),
}
KEYS = {  # a key's type on the wire
    "BIGINT": (LONG, T.LongType(), INT),
    "STRING": (STRING, T.StringType(), TEXT),
    "BINARY": (BINARY, T.BinaryType(), st.binary(max_size=4)),
    "BOOLEAN": (pa.bool_(), T.BooleanType(), st.booleans()),
    "decimal(38,18)": (pa.decimal128(38, 18), T.DecimalType(38, 18), st.decimals("-1e19", "1e19", places=18)),
}
OUTPUTS = [
    ColSpec(DataType.string, "told"),
    ColSpec(DataType.long, "row"),
    ColSpec(Array(DataType.double), "v"),
    ColSpec(DataType.datetime, "at", required=False),
]
OUTPUT_TYPES = [T.StringType(), T.LongType(), T.ArrayType(T.DoubleType()), T.TimestampType()]
STYLES = ["frame", "turned", "indexed", "lists", "dict", "tuple", "records", "arrays"]


# -- the model: works on whole batches --------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """A value of any type as text, the same whether it came through pandas or not."""
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value):
        return "none"
    if isinstance(value, dict):
        return str({name: shown(value[name]) for name in sorted(value)})
    if isinstance(value, list):
        return str([shown(member) for member in value])
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return repr(value)


@dataclass
class Teller:
    """Tells what it saw of each row. Raises on some rows, drops some, answers some with a value that does not fit;
    returns one of the shapes that pyfuncs return, and scribbles on its input."""

    style: str
    raises: frozenset[int]
    drops: frozenset[int]
    wrong: frozenset[int]

    def predict(self, given: pd.DataFrame, params: Any = None) -> Any:
        rows = [int(row) for row in given["row"]]
        columns = [given[name].tolist() for name in given.columns]
        told = ["|".join(map(shown, cells)) for cells in zip(*columns, strict=True)]
        answers = [self._answer(row, text) for row, text in zip(rows, told, strict=True)]
        for cell in (cell for cells in columns for cell in cells if isinstance(cell, list | dict)):
            cell.clear()
        for name in given.columns:
            given[name] = None
        if self.raises & set(rows):
            raise ArithmeticError("as told")
        kept = [i for i, row in enumerate(rows) if row not in self.drops]
        return self._shaped([answers[i] for i in kept], kept)

    def _answer(self, row: int, told: str) -> dict[str, Any]:
        at = None if row % 2 else EPOCH + dt.timedelta(microseconds=row)
        return {"told": "\ud83d" if row in self.wrong else told, "row": row, "v": [row / 3] * (row % 3), "at": at}

    def _shaped(self, answers: list[dict[str, Any]], kept: list[int]) -> Any:
        names = [spec.name for spec in OUTPUTS]
        columns = {name: [answer[name] for answer in answers] for name in names}
        frame = pd.DataFrame({name: pd.Series(columns[name], dtype=object) for name in names})
        match self.style:
            case "turned":
                return frame[names[::-1]].set_axis(kept, axis=0).iloc[::-1]
            case "indexed":
                return frame.set_axis(kept, axis=0)
            case "lists":
                return [[answer[name] for name in names] for answer in answers]
            case "dict":
                return columns
            case "tuple":
                return tuple(columns.values())
            case "records":
                return answers
            case "arrays":
                return {name: np.array([*values, None], dtype=object)[:-1] for name, values in columns.items()}
        return frame


# -- the reference: row by row, on the values of the table ------------------------------------------------------------


def fate(case: Case, row: int) -> tuple[Any, ...]:
    if case.keys[row] is None:
        return ("dead", "key", "NullKey")
    cells = [shown(row)]
    for name, required in case.inputs:
        value = case.cells[name][row]
        if value is None and required and name not in ("double", "narrowed"):
            return ("dead", "input", "NullInput")
        if value is not None and (bad := does_not_fit(name, value)):
            return ("dead", "input", bad)
        cells.append(shown(as_seen(name, value)))
    if row in case.model.raises:
        return ("dead", "forward", "ArithmeticError")
    if row in case.model.drops:
        return ("dead", "postprocess", "NoOutput")
    if row in case.model.wrong:
        return ("dead", "postprocess", "InvalidOutput")
    at = None if row % 2 else EPOCH.replace(tzinfo=dt.UTC) + dt.timedelta(microseconds=row)
    return ("scored", "|".join(cells), row, [row / 3] * (row % 3), at)


def does_not_fit(name: str, value: Any) -> str:
    if name == "datetime":
        fits = dt.datetime(1677, 9, 22) <= value <= dt.datetime(2262, 4, 11)
    elif name == "narrowed":
        fits = abs(value) < 3.4028235677973366e38 or abs(value) == float("inf")
    elif name == "texts":
        fits = all(text is not None for texts in value for text in texts)
    elif name == "struct":
        fits = value["a"] is not None
    else:
        inside = list(value.values()) if name == "map" else value
        fits = name not in ("longs", "map") or None not in inside
    return "" if fits else "InvalidInput"


def as_seen(name: str, value: Any) -> Any:
    if value is not None and name == "narrowed":
        return float(np.float32(value))
    return value


# -- a case: a table, a model, and a cut ------------------------------------------------------------------------------


@dataclass
class Case:
    inputs: list[tuple[str, bool]]
    key: str
    keys: list[Any]
    cells: dict[str, list[Any]]
    model: Teller
    shards: list[list[int]]
    frame: int
    batch: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = draw(st.lists(st.sampled_from(list(KINDS)), unique=True, max_size=4))
    inputs = [(name, draw(st.booleans())) for name in names]
    n = draw(st.integers(1, 24))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        nullable = st.none() | values if draw(st.booleans()) else values
        return draw(st.lists(nullable, min_size=n, max_size=n))

    some = st.frozensets(st.integers(0, n - 1), max_size=2)
    drops = draw(some)
    style = draw(st.sampled_from(["turned", "indexed"] if drops else STYLES))
    model = Teller(style, draw(some), drops, draw(some))
    key = draw(st.sampled_from(list(KEYS)))
    keys, cells = column(KEYS[key][2]), {name: column(KINDS[name].values) for name in names}
    count = draw(st.integers(1, 4))
    placed = draw(st.lists(st.integers(0, count - 1), min_size=n, max_size=n))
    shards = [[row for row in range(n) if placed[row] == shard] for shard in range(count)]
    return Case(inputs, key, keys, cells, model, shards, draw(st.integers(1, n + 1)), draw(st.integers(1, n + 1)))


class Sized(PredictModel):
    """Rows of unequal cost, so that batches are not in the order of the rows."""

    def size(self, rows: pd.DataFrame) -> Any:
        return 1 + rows["row"].to_numpy("int64") * 7 % 5


@dataclass(frozen=True)
class InHand(Scorer):
    """A scorer of a model that is loaded."""

    model: Any = None

    @contextmanager
    def _engine(self, *, isolated: bool) -> Iterator[tuple[Pipeline, Any]]:
        yield Pipeline(self.model, self.spec, tokens=self.tokens), dict


def scorer(case: Case) -> InHand:
    inputs = [ColSpec(DataType.long, "row")]
    inputs += [ColSpec(KINDS[name].mlflow, name, required=required) for name, required in case.inputs]
    signature = ModelSignature(inputs=Schema(inputs), outputs=Schema(OUTPUTS))
    spec = model_spec(signature)
    loaded = Sized(PyFuncModel(Model(signature=signature), case.model), spec)
    pin = ModelPin(*["x"] * len(ModelPin.__dataclass_fields__))
    common = {"tokens": case.batch, "precision": "fp32", "params": {}, "cache_dir": "", "redact": False}
    return InHand(pin=pin, spec=spec, features=spec.inputs, keys=2, **common, model=loaded)  # type: ignore[arg-type]


def frames(case: Case, one: Scorer, shard: int) -> Iterator[pd.DataFrame]:
    """A shard's rows as Spark hands them over."""
    rows = case.shards[shard]
    for start in range(0, len(rows), case.frame):
        part = rows[start : start + case.frame]
        arrow, kind, _ = KEYS[case.key]
        columns: list[tuple[str, T.DataType, pa.Array]] = [
            ("shard_id", T.IntegerType(), pa.array([shard] * len(part), pa.int32())),
            ("k0", kind, pa.array([case.keys[row] for row in part], arrow)),
            ("k1", T.LongType(), pa.array(part, LONG)),
            ("f0", T.LongType(), pa.array(part, LONG)),
        ]
        for i, field in enumerate(one.features[1:], start=1):
            cells = [on_the_wire(field, case.cells[field.name][row]) for row in part]
            columns.append((f"f{i}", KINDS[field.name].spark, pa.array(cells, KINDS[field.name].arrow)))
        columns = [sent for column in columns for sent in exactly(*column)]
        columns.append(("input_hash", T.LongType(), pa.array([-row for row in part], LONG)))
        batch = pa.RecordBatch.from_arrays([values for *_, values in columns], names=[name for name, *_ in columns])
        table = T.StructType([T.StructField(name, type_) for name, type_, _ in columns])
        series = ArrowBatchTransformer.to_pandas(batch, "UTC", table, prefer_int_ext_dtype=True)
        yield pd.concat(series, axis=1)


def exactly(name: str, kind: T.DataType, values: pa.Array) -> list[tuple[str, T.DataType, pa.Array]]:
    """As selection.on_the_wire sends 64-bit integers: zeros for the nulls, and where they are."""
    if not isinstance(kind, T.LongType):
        return [(name, kind, values)]
    return [(name, kind, values.fill_null(0)), (f"{name}{schema.NULLS}", T.BooleanType(), values.is_null())]


def on_the_wire(field: Field, value: Any) -> Any:
    if field.name == "datetime" and value is not None:
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    if field.name == "map" and value is not None:
        return list(value.items())
    return value


def staged(case: Case) -> list[dict[str, Any]]:
    """All shards' rows, as Spark takes them back."""
    one = scorer(case)
    names = [column.name for column in schema.staging(["", ""], [""] * len(OUTPUTS))]
    declared = {column.name: column.type for column in schema.staging(["", ""], [""] * len(OUTPUTS))}
    plain = {"INT": T.IntegerType(), "BIGINT": T.LongType(), "STRING": T.StringType()}
    types = {name: plain[declared[name]] for name in names if declared[name] in plain}
    types |= {"k0": KEYS[case.key][1], "k1": T.LongType()}
    types |= {f"p{i}": type_ for i, type_ in enumerate(OUTPUT_TYPES)}
    table = T.StructType([T.StructField(name, types[name]) for name in names])
    assert to_arrow_schema(table, timezone="UTC").names == names
    rows = []
    for shard in range(len(case.shards)):
        for frame in replace(one)(frames(case, one, shard)):
            batch = PandasToArrowConversion.convert(
                frame, table, timezone="UTC", safecheck=True, arrow_cast=True, assign_cols_by_name=True
            )
            rows += batch.to_pylist()
    return rows


@pytest.fixture(autouse=True, scope="module")
def _far_from_utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        yield
    time.tzset()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_every_row_has_the_fate_of_a_row_by_row_reference_however_it_is_cut(case: Case) -> None:
    rows = staged(case)
    n = len(case.keys)
    receipts = [row for row in rows if row["kind"] == "receipt"]
    assert Counter(row["k1"] for row in rows if row["kind"] != "receipt") == Counter(range(n))
    assert sorted(row["shard_id"] for row in receipts) == [i for i, shard in enumerate(case.shards) if shard]
    assert sum(row["rows_scored"] + row["rows_dead"] for row in receipts) == n
    found: dict[int, tuple[Any, ...]] = {}
    for row in rows:
        if row["kind"] == "receipt":
            continue
        assert (row["k0"], row["input_hash"]) == (case.keys[row["k1"]], -row["k1"])
        assert row["k1"] in case.shards[row["shard_id"]]
        told = ("p0", "p1", "p2", "p3") if row["kind"] == "scored" else ("phase", "error_class")
        found[row["k1"]] = (row["kind"], *(row[name] for name in told))
    assert found == {row: fate(case, row) for row in range(n)}
