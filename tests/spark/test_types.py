"""docs/types.md, cell by cell on real runs: what each Spark type is to a model, and each answer of a model in Delta.

Expected values are written by hand. The session is not in UTC, nor are the driver's process and the JVM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.types.schema import Array, ColSpec, DataType, Map, Object, Property, Schema, TensorSpec
from models import Awkward, Tensors, Witness
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from daybreak import score
from daybreak.errors import PreflightError
from daybreak.schema import quoted

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
    ("date", DataType.datetime, "datetime64[ns]", [pd.Timestamp("1677-09-22"), pd.Timestamp("2262-04-11")]),
    (
        "timestamp",
        DataType.datetime,
        "datetime64[ns]",
        [pd.Timestamp("1677-09-22"), pd.Timestamp("2262-04-10T23:59:59.999999")],
    ),
    (
        "timestamp_ntz",
        DataType.datetime,
        "datetime64[ns]",
        [pd.Timestamp("1900-01-01"), pd.Timestamp("2024-03-31T02:30:00.000001")],
    ),
    ("array<int>", Array(DataType.integer), "object", [[], [1, -2147483648]]),
    ("array<int>", Array(DataType.double), "object", [[], [1.0, -2147483648.0]]),
    ("array<bigint>", Array(DataType.long), "object", [[9223372036854775707], [1]]),
    ("array<double>", Array(DataType.float), "object", [[0.10000000149011612, NAN], []]),
    ("array<array<string>>", Array(Array(DataType.string)), "object", [[["a"], []], []]),
    ("map<string,int>", Map(DataType.double), "object", [{"a": 1.0}, {}]),
    ("struct<b:int,extra:interval day,A:string,d:double>", S, "object", [{"a": "x", "b": 7}, {"a": "", "b": 8}]),
    (
        "array<struct<n:bigint>>",
        Array(Object([Property("n", DataType.long)])),
        "object",
        [[{"n": 9223372036854775707}], []],
    ),
    ("map<string,array<bigint>>", Map(Array(DataType.long)), "object", [{"a": [9223372036854775707]}, {}]),
]

# a row of its own for each: the column's Spark type, a value as SQL, and what becomes of it in which cell's words
ODD: list[tuple[str, str, str]] = [
    ("date", "DATE '9999-12-31'", "9999-12-31T00:00:00.000000 is beyond datetime64[ns]"),
    ("timestamp", "TIMESTAMP '9999-12-31 23:59:59.999999Z'", "9999-12-31T23:59:59.999999 is beyond datetime64[ns]"),
    ("timestamp", "TIMESTAMP '0001-01-01 00:00:00Z'", "0001-01-01T00:00:00.000000 is beyond datetime64[ns]"),
    ("timestamp_ntz", "TIMESTAMP_NTZ '9999-12-31 00:00:00'", "9999-12-31T00:00:00.000000 is beyond datetime64[ns]"),
    ("double", "-1e300D", "-1e+300 is out of range for a float"),
    ("array<int>", "array(1, NULL)", "element 1 is null"),
    ("array<double>", "array(1e300D)", "1e+300 is out of range for a float"),
    ("array<array<string>>", "array(array('a'), array('b', NULL))", "element 1 is null"),
    ("map<string,array<bigint>>", "map('a', NULL)", "key 'a' is null"),
    (
        "struct<b:int,extra:interval day,A:string,d:double>",
        "named_struct('b', NULL, 'extra', NULL, 'A', 'x', 'd', 1D)",
        "member 'b' is null",
    ),
]
SCORED_ALL_THE_SAME: list[tuple[str, str, Any, str]] = [  # ... and the cell's MLflow type, and what it saw
    ("float", "float('NaN')", DataType.double, "float64 nan"),
    ("double", "CAST(NULL AS DOUBLE)", DataType.float, "float32 nan"),
    ("double", "double('-Infinity')", DataType.float, "float32 -inf"),
    ("string", "CAST(X'61FF' AS STRING)", DataType.string, "object 'a\ufffd'"),
    ("map<string,int>", "map('a', NULL)", Map(DataType.double), "object {'a': nan}"),
]

KINDS = list(LOW_HIGH)


def row(key: int, **values: str) -> str:
    """A SELECT of one row: the low values, but for those given, in columns ``r0``, ``o0``, ``r1``, ..."""
    cells = []
    for i, (kind, (low, _)) in enumerate(LOW_HIGH.items()):
        for column in (f"r{i}", f"o{i}"):
            cells.append(f"CAST({values.get(column, low)} AS {kind}) AS {column}")
    return f"SELECT {key}L AS id, {', '.join(cells)}, parse_json('1') AS v, INTERVAL '1-2' YEAR TO MONTH AS ym"


def wide() -> str:
    last = {f"{side}{i}": high for i, (_, high) in enumerate(LOW_HIGH.values()) for side in "ro"}
    nulls = {f"o{i}": "NULL" for i in range(len(KINDS))}
    rows = [row(0), row(1, **last), row(2, **nulls)]
    rows += [row(100 + i, **{f"r{i}": "NULL"}) for i in range(len(KINDS))]
    rows += [row(200 + i, **{f"r{KINDS.index(kind)}": sql}) for i, (kind, sql, _) in enumerate(ODD)]
    same = enumerate(SCORED_ALL_THE_SAME)
    rows += [row(300 + i, **{f"r{KINDS.index(kind)}": sql}) for i, (kind, sql, _, _) in same]
    return " UNION ALL ".join(rows)


def name(kind: str, type_: Any, side: str) -> str:
    return f"{kind} as {type_}, {side}"


FAR, LAST = "9999-12-31 23:59:59.999999", np.datetime64("9999-12-31T23:59:59.999999")
BIG = 9223372036854775707
ANSWERS: list[tuple[Any, Any, str, Any]] = [  # MLflow type, a model's answer, its type in Delta, the value there
    (DataType.boolean, True, "boolean", True),
    (DataType.integer, -7, "int", -7),
    (DataType.long, BIG, "bigint", BIG),
    (DataType.float, 0.1, "float", 0.10000000149011612),
    (DataType.double, 0.1, "double", 0.1),
    (DataType.double, NAN, "double", None),
    (DataType.float, -INF, "float", -INF),
    (DataType.string, "é\U0001f600", "string", "é\U0001f600"),
    (DataType.binary, b"\x00\xff", "binary", b"\x00\xff"),
    (DataType.datetime, LAST, "timestamp", FAR),
    (Array(DataType.long), [BIG, 1], "array<bigint>", [BIG, 1]),
    (Array(DataType.double), [0.1, NAN], "array<double>", [0.1, None]),
    (Array(Array(DataType.string)), [["a"], []], "array<array<string>>", [["a"], []]),
    (Array(DataType.datetime), [LAST], "array<timestamp>", f"[{FAR}]"),
    (Map(DataType.long), {"a b": BIG}, "map<string,bigint>", {"a b": BIG}),
    (
        Object([Property("a", DataType.long), Property("b c", DataType.datetime, required=False)]),
        {"a": BIG, "b c": LAST},
        "struct<a:bigint,b c:timestamp>",
        f"{{{BIG}, {FAR}}}",
    ),
    (Array(Map(DataType.boolean)), [{"a": True}], "array<map<string,boolean>>", [{"a": True}]),
]


@pytest.fixture
def far_from_utc(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The session, the JVM and this process in three time zones, none of them UTC."""
    zones = spark._jvm.java.util.TimeZone
    before = zones.getDefault()
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    zones.setDefault(zones.getTimeZone("America/St_Johns"))
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    zones.setDefault(before)
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
def test_every_cell_of_the_matrix_on_one_run(spark: SparkSession, save_model: Make, job: Make, tmp_path: Any) -> None:
    spark.sql(wide()).repartition(1).write.parquet(str(tmp_path / "wide"))
    inputs, columns = [], {}
    for kind, type_, _, _ in CELLS:
        for side in (REQUIRED, OPTIONAL):
            inputs.append(ColSpec(type_, name(kind, type_, side), required=side == REQUIRED))
            columns[inputs[-1].name] = f"{side[0]}{KINDS.index(kind)}"
    outputs = [ColSpec(Map(DataType.string), "saw")]
    outputs += [ColSpec(type_, f"answer {i}") for i, (type_, _, _, _) in enumerate(ANSWERS)]
    outputs += [ColSpec(type_, f"none {i}", required=False) for i, (type_, _, _, _) in enumerate(ANSWERS)]
    answers = {f"answer {i}": answer for i, (_, answer, _, _) in enumerate(ANSWERS)}
    model = save_model(
        Witness({**answers, **{f"none {i}": None for i in range(len(ANSWERS))}}), Schema(inputs), Schema(outputs)
    )
    document = job(
        str(tmp_path / "wide"),
        model,
        input={"format": "parquet", "columns": columns},
        batch={"window_rows": 7, "tokens": 3},
        gates={"max_dead_fraction": 1.0},
    )
    summary = score(document, spark=spark)
    in_utc = spark.newSession()
    in_utc.conf.set("spark.sql.session.timeZone", "UTC")
    published = in_utc.read.format("delta").load(summary.output).drop("scored_at")
    types = {field.name: field.dataType.simpleString() for field in published.schema.fields}
    shown = [f"CAST(`{one}` AS STRING) AS `{one}`" if "timestamp" in types[one] else f"`{one}`" for one in types]
    scored = {one.id: one for one in published.selectExpr(*shown).collect()}
    letters = spark.read.format("delta").load(f"{summary.output}_daybreak/dead_letters").drop("at").collect()
    dead = {json.loads(one.key)["id"]: one for one in letters}
    assert len(scored) + len(letters) == summary.rows_in == 3 + len(KINDS) + len(ODD) + len(SCORED_ALL_THE_SAME)
    assert published.count() == len(scored)
    assert set(scored) & set(dead) == set()

    assert {key: scored[key].saw for key in (0, 1, 2)} == {0: saw(0), 1: saw(1), 2: {**saw(0), **saw(None)}}
    nan = {100 + KINDS.index(kind) for kind in ("float", "double", "decimal(38,18)")}
    null = {key: (one.phase, one.error_class) for key, one in dead.items() if key < 200}
    assert null == dict.fromkeys({100 + i for i in range(len(KINDS))} - nan, ("input", "NullInput"))
    odd = {200 + i: told for i, (_, _, told) in enumerate(ODD)}
    assert {key: odd[key] for key in odd if odd[key] not in dead[key].message} == {}
    assert {dead[key].error_class for key in odd} == {"InvalidInput"}
    for i, (kind, _, type_, told) in enumerate(SCORED_ALL_THE_SAME):
        assert scored[300 + i].saw[name(kind, type_, REQUIRED)] == told

    answered = {i: (types[f"answer {i}"], types[f"none {i}"], scored[0][f"answer {i}"]) for i in range(len(ANSWERS))}
    assert answered == {i: (delta, delta, value) for i, (_, _, delta, value) in enumerate(ANSWERS)}
    assert all(scored[0][f"none {i}"] is None for i in range(len(ANSWERS)))


