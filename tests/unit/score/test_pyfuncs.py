"""Real MLflow models of each kind through the pipeline, with what MLflow's own enforcement does to them."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pydantic
import pytest
from mlflow.models import ModelSignature, infer_signature
from mlflow.pyfunc import PythonModel
from mlflow.types import ParamSchema, ParamSpec
from mlflow.types.schema import Array, ColSpec, DataType, Map, Object, Property, Schema, TensorSpec

from daybreak.score.model import load
from daybreak.score.pipeline import Pipeline, WindowResult
from daybreak.score.registry import resolve

OUT = [ColSpec(DataType.double)]


def saved(path: Path, model: Any, inputs: list[Any], outputs: list[Any] = OUT, **kwargs: Any) -> Path:
    signature = ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs), **kwargs)
    mlflow.pyfunc.save_model(str(path / "m"), python_model=model, signature=signature, pip_requirements=[])
    return path / "m"


def score(path: Path, window: pd.DataFrame, *, params: Any = None, **options: Any) -> WindowResult:
    _, spec = resolve(str(path))
    (result,) = Pipeline(load(path, spec, params=params), spec, **options).run([window])
    return result


class Recording(PythonModel):
    """Answers the number of columns it saw, and refuses what is not of the dtypes that it was told to expect."""

    def __init__(self, dtypes: dict[str, str]) -> None:
        self.dtypes = dtypes

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        seen = {name: str(dtype) for name, dtype in model_input.dtypes.items()}
        if seen != self.dtypes:
            raise AssertionError(f"saw {seen}")
        model_input["mine"] = 1  # a model may scribble on its input
        return np.full(len(model_input), float(len(seen)))


class Difference(PythonModel):
    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return (model_input.iloc[:, 1] - model_input.iloc[:, 0]).astype("float64")


def test_case_08_inputs_are_chosen_by_name_in_the_signatures_order(tmp_path: Path) -> None:
    path = saved(tmp_path, Difference(), [ColSpec(DataType.long, "a"), ColSpec(DataType.long, "b")])
    result = score(path, pd.DataFrame({"b": [10], "a": [1], "id": [7]}))
    assert result.predictions["prediction"].tolist() == [9.0]


@pytest.mark.parametrize("max_rows", [1, 3, 10])
def test_case_02_nulls_have_one_fate_at_any_batch_size(tmp_path: Path, max_rows: int) -> None:
    inputs = [
        ColSpec(DataType.long, "n"),
        ColSpec(DataType.long, "m", required=False),
        ColSpec(DataType.boolean, "b", required=False),
        ColSpec(DataType.double, "d"),
        ColSpec(DataType.datetime, "t", required=False),
    ]
    dtypes = {"n": "int64", "m": "Int64", "b": "boolean", "d": "float64", "t": "datetime64[ns]"}
    window = pd.DataFrame(
        {
            "n": pd.Series([1] * 9 + [None], dtype="Int64"),
            "m": pd.Series([None, 2] * 5, dtype="Int64"),
            "b": pd.Series([True, None] * 5, dtype=object),
            "d": pd.Series([decimal.Decimal("1.10"), None] * 5, dtype=object),
            "t": pd.Series([pd.Timestamp("2024-01-01"), None] * 5, dtype=object),
        }
    )
    result = score(saved(tmp_path, Recording(dtypes), inputs), window, max_rows=max_rows)
    assert [(f.position, f.phase, f.error_class) for f in result.failures] == [(9, "input", "NullInput")]
    assert result.predictions["prediction"].tolist() == [5.0] * 9


def test_case_05_arrays_and_structs_reach_a_column_model_as_lists_and_dicts(tmp_path: Path) -> None:
    class Nested(PythonModel):
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            assert all(type(v) is list for v in model_input["v"])
            assert all(type(s) is dict for s in model_input["s"])
            return [float(sum(v)) + s["a"] for v, s in zip(model_input["v"], model_input["s"], strict=True)]

    inputs = [
        ColSpec(Array(DataType.float), "v"),
        ColSpec(Object([Property("a", DataType.long)]), "s"),
    ]
    vectors = [np.ones(3, "float32"), [1.0] * 3, np.empty(0), None]
    window = pd.DataFrame({"v": pd.Series(vectors, dtype=object), "s": [{"a": 1}] * 4})
    result = score(saved(tmp_path, Nested(), inputs), window)
    assert result.predictions["prediction"].tolist() == [4.0, 4.0, 1.0]
    assert [(f.position, f.error_class) for f in result.failures] == [(3, "NullInput")]


class Scaled(PythonModel):
    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return model_input["x"] * params["k"]


def test_parameters_reach_the_model(tmp_path: Path) -> None:
    schema = ParamSchema([ParamSpec("k", DataType.double, 2.0)])
    path = saved(tmp_path, Scaled(), [ColSpec(DataType.double, "x")], params=schema)
    window = pd.DataFrame({"x": [1.0]})
    assert score(path, window).predictions["prediction"].tolist() == [2.0]
    assert score(path, window, params={"k": 5.0}).predictions["prediction"].tolist() == [5.0]


def test_parameters_reach_a_model_with_stages_which_take_none(tmp_path: Path) -> None:
    class Staged(Scaled):
        def size(self, rows: pd.DataFrame) -> Any:
            return np.ones(len(rows), dtype="int64")

        def preprocess(self, rows: pd.DataFrame) -> Any:
            return rows["x"].to_numpy()

        def forward(self, batch: Any) -> Any:
            return batch

        def postprocess(self, output: Any) -> Any:
            return output

    schema = ParamSchema([ParamSpec("k", DataType.double, 1.0)])
    path = saved(tmp_path, Staged(), [ColSpec(DataType.double, "x")], params=schema)
    window = pd.DataFrame({"x": [1.0]})
    assert score(path, window).predictions["prediction"].tolist() == [1.0]
    assert score(path, window, params={"k": 5.0}).predictions["prediction"].tolist() == [5.0]


def test_case_10_a_module_missing_while_scoring_is_no_rows_fault(tmp_path: Path) -> None:
    class Lazy(PythonModel):
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            import a_module_that_is_not_there

            return a_module_that_is_not_there

    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        score(saved(tmp_path, Lazy(), [ColSpec(DataType.long, "x")]), pd.DataFrame({"x": [1]}))


def test_a_model_with_type_hints_works(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        "import mlflow\n"
        "class M(mlflow.pyfunc.PythonModel):\n"
        "    def predict(self, model_input: list[str]) -> list[int]:\n"
        "        return [len(text) for text in model_input]\n"
        "mlflow.models.set_model(M())\n"
    )
    mlflow.pyfunc.save_model(str(tmp_path / "m"), python_model=str(tmp_path / "code.py"), pip_requirements=[])
    result = score(tmp_path / "m", pd.DataFrame({"text": ["a", None, "ccc"]}))
    assert result.predictions.iloc[:, 0].tolist() == [1, 3]
    assert [f.position for f in result.failures] == [1]


def test_a_staged_python_model_is_used_by_its_stages(tmp_path: Path) -> None:
    class Staged(PythonModel):
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            raise AssertionError("the stages are there to be used")

        def place(self, *, device: Any, precision: str) -> None:
            self.precision = precision

        def size(self, rows: Any) -> Any:
            return rows["x"].to_numpy()

        def preprocess(self, rows: Any) -> Any:
            return rows["x"].to_numpy()

        def forward(self, batch: Any) -> Any:
            return batch + (self.precision == "fp32")

        def postprocess(self, output: Any) -> Any:
            return pd.DataFrame({"prediction": output})

    result = score(saved(tmp_path, Staged(), [ColSpec(DataType.long, "x")]), pd.DataFrame({"x": [3, 1, 2]}))
    assert result.predictions["prediction"].tolist() == [4.0, 2.0, 3.0]


def test_a_sklearn_pipeline_scores_columns_of_each_kind(tmp_path: Path) -> None:
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    train = pd.DataFrame({"plan": ["a", "b", "a", "b"], "fee": [1.0, np.nan, 3.0, 4.0]})
    columns = make_column_transformer((OneHotEncoder(), ["plan"]), (SimpleImputer(), ["fee"]))
    model = make_pipeline(columns, LogisticRegression()).fit(train, ["no", "yes", "no", "yes"])
    signature = infer_signature(train, model.predict(train))
    mlflow.sklearn.save_model(
        model, str(tmp_path / "m"), signature=signature, pip_requirements=[], serialization_format="cloudpickle"
    )
    window = pd.DataFrame({"fee": [1.0, None, 2.0], "plan": ["a", "b", None]})
    result = score(tmp_path / "m", window)
    assert result.predictions["prediction"].tolist() == ["no", "yes"]
    assert [(f.position, f.error_class) for f in result.failures] == [(2, "NullInput")]


@pytest.mark.parametrize("named", [False, True])
def test_a_pytorch_model_takes_tensors(tmp_path: Path, named: bool) -> None:
    import torch

    class Sum(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = x["v"] if isinstance(x, dict) else x
            return x.sum(dim=1, keepdim=True)

    shape = TensorSpec(np.dtype("float32"), (-1, 2), "v" if named else None)
    signature = ModelSignature(inputs=Schema([shape]), outputs=Schema([TensorSpec(np.dtype("float32"), (-1, 1))]))
    if named:
        path = saved(tmp_path, _SumOfTensor(), [shape], [TensorSpec(np.dtype("float32"), (-1, 1))])
        window = pd.DataFrame({"v": pd.Series([[1, 2], [3, None], [4], np.ones(2)], dtype=object)})
    else:
        mlflow.pytorch.save_model(
            Sum(), str(tmp_path / "m"), signature=signature, pip_requirements=[], serialization_format="pickle"
        )
        path = tmp_path / "m"
        window = pd.DataFrame({"q": [1, 3, None, 1], "p": [2.0, None, 1.0, 1.0]})
    result = score(path, window)
    expected = [3.0, np.nan, 2.0] if named else [3.0, np.nan, np.nan, 2.0]
    np.testing.assert_array_equal(result.predictions["prediction"], expected)
    assert [(f.position, f.error_class) for f in result.failures] == ([(2, "InvalidInput")] if named else [])


class _SumOfTensor(PythonModel):
    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return model_input["v"].sum(axis=1, keepdims=True)


def test_ragged_tensors_are_scored_apart(tmp_path: Path) -> None:
    spec = TensorSpec(np.dtype("float32"), (-1, -1), "v")
    path = saved(tmp_path, _SumOfTensor(), [spec], [TensorSpec(np.dtype("float32"), (-1, 1))])
    window = pd.DataFrame({"v": pd.Series([[1], [1, 2], [3, 4], [1, 2, 3]], dtype=object)})
    result = score(path, window)
    assert result.predictions["prediction"].tolist() == [1.0, 3.0, 7.0, 6.0]
    assert result.failures == []


def test_a_model_that_changes_its_lists_and_raises_changes_no_neighbours_score(tmp_path: Path) -> None:
    class Scribbling(PythonModel):
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            answers = [sum(v) + sum(map(sum, m.values())) for v, m in zip(*map(model_input.get, "vm"), strict=True)]
            for cell, mapping in zip(*map(model_input.get, "vm"), strict=True):
                cell.append(100.0)
                mapping["a"].append(1000.0)
            if any(answer < 0 for answer in answers):
                raise ValueError("negative")
            return answers

    inputs = [ColSpec(Array(DataType.double), "v"), ColSpec(Map(Array(DataType.double)), "m")]
    vectors: list[Any] = [[1.0], [2.0, 3.0], [-9.0], [4.0]]
    window = pd.DataFrame({"v": pd.Series(vectors), "m": [{"a": [0.5]}] * 4})
    result = score(saved(tmp_path, Scribbling(), inputs), window)
    assert result.predictions["prediction"].tolist() == [1.5, 5.5, 4.5]
    assert [(f.position, f.phase) for f in result.failures] == [(2, "forward")]
    assert window["v"].tolist() == [[1.0], [2.0, 3.0], [-9.0], [4.0]]


class Heard(PythonModel):
    """Answers with the parameter ``k`` that reached it."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return [float(params["k"])] * len(model_input)


