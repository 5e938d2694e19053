"""The type matrix without a run: which cells are open, what the others are refused with, and docs/types.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from daybreak import types
from daybreak.config import Input
from daybreak.errors import PreflightError
from daybreak.score.signature import Field, ModelSpec
from daybreak.source import preflight

REPO = Path(__file__).parents[2]
SPARK: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(),
    "smallint": T.ShortType(),
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "decimal": T.DecimalType(38, 18),
    "string": T.StringType(),
    "varchar": T.VarcharType(5),
    "char": T.CharType(5),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "interval": T.DayTimeIntervalType(),
    "interval year": T.YearMonthIntervalType(),
    "interval calendar": T.CalendarIntervalType(),
    "time": T.TimeType(),
    "variant": T.VariantType(),
    "void": T.NullType(),
    "geometry": T.GeometryType(4326),
    "geography": T.GeographyType(4326),
    "array": T.ArrayType(T.IntegerType()),
    "map": T.MapType(T.StringType(), T.IntegerType()),
    "struct": T.StructType([T.StructField("a", T.IntegerType())]),
}
SCALARS = "boolean integer long float double string binary datetime"
MLFLOW = [*SCALARS.split(), "array<long>", "map<long>", "struct<`a`:long>"]
OPEN = {  # written by hand: what each MLflow type takes, and nothing else
    "boolean": "boolean",
    "integer": "tinyint smallint int",
    "long": "tinyint smallint int bigint",
    "float": "tinyint smallint int bigint float double decimal",
    "double": "tinyint smallint int bigint float double decimal",
    "string": "string varchar char",
    "binary": "binary",
    "datetime": "date timestamp timestamp_ntz",
    "array<long>": "array",
    "map<long>": "map",
    "struct<`a`:long>": "struct",
}
NO_KEYS = "interval time variant void geometry geography array map struct"


def bind(kind: T.DataType, type_: str, *, required: bool = True) -> preflight.Binding:
    table = T.StructType([T.StructField("id", T.LongType()), T.StructField("x", kind)])
    spec = ModelSpec((Field("x", type_, required),), (Field("prediction", "double"),))
    return preflight.bind(table, Input(table="t", key=["id"]), spec)


def keyed(kind: T.DataType) -> preflight.Binding:
    table = T.StructType([T.StructField("x", kind), T.StructField("n", T.LongType())])
    return preflight.bind(table, Input(table="t", key=["x"]), ModelSpec((Field("n", "long"),), (Field("y", "long"),)))


@pytest.mark.parametrize("type_", MLFLOW)
@pytest.mark.parametrize("spark", SPARK)
def test_each_cell_is_open_or_refused_with_both_types(spark: str, type_: str) -> None:
    given = SPARK[spark]
    for required in (True, False):
        if spark in OPEN[type_].split():
            assert [feature.column for feature in bind(given, type_, required=required).features] == ["x"]
        else:
            with pytest.raises(PreflightError) as refusal:
                bind(given, type_, required=required)
            assert f"column 'x' is {given.simpleString()}, and the model's input 'x' is {type_}: " in str(refusal.value)


@pytest.mark.parametrize(
    ("spark", "told"),
    [
        ("variant", "variant_get"),
        ("interval", "as a number"),
        ("void", "give it a type"),
        ("time", "time of day"),
    ],
)
def test_what_feeds_no_model_is_refused_with_a_way_out(spark: str, told: str) -> None:
    with pytest.raises(PreflightError, match=told):
        bind(SPARK[spark], "string")


@pytest.mark.parametrize("spark", SPARK)
def test_a_key_is_of_a_type_that_has_an_order_and_a_place_in_delta(spark: str) -> None:
    if spark.split()[0] not in NO_KEYS.split():
        assert [key.name for key in keyed(SPARK[spark]).keys] == ["x"]
    else:
        with pytest.raises(PreflightError, match=r"key column 'x' is of type .*: .*A key is of boolean, "):
            keyed(SPARK[spark])


def test_a_collated_key_is_refused() -> None:
    with pytest.raises(PreflightError, match="makes one key of several texts"):
        keyed(T.StringType("UTF8_LCASE"))


def member(*fields: tuple[str, T.DataType]) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


LONG, STRING, TIME = T.LongType(), T.StringType(), T.TimestampType()
NESTED: list[tuple[T.DataType, str, str]] = [
    (T.ArrayType(STRING), "array<long>", "string is no long"),
    (STRING, "array<string>", "string is no array"),
    (T.ArrayType(TIME), "array<datetime>", "a datetime inside"),
    (T.MapType(STRING, TIME), "map<datetime>", "a datetime inside"),
    (member(("a", T.DateType())), "struct<`a`:datetime>", "a datetime inside"),
    (T.MapType(LONG, LONG), "map<long>", "no map with keys of type string"),
    (member(("b", LONG)), "struct<`a`:long>", "no member 'a'"),
    (member(("b", LONG)), "struct<`a`:long?>", "none of the members"),
    (member(("a", STRING)), "struct<`a`:long>", "string is no long"),
    (T.ArrayType(T.ArrayType(member(("a", LONG)))), "array<array<struct<`a`:long>>>", "an array of arrays of structs"),
    (T.ArrayType(T.ArrayType(T.MapType(STRING, LONG))), "array<array<map<long>>>", "an array of arrays of structs"),
    (T.MapType(STRING, T.ArrayType(T.VariantType())), "map<array<string>>", "variant_get"),
]


@pytest.mark.parametrize(("kind", "type_", "told"), NESTED)
def test_case_05_what_does_not_fit_inside_a_value_is_refused(kind: T.DataType, type_: str, told: str) -> None:
    with pytest.raises(PreflightError, match=told):
        bind(kind, type_)


def test_members_are_taken_by_name_and_left_out_if_they_are_optional() -> None:
    given = member(("B", LONG), ("other", T.VariantType()), ("a'`", T.ArrayType(T.DoubleType())))
    [feature] = bind(given, "struct<`a'```:array<float>,`b`:double,`c`:long?>").features
    first = "CAST(X'612760' AS STRING)"  # a'`, in a form that no setting reads in another way
    assert feature.sql == f"IF(`x` IS NULL, NULL, named_struct({first}, `x`.`a'```, 'b', CAST(`x`.`B` AS DOUBLE)))"


def test_the_matrix_in_docs_is_of_this_code() -> None:
    kept = (REPO / "docs" / "types.md").read_text()
    assert kept == types.document(), "run: python -m daybreak.types > docs/types.md"


def test_the_document_has_every_type() -> None:
    text = types.document()
    every: Any = [*types.KINDS, *types.KEYS, *types.TENSORS, *types.UNFIT, *types.NO_KEY]
    assert [name for name in every if f"`{name}`" not in text and f" {name} |" not in text] == []