def saw(place: int | None) -> dict[str, str]:
    """What the model tells of the low or high row, or, without a place, of nulls in the optional inputs."""
    told = {}
    missing = {"float32": "nan", "float64": "nan", "Int32": "<NA>", "Int64": "<NA>", "boolean": "<NA>"}
    for kind, type_, dtypes, values in CELLS:
        required, optional = (dtypes.split() * 2)[:2]
        if place is None:
            none = "NaT" if optional == "datetime64[ns]" else missing.get(optional, "None")
            told[name(kind, type_, OPTIONAL)] = f"{optional} {none}"
        else:
            told[name(kind, type_, REQUIRED)] = f"{required} {values[place]!r}"
            told[name(kind, type_, OPTIONAL)] = f"{optional} {values[place]!r}"
    return told


# -- tensors ---------------------------------------------------------------------------------------------------------

TENSORS: list[
    tuple[str, tuple[int, ...], str, str, str]
] = [  # dtype, shape of a row, column, what it saw of it, in Delta
    ("bool", (), "true", "bool True", "boolean"),
    ("int8", (), "-128Y", "int8 -128", "int"),
    ("int16", (), "-32768S", "int16 -32768", "int"),
    ("int32", (), "2147483647", "int32 2147483647", "int"),
    ("int64", (), "9223372036854775707L", "int64 9223372036854775707", "bigint"),
    ("uint8", (), "255", "uint8 255", "int"),
    ("uint16", (), "65535", "uint16 65535", "int"),
    ("uint32", (), "4294967295L", "uint32 4294967295", "bigint"),
    ("float16", (), "0.1D", "float16 0.0999755859375", "float"),
    ("float32", (), "0.1D", "float32 0.10000000149011612", "float"),
    ("float64", (), "0.1BD", "float64 0.1", "double"),
    ("str", (), "'é'", "<U1 'é'", "string"),
    ("object", (), "'é'", "object 'é'", "string"),
    ("datetime64[ns]", (), "TIMESTAMP '2024-03-31 02:30:00Z'", "datetime64[ns] 1711852200000000000", "timestamp"),
    ("float32", (1,), "1.5D", "float32 [1.5]", "float"),
    ("float32", (2,), "array(1.5D, 2.5D)", "float32 [1.5, 2.5]", "array<float>"),
    ("int8", (-1,), "array(1, 2)", "int8 [1, 2]", "array<int>"),
    ("float64", (1, 2), "array(array(1, 2))", "float64 [[1.0, 2.0]]", "array<array<double>>"),
]