class HeardInStages(Heard):
    size = preprocess = forward = postprocess = lambda self, rows: rows


PATHS: dict[str, tuple[Any, list[Any]]] = {
    "enforced": (Heard(), [ColSpec(DataType.double, "x")]),
    "not enforced": (Heard(), [ColSpec(DataType.double, "x"), ColSpec(DataType.long, "n", required=False)]),
    "tensor": (Heard(), [TensorSpec(np.dtype("float64"), (-1,), "x")]),
    "stages": (HeardInStages(), [ColSpec(DataType.double, "x")]),
}


@pytest.mark.parametrize("path", PATHS)
def test_a_declared_default_reaches_the_model_on_every_path(path: str, tmp_path: Path) -> None:
    model, inputs = PATHS[path]
    schema = ParamSchema([ParamSpec("k", DataType.double, 0.9), ParamSpec("others", DataType.long, [1], (-1,))])
    folder = saved(tmp_path, model, inputs, params=schema)
    window = pd.DataFrame({"x": [1.0], "n": pd.array([5], dtype="Int64")})
    assert score(folder, window).predictions["prediction"].tolist() == [0.9]
    assert score(folder, window, params={"k": 3}).predictions["prediction"].tolist() == [3.0]


@pytest.mark.parametrize("optional", [False, True])
def test_columns_that_are_numbers_reach_the_model_as_numbers(optional: bool, tmp_path: Path) -> None:
    class Numbered(PythonModel):
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return model_input[1] - model_input[0].astype("float64")

    trained = pd.DataFrame([[1, 10.0], [None, 20.0]] if optional else [[1, 10.0]]).astype({0: "Int64"})
    inputs = infer_signature(trained).inputs.inputs
    assert [spec.name for spec in inputs] == [0, 1]
    if optional:  # MLflow's enforcement is passed by
        inputs[0] = ColSpec(DataType.long, 0, required=False)
    path = saved(tmp_path, Numbered(), inputs, [ColSpec(DataType.double, 7)])
    result = score(path, pd.DataFrame({"0": [3], "1": [10.0]}))
    assert result.predictions["7"].tolist() == [7.0]


