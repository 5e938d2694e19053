"""The gate in front of the model: rows are held against the signature's inputs.

``admit`` decides row by row, by the signature alone, so that a row meets the same fate in a batch of one and in a
batch of ten thousand.

What it does with a NULL (None, NaN, NaT or NA; a float NaN in a float column counts as the number it is):

    float, double            becomes NaN and is scored
    any other, optional      passes as missing: NA (integers, booleans), NaT (datetime), None (the rest)
    any other, required      the row is refused, ``NullInput``

What it does with a value of another type: integers and decimals become floats where the signature says float
or double (rounded to that type); decimals and floats become integers only if they are whole and below 2**53,
so that no integer has silently been through a float; everything else that is not of the declared type, or out
of its range, refuses the row, ``InvalidInput``. Array columns reach a column-based model as Python lists,
structs and maps as dicts, tensors as one stacked ndarray.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from daybreak.score.columns import Reason, TypedColumn, take, typed_column
from daybreak.score.signature import Field, ModelSpec, parse_type
from daybreak.score.values import only_element, shape_fits, shown, within

__all__ = ["Admitted", "admit"]

Array = np.ndarray[Any, Any]

_FLOAT16 = 65520  # the least number that rounds to infinity
_PADDING: dict[type, Any] = {str: "\0", bytes: b"\0"}


@dataclass(frozen=True)
class Admitted:
    """The rows that may go to the model.

    ``frame`` has the signature's columns in its order and dtypes, and a RangeIndex of m rows; ``positions``
    (int64, m, increasing) are their places in the window; ``refused`` maps the other places to the reason.
    """

    frame: pd.DataFrame
    positions: Array
    refused: dict[int, Reason]


def admit(spec: ModelSpec, window: pd.DataFrame) -> Admitted:
    """Hold the rows of a window against the signature's inputs; see the module's text for the rules."""
    n = len(window)
    refused: dict[int, Reason] = {}
    columns: dict[str, pd.Series[Any]] = {}
    labels: dict[str, str | int] = {}
    for name, field_, values in _input_columns(spec, window):
        labels[name] = name if spec.by_position else field_.label
        column = _admit_column(field_, values, name)
        columns[name] = column.values
        for i, reason in column.refused.items():
            refused.setdefault(i, reason)
    keep = np.ones(n, dtype=bool)
    keep[list(refused)] = False
    positions = np.flatnonzero(keep)
    frame = pd.DataFrame(columns, index=pd.RangeIndex(n))
    frame.columns = pd.Index([labels[name] for name in columns])
    return Admitted(frame if not refused else take(frame, positions), positions, dict(sorted(refused.items())))


def _input_columns(spec: ModelSpec, window: pd.DataFrame) -> list[tuple[str, Field, pd.Series[Any]]]:
    if not spec.by_position:
        return [(f.name, f, window[f.name]) for f in spec.inputs if f.required or f.name in window.columns]
    names = [str(name) for name in window.columns]
    series = [window.iloc[:, i] for i in range(len(names))]
    if not spec.tensor_inputs:
        return list(zip(names, spec.inputs, series, strict=False))
    field_ = spec.inputs[0]
    if len(names) == 1 and field_.shape not in ((), (1,)) and not _holds_scalars(series[0]):
        return [(names[0], field_, series[0])]
    scalar = replace(field_, type=str(parse_type(field_.type).innermost), shape=())
    return [(name, scalar, values) for name, values in zip(names, series, strict=True)]


def _holds_scalars(values: pd.Series[Any]) -> bool:
    return values.dtype != object or any(isinstance(value, str | bytes) or np.isscalar(value) for value in values)


def _admit_column(field_: Field, values: pd.Series[Any], name: str) -> TypedColumn:
    type_ = parse_type(field_.type)
    if field_.shape == (1,) and values.dtype == object:
        values = values.map(only_element)
    column = typed_column(type_, values, nullable=not field_.required, side="Input", name=name)
    if field_.dtype is not None:
        _refuse_misfits(field_, column, name)
    return column


def _refuse_misfits(field_: Field, column: TypedColumn, name: str) -> None:
    """Refuse what does not fit a tensor: another shape, a number beyond its dtype, a text that would be cut."""
    dtype, shape = np.dtype(field_.dtype), field_.shape or ()
    held = _held(dtype)
    if held is None and (not shape or shape == (1,)):
        return
    for i, value in enumerate(column.values):
        if i in column.refused:
            continue
        try:
            cell = np.asarray(value, dtype=object if dtype.kind in "US" else None)
        except ValueError:
            column.refused[i] = Reason("InvalidInput", f"column {name!r}: its arrays are of unequal length")
            continue
        if shape not in ((), (1,)) and not shape_fits(cell.shape, shape):
            column.refused[i] = Reason(
                "InvalidInput", f"column {name!r} has the shape {cell.shape}, and the model takes {shape}"
            )
        elif held is not None and not held(cell):
            column.refused[i] = Reason("InvalidInput", f"column {name!r}: {shown(value)} does not fit into {dtype}")


def _held(dtype: np.dtype[Any]) -> Callable[[Array], bool] | None:
    """Whether a tensor's dtype holds values of its MLflow type; None for a dtype that holds all of them."""
    if (dtype.kind in "iu" and dtype.itemsize < 4) or dtype == np.uint32:
        return lambda cell: within(cell, np.iinfo(dtype))
    if dtype == np.float16:
        return lambda cell: bool((np.isnan(cell) | np.isinf(cell) | (np.abs(cell) < _FLOAT16)).all())
    if dtype.kind in "US":  # numpy drops what it takes for padding
        return lambda cell: not any(text.endswith(_PADDING[type(text)]) for text in cell.ravel().tolist())
    return None