@pytest.mark.usefixtures("far_from_utc")
def test_every_kind_of_tensor_on_one_run(spark: SparkSession, save_model: Make, job: Make, tmp_path: Any) -> None:
    cells = ", ".join(f"{sql} AS t{i}" for i, (_, _, sql, _, _) in enumerate(TENSORS))
    wrong = cells.replace("-128Y AS t1", "128 AS t1"), cells.replace("array(1, 2) AS t16", "array(1, 200) AS t16")
    rows = [f"SELECT 1 AS id, {cells}", *(f"SELECT {i + 2}, {one}" for i, one in enumerate(wrong))]
    spark.sql(" UNION ALL ".join(rows)).write.format("delta").save(str(tmp_path / "tensors"))
    inputs = [TensorSpec(np.dtype(dtype), (-1, *shape), f"t{i}") for i, (dtype, shape, *_) in enumerate(TENSORS)]
    outputs = [TensorSpec(np.dtype("str"), (-1, len(TENSORS)), "saw")]
    outputs += [TensorSpec(one.type, one.shape, f"same {one.name}") for one in inputs]
    document = job(str(tmp_path / "tensors"), save_model(Tensors(), Schema(inputs), Schema(outputs)))
    summary = score({**document, "gates": {"max_dead_fraction": 1.0}}, spark=spark)
    published = spark.read.format("delta").load(summary.output)
    [told] = published.select("saw").collect()
    shapes = [tuple(2 if size < 0 else size for size in shape) for _, shape, *_ in TENSORS]
    assert told.saw == [f"{one[3]} {shape}" for one, shape in zip(TENSORS, shapes, strict=True)]
    types = {field.name: field.dataType.simpleString() for field in published.schema.fields}
    assert [types[f"same t{i}"] for i in range(len(TENSORS))] == [delta for *_, delta in TENSORS]
    letters = spark.read.format("delta").load(f"{summary.output}_daybreak/dead_letters").collect()
    assert {one.key: one.message.split(":")[0] for one in letters} == {
        '{"id":2}': "column 't1'",
        '{"id":3}': "column 't16'",
    }


