"""What `precision: auto` comes to: the decision by its numbers, and with real models on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel
from mlflow.types.schema import ColSpec, DataType, Schema

from daybreak.errors import ModelLoadError
from daybreak.score import device, model
from daybreak.score.model import load
from daybreak.score.precision import TOLERANCE, Choice, compare, decide, within
from daybreak.score.registry import resolve

NAN = float("nan")
COMPARED = [
    ([1.0, 2.0], [1.0, 2.0], (1.0, 0.0)),
    ([0.0, 0.0], [0.0, 0.0], (1.0, 0.0)),
    ([0.0, 4.0], [3.0, 4.0], (0.8, 0.75)),
    ([1.0, 1.0], [-1.0, -1.0], (-1.0, 2.0)),
    ([[1.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [2.0, 0.0]], (0.0, 1.0)),  # of vectors the worst row counts
    ([[1.0], []], [[1.0], []], (1.0, 0.0)),
    ([[1.0, 2.0]], [[1.0]], (0.0, float("inf"))),
    (["a", "b"], ["a", "b"], (1.0, 0.0)),
    (["a", "b"], ["a", "c"], (0.0, float("inf"))),
    ([1.0, 2.0], [1.0], (0.0, float("inf"))),
    ([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [NAN, NAN]], (NAN, NAN)),  # in any row
    ([[1.0, 0.0], [0.0, 1.0]], [[NAN, NAN], [0.0, 1.0]], (NAN, NAN)),
    ([1.0, 2.0], [1.0, NAN], (NAN, NAN)),
]


@pytest.mark.parametrize(("exact", "rounded", "expected"), COMPARED, ids=str)
def test_the_worst_cosine_and_difference_are_told(exact: Any, rounded: Any, expected: Any) -> None:
    frames = [pd.DataFrame({"sure": [1.0] * len(values), "y": values}) for values in (exact, rounded)]
    assert compare(*frames) == pytest.approx(expected, nan_ok=True)
    assert within(TOLERANCE, *compare(*frames)).precision == "bf16" or expected != (1.0, 0.0)


@pytest.mark.parametrize(
    ("cosine", "difference", "precision"),
    [(0.995, 0.05, "bf16"), (0.9949, 0.0, "fp32"), (1.0, 0.051, "fp32"), (NAN, 0.0, "fp32"), (1.0, NAN, "fp32")],
)
def test_bf16_is_taken_within_the_tolerance_only(cosine: float, difference: float, precision: str) -> None:
    choice = within(TOLERANCE, cosine, difference)
    assert choice.precision == precision
    assert f"{cosine:.5f}" in choice.reason


class Rounding(PythonModel):
    """A staged model that is off by a part in its second precision; it counts how often it is loaded."""

    def __init__(self, off: float, tolerance: dict[str, float] | None = None) -> None:
        self.off = off
        self.precision, self.device = "", "cpu"
        if tolerance is not None:
            self.tolerance = tolerance

    def place(self, *, device: str | None, precision: str) -> None:
        if precision == "bf16" and self.off < 0:
            raise NotImplementedError("no such kernel")
        self.precision = precision

    def size(self, rows: Any) -> Any:
        return np.ones(len(rows), dtype=np.int64)

    def preprocess(self, rows: Any) -> Any:
        return rows["x"].to_numpy()

    def forward(self, batch: Any) -> Any:
        return batch * (1 + self.off * (self.precision == "bf16"))

    def postprocess(self, output: Any) -> Any:
        return pd.DataFrame({"y": output})

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return self.postprocess(self.forward(self.preprocess(model_input)))


class Plain(PythonModel):
    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return model_input[["x"]].rename(columns={"x": "y"})


def chosen(path: Path, python_model: Any, *, example: bool = True) -> Choice:
    mlflow.pyfunc.save_model(
        str(path),
        python_model=python_model,
        signature=ModelSignature(Schema([ColSpec(DataType.double, "x")]), Schema([ColSpec(DataType.double, "y")])),
        input_example=pd.DataFrame({"x": [1.0, 2.0]}) if example else None,
        pip_requirements=[],
    )
    pin, spec = resolve(str(path))
    return decide(pin, spec, cache_dir="unused")


@pytest.fixture
def with_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_bf16", lambda _: True)


@pytest.mark.usefixtures("with_bf16")
def test_auto_is_bf16_where_the_model_bears_it(tmp_path: Path) -> None:
    choice = chosen(tmp_path / "m", Rounding(0.03125))
    assert (choice.precision, choice.cosine, choice.difference) == ("bf16", pytest.approx(1.0), 0.03125)
    assert [one.precision for one in model._LOADED.values()] == ["bf16"]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("with_bf16")
@pytest.mark.parametrize(
    ("python_model", "reason"),
    [
        (Rounding(0.0625), "too far from fp32.*6.25%.*at most 5.00% are tolerated"),
        (Rounding(0.03125, {"difference": 0.03}), "too far from fp32.*at most 3.00% are tolerated"),
        (Rounding(-1.0), "fails in bf16.*no such kernel"),
        (Plain(), "no choice of precision"),
    ],
    ids=["far", "strict", "broken", "plain"],
)
def test_auto_is_fp32_where_it_does_not_and_says_why(tmp_path: Path, python_model: Any, reason: str) -> None:
    choice = chosen(tmp_path / "m", python_model)
    assert choice.precision == "fp32"
    assert pd.Series([choice.reason]).str.contains(reason).all(), choice.reason


@pytest.mark.usefixtures("with_bf16")
def test_auto_is_fp32_without_an_example_to_compare_on(tmp_path: Path) -> None:
    choice = chosen(tmp_path / "m", Rounding(0.0), example=False)
    assert choice == Choice("fp32", "the model was logged without an input example to compare bf16 on")


def test_auto_is_fp32_where_the_device_has_no_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_bf16", lambda _: False)
    choice = chosen(tmp_path / "m", Rounding(0.0))
    assert choice.precision == "fp32"
    assert "has no instructions for bf16" in choice.reason


def test_a_model_without_a_choice_refuses_another_precision_than_its_own(saved: Path) -> None:
    _, spec = resolve(str(saved))
    with pytest.raises(ModelLoadError, match="no choice of precision, and the job asks for bf16"):
        load(saved, spec, precision="bf16")


def test_fp16_is_refused_on_a_processor() -> None:
    with pytest.raises(ModelLoadError, match=r"fp16 needs a GPU, and the model is on cpu.*\n.*auto, bf16 or fp32"):
        device.dtype("fp16", "cpu")
    assert str(device.dtype("fp16", "cuda:0")) == "torch.float16"
    with pytest.raises(ModelLoadError, match="'fp8' is unknown; allowed are fp32, bf16, fp16"):
        device.dtype("fp8", "cpu")
