from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from mlflow.models import ModelSignature
from mlflow.types import ParamSchema, ParamSpec
from mlflow.types.schema import AnyType, Array, ColSpec, DataType, Map, Object, Property, Schema, TensorSpec

from daybreak.errors import PreflightError
from daybreak.score.signature import Field, Type, model_spec, parse_type

ID = ColSpec(DataType.long, "id")


def signature(outputs: list[Any], inputs: list[Any] | None = None, **kwargs: Any) -> ModelSignature:
    return ModelSignature(inputs=Schema(inputs or [ID]), outputs=Schema(outputs), **kwargs)


def tensor(dtype: str, shape: tuple[int, ...], name: str | None = None) -> TensorSpec:
    return TensorSpec(np.dtype(dtype), shape, name)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([ColSpec(DataType.double)], [("prediction", "DOUBLE")]),
        ([ColSpec(DataType.long), ColSpec(DataType.string)], [("prediction_0", "BIGINT"), ("prediction_1", "STRING")]),
        ([ColSpec(DataType.boolean, "churn")], [("churn", "BOOLEAN")]),
        ([ColSpec(DataType.integer, "i")], [("i", "INT")]),
        ([ColSpec(DataType.binary, "b")], [("b", "BINARY")]),
        ([ColSpec(DataType.datetime, "t")], [("t", "TIMESTAMP")]),
        ([ColSpec(Array(Array(DataType.float)), "m")], [("m", "ARRAY<ARRAY<FLOAT>>")]),
        ([ColSpec(Map(DataType.string), "m")], [("m", "MAP<STRING, STRING>")]),
        (
            [ColSpec(Object([Property("a", DataType.long), Property("b c", DataType.float, False)]), "o")],
            [("o", "STRUCT<`a`: BIGINT, `b c`: FLOAT>")],
        ),
        ([tensor("float32", (-1,))], [("prediction", "FLOAT")]),
        ([tensor("float64", (-1, 1))], [("prediction", "DOUBLE")]),
        ([tensor("float32", (-1, 384))], [("prediction", "ARRAY<FLOAT>")]),
        ([tensor("float16", (-1, 2, 3))], [("prediction", "ARRAY<ARRAY<FLOAT>>")]),
        (
            [
                tensor("int8", (-1,)),
            ][:1],
            [("prediction", "INT")],
        ),
        ([tensor("uint32", (-1,))], [("prediction", "BIGINT")]),
        ([tensor("object", (-1,))], [("prediction", "STRING")]),
        ([tensor("float32", (-1, 2), "a"), tensor("int64", (-1,), "b")], [("a", "ARRAY<FLOAT>"), ("b", "BIGINT")]),
    ],
)
def test_outputs_become_named_spark_columns(outputs: list[Any], expected: list[tuple[str, str]]) -> None:
    spec = model_spec(signature(outputs))
    assert [(field.name, field.ddl) for field in spec.outputs] == expected
    assert spec.output_ddl == ", ".join(f"`{name}` {ddl}" for name, ddl in expected)


def test_inputs_keep_name_type_and_whether_they_are_required() -> None:
    inputs = [ColSpec(DataType.long, "a"), ColSpec(DataType.string, "b", required=False)]
    spec = model_spec(signature([ColSpec(DataType.double)], inputs))
    assert spec.inputs == (Field("a", "long", True), Field("b", "string", False))
    assert (spec.tensor_inputs, spec.by_position) == (False, False)


def test_an_unnamed_tensor_is_taken_by_position_and_keeps_dtype_and_shape() -> None:
    spec = model_spec(signature([ColSpec(DataType.double)], [tensor("float32", (-1, 4))]))
    assert (spec.tensor_inputs, spec.by_position) == (True, True)
    assert spec.inputs[0] == Field("", "array<float>", True, (4,), "<f4")


def test_params_come_with_their_defaults() -> None:
    params = ParamSchema([ParamSpec("k", DataType.long, 3)])
    assert model_spec(signature([ColSpec(DataType.double)], params=params)).params == {"k": 3}


@pytest.mark.parametrize(
    ("given", "lacking"),
    [
        (None, "no signature"),
        (ModelSignature(outputs=Schema([ID])), "no inputs"),
        (ModelSignature(inputs=Schema([ID])), "no outputs"),
    ],
)
def test_without_a_whole_signature_the_error_tells_how_to_log_one(given: Any, lacking: str) -> None:
    with pytest.raises(PreflightError, match=lacking) as caught:
        model_spec(given)
    assert "infer_signature" in str(caught.value)


@pytest.mark.parametrize(
    ("outputs", "named"),
    [
        ([ColSpec(AnyType(), "blob")], "'blob'.*AnyType"),
        ([ColSpec(Array(AnyType()), "blobs")], "'blobs'.*AnyType"),
        ([tensor("complex64", (-1,), "wave")], "'wave'.*complex64"),
        ([tensor("uint64", (-1,), "big")], "'big'.*uint64"),
        ([tensor("float32", (4, 3), "fixed")], "'fixed'.*first dimension"),
        ([ColSpec(DataType.long, 1.5)], "1.5.*neither a text nor an integer"),
        ([ColSpec(DataType.long, 0), ColSpec(DataType.long, "0")], "'0' and '0'"),
        ([ColSpec(DataType.long, "Score"), ColSpec(DataType.long, "score")], "'Score'.*'score'"),
    ],
)
def test_what_has_no_column_type_is_refused_by_name(outputs: list[Any], named: str) -> None:
    with pytest.raises(PreflightError, match=named):
        model_spec(signature(outputs))


def test_spark_vectors_are_refused() -> None:
    from mlflow.types.schema import SparkMLVector

    with pytest.raises(PreflightError, match=r"'v'.*SparkMLVector"):
        model_spec(signature([ColSpec(DataType.double)], [ColSpec(SparkMLVector(), "v")]))


@pytest.mark.parametrize(
    "text",
    ["long", "array<array<float>>", "map<array<string>>", "struct<`a``b>`:long,`c`:struct<`d`:binary?>>"],
)
def test_type_strings_come_back_as_they_went(text: str) -> None:
    assert str(parse_type(text)) == text


def test_a_struct_member_may_have_any_name() -> None:
    type_ = Type("struct", members=(("odd`<,>:?", Type("long"), False),))
    assert parse_type(str(type_)) == type_


@pytest.mark.parametrize("text", ["", "decimal", "array<long", "array<long>>", "long?", "struct<a:long>"])
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"type|expected"):
        parse_type(text)


def test_a_spec_travels_by_pickle() -> None:
    spec = model_spec(signature([ColSpec(DataType.double)]))
    assert pickle.loads(pickle.dumps(spec)) == spec