class Visit(pydantic.BaseModel):
    city: str
    nights: int
    paid: float | None = None
    tags: list[str] = []


class OfVisits(PythonModel):
    def predict(self, model_input: list[Visit], params: Any = None) -> list[float]:
        return [visit.nights * (-1.0 if visit.paid is None else visit.paid) + len(visit.tags) for visit in model_input]


class OfTexts(PythonModel):
    def predict(self, model_input: list[str], params: Any = None) -> list[str]:
        return [text.upper() for text in model_input]


class OfDicts(PythonModel):
    def predict(self, model_input: list[dict[str, int]], params: Any = None) -> list[int]:
        return [sum(one.values()) for one in model_input]


class OfLists(PythonModel):
    def predict(self, model_input: list[list[float]], params: Any = None) -> list[Visit]:
        return [Visit(city="Oslo", nights=len(one), paid=sum(one)) for one in model_input]


class OfTimes(PythonModel):
    def predict(self, model_input: list[dt.datetime], params: Any = None) -> list[int]:
        return [time.year + (type(time) is dt.datetime) for time in model_input]


def of_numbers(model_input: list[int]) -> list[bool]:
    return [type(number) is int for number in model_input]


VISIT = {"city": "Oslo", "nights": 2, "paid": 1.5, "tags": ["a"]}
HINTS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "pydantic": (OfVisits(), [VISIT, {**VISIT, "paid": float("nan")}, {**VISIT, "tags": []}], [4.0, -1.0, 3.0]),
    "texts": (OfTexts(), ["a", "b"], ["A", "B"]),
    "dicts": (OfDicts(), [{"a": 1, "b": 2}, {}], [3, 0]),
    "lists": (
        OfLists(),
        [[1.0, 2.0], []],
        [
            {"city": "Oslo", "nights": 2, "paid": 3.0, "tags": []},
            {"city": "Oslo", "nights": 0, "paid": 0.0, "tags": []},
        ],
    ),
    "times": (OfTimes(), [pd.Timestamp("2024-01-02")], [2025]),
    "a function": (of_numbers, [1, 2], [True, True]),
}


@pytest.mark.parametrize("hint", HINTS)
def test_a_model_with_a_type_hint_gets_what_it_says(hint: str, tmp_path: Path) -> None:
    model, given, wanted = HINTS[hint]
    mlflow.pyfunc.save_model(str(tmp_path / "m"), python_model=model, pip_requirements=[])
    result = score(tmp_path / "m", pd.DataFrame({"column": given}))
    assert not result.failures
    assert result.predictions["prediction"].tolist() == wanted


def test_a_row_that_a_type_hint_does_not_take_is_a_dead_letter_alone(tmp_path: Path) -> None:
    class Paid(PythonModel):
        def predict(self, model_input: list[Visit], params: Any = None) -> list[str]:
            return [visit.city for visit in model_input]

    mlflow.pyfunc.save_model(str(tmp_path / "m"), python_model=Paid(), pip_requirements=[])
    result = score(tmp_path / "m", pd.DataFrame({"column": [VISIT, {"city": "Rome"}, None]}))
    assert result.predictions["prediction"].tolist() == ["Oslo"]
    assert [failure.position for failure in result.failures] == [1, 2]