# -- keys and names --------------------------------------------------------------------------------------------------

HARD = {  # key columns: names that Delta and Spark allow, each with its type and three values that look alike
    "a b": ("boolean", "true", "false", "true"),
    "a.b": ("tinyint", "1Y", "1Y", "1Y"),
    "a-b": ("smallint", "1S", "1S", "1S"),
    "select": ("int", "1", "1", "1"),
    "GROUP": ("bigint", "9223372036854775707L", "9223372036854775706L", "9223372036854775705L"),
    "`": ("float", "float('NaN')", "0.1f", "0.1f"),
    "é 😀": ("double", "0.1D", "0.30000000000000004D", "0.3D"),
    "1st": ("decimal(38,18)", *(f"12345678901234567890.12345678901234567{i}BD" for i in range(3))),
    "a'b": ("string", "'x'", "'X'", "CAST(X'FF61' AS STRING)"),
    'a"b': ("binary", "X''", "X'00'", "X'FF'"),
    "{x}": ("date", "DATE '9999-12-31'", "DATE '0001-01-01'", "DATE '1582-10-15'"),
    " pad ": ("timestamp", *(f"TIMESTAMP '9999-12-31 23:59:59.99999{i}Z'" for i in range(3))),
    "k0": ("timestamp_ntz", *(f"TIMESTAMP_NTZ '9999-12-31 23:59:59.99999{i}'" for i in range(3))),
}


