"""What ``precision: auto`` means: bfloat16 where the device computes it and the model bears it, else float32.

One worker decides and the run pins it (docs/decisions/0005-one-worker-decides-the-precision.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from daybreak.errors import first_line
from daybreak.score import device
from daybreak.score.artifacts import plain
from daybreak.score.cache import fetch
from daybreak.score.inputs import admit
from daybreak.score.model import StagedModel, forget, load_cached
from daybreak.score.outputs import conform
from daybreak.score.registry import ModelPin
from daybreak.score.signature import ModelSpec

__all__ = ["TOLERANCE", "Choice", "compare", "decide", "within"]

Array = np.ndarray[Any, Any]
TOLERANCE: Mapping[str, float] = {"cosine": 0.995, "difference": 0.05}


@dataclass(frozen=True)
class Choice:
    """A precision and why. Where the two were compared: the smallest cosine, and the largest difference as a part of
    the largest number."""

    precision: str
    reason: str
    cosine: float | None = None
    difference: float | None = None


def decide(
    pin: ModelPin, spec: ModelSpec, *, cache_dir: str | os.PathLike[str], params: dict[str, Any] | None = None
) -> Choice:
    """Compare the model's scores for its own input example in bf16 with those in fp32, on this process's device.

    A model may narrow or widen what it bears by an attribute ``tolerance``, such as ``{"cosine": 0.999}``; see
    ``TOLERANCE``. The model stays loaded in the precision that is tried last, which is as a rule the one chosen.

    Raises:
        ModelLoadError: as ``load_cached``.
    """
    model = load_cached(pin, spec, cache_dir=cache_dir, params=params)
    if not hasattr(model, "place"):
        return Choice("fp32", "the model has no choice of precision: it computes as it was logged")
    where = str(getattr(model, "device", None) or "cpu")
    if not device.has_bf16(where):
        return Choice("fp32", f"{device.label(where)} has no instructions for bf16")
    rows = _example(fetch(pin, cache_dir), spec)
    if rows is None:
        return Choice("fp32", "the model was logged without an input example to compare bf16 on")
    tolerance = {**TOLERANCE, **getattr(model, "tolerance", {})}
    exact = _scores(model, spec, rows)
    del model
    forget()  # a device has room for one
    try:
        model = load_cached(pin, spec, cache_dir=cache_dir, precision="bf16", params=params)
        rounded = _scores(model, spec, rows)
    except Exception as error:
        return Choice("fp32", f"the model fails in bf16: {type(error).__name__}: {first_line(error)}")
    return within(tolerance, *compare(exact, rounded))


def within(tolerance: Mapping[str, float], cosine: float, difference: float) -> Choice:
    """bf16 if both numbers hold. A NaN holds nothing."""
    told = f"cosine {cosine:.5f}, largest difference {difference:.2%}, on the model's input example"
    if cosine >= tolerance["cosine"] and difference <= tolerance["difference"]:
        return Choice("bf16", f"bf16 is near to fp32: {told}", cosine, difference)
    allowed = f"at least {tolerance['cosine']} and at most {tolerance['difference']:.2%} are tolerated"
    return Choice("fp32", f"bf16 is too far from fp32: {told}; {allowed}", cosine, difference)


def compare(exact: pd.DataFrame, rounded: pd.DataFrame) -> tuple[float, float]:
    """The smallest cosine between what two precisions gave (of a row's vector, or of a column of numbers), and the
    largest difference, as a part of the column's largest number.

    Columns that are not numbers must be equal; rows that one of the two refused are a difference without bound.
    """
    if len(exact) != len(rounded):
        return 0.0, float("inf")
    found = [_column(exact[name], rounded[name]) for name in exact.columns]
    return float(np.min([cosine for cosine, _ in found])), float(np.max([difference for _, difference in found]))


def _column(exact: pd.Series[Any], rounded: pd.Series[Any]) -> tuple[float, float]:
    pairs = [(_numbers(a), _numbers(b)) for a, b in zip(exact, rounded, strict=True)]
    if any(a is None or b is None or a.shape != b.shape for a, b in pairs):
        same = exact.astype(str).equals(rounded.astype(str))
        return (1.0, 0.0) if same else (0.0, float("inf"))
    vectors: list[tuple[Any, Any]] = pairs
    largest = _most(np.abs(a).max(initial=0) for a, _ in vectors)
    apart = _most(np.abs(a - b).max(initial=0) for a, b in vectors)
    if all(a.size == 1 for a, _ in vectors):
        vectors = [(np.concatenate([a for a, _ in vectors]), np.concatenate([b for _, b in vectors]))]
    cosines = [_cosine(a, b) for a, b in vectors]
    return float(np.min(cosines, initial=1.0)), float(apart / largest) if apart else 0.0


def _most(values: Iterable[Any]) -> Any:
    """The largest, and a NaN if there is one: Python's own ``max`` passes over those that do not come first."""
    return np.max(list(values), initial=0.0)


def _numbers(value: Any) -> Array | None:
    try:
        return np.asarray(value, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        return None


def _cosine(a: Array, b: Array) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else float(np.array_equal(a, b))


def _scores(model: StagedModel, spec: ModelSpec, rows: pd.DataFrame) -> pd.DataFrame:
    output = device.on_host(model.forward(model.preprocess(rows.copy())))
    return conform(spec, model.postprocess(output), len(rows)).frame


def _example(path: Path, spec: ModelSpec) -> pd.DataFrame | None:
    """The input example that the model was logged with, as the signature's types."""
    from mlflow.models import Model

    folder = str(plain(path))
    example = Model.load(folder).load_input_example(folder)
    if not isinstance(example, pd.DataFrame) or spec.by_position:
        return None
    example = example.set_axis(example.columns.astype(str), axis=1)
    if not _columns(spec) <= set(example.columns):
        return None
    rows = admit(spec, example.reset_index(drop=True)).frame
    return rows if len(rows) else None


def _columns(spec: ModelSpec) -> set[str]:
    return {field.name for field in spec.inputs if field.required}