@pytest.mark.usefixtures("far_from_utc")
def test_keys_of_every_type_stay_exact_under_any_name(
    spark: SparkSession, save_model: Make, job: Make, tmp_path: Any
) -> None:
    selects = []
    for i in range(3):
        cells = [f"CAST({values[i]} AS {kind}) AS {quoted(key)}" for key, (kind, *values) in HARD.items()]
        selects.append(f"SELECT {', '.join(cells)}, {i}.5D AS `in.put``s x`, '{i}' AS `ü;=,` , 1 AS `and`")
    null = selects[0].replace("CAST(1 AS int) AS `select`", "CAST(NULL AS int) AS `select`")
    path = str(tmp_path / "hard")

    def write(*rows: str) -> None:
        table = spark.sql(" UNION ALL ".join(rows)).coalesce(1).write.format("delta").mode("overwrite")
        table.option("delta.columnMapping.mode", "name").save(path)

    inputs = Schema([ColSpec(DataType.double, "in.put`s x"), ColSpec(DataType.string, "Ü;=,")])
    outputs = Schema([ColSpec(DataType.double, "y.`z` =; {ü}\n"), ColSpec(DataType.string, "from")])
    where = "`and` = 1 AND `a.b` = 1 AND `a'b` IS NOT NULL AND ` pad ` > '2000-01-01'"
    document = job(
        path,
        save_model(Awkward(), inputs, outputs),
        input={"key": [*[*HARD][:-1], "K0"], "where": where},
        gates={"max_dead_fraction": 1.0},
        shards={"by": "key", "rows": 1},
    )
    write(*selects, null, selects[2])
    with pytest.raises(PreflightError, match=r"names more than one row:\n  - .*9999-12-31.* \(2 rows\)") as twins:
        score(document, spark=spark)
    assert "9223372036854775705" in str(twins.value)

    write(*selects, null)
    for _ in range(2):  # the second MERGE finds every key again
        summary = score(document, spark=spark)
        assert (summary.rows_scored, summary.rows_dead) == (3, 1)
    published = spark.read.format("delta").load(summary.output)
    keys = [F.col(quoted(key)) for key in HARD]
    source = spark.read.format("delta").load(path).where("`select` IS NOT NULL")
    assert published.select(*keys).exceptAll(source.select(*keys)).count() == 0
    assert published.count() == 3
    assert [field.dataType.simpleString() for field in published.schema.fields[: len(HARD)]] == [
        kind for kind, *_ in HARD.values()
    ]
    echoed = published.select(*(F.col(quoted(one)) for one in outputs.input_names())).collect()
    assert {tuple(row) for row in echoed} == {(i + 0.5, str(i)) for i in range(3)}
    letter = json.loads(spark.read.format("delta").load(f"{summary.output}_daybreak/dead_letters").first().key)
    assert letter["select"] is None
    assert (letter["GROUP"], letter[" pad "], letter["k0"]) == (
        BIG,
        "9999-12-31T23:59:59.999990Z",
        "9999-12-31T23:59:59.999990",
    )
