"""The gate behind the model: whatever it returned, as exactly the columns that its signature declares.

``conform`` decides row by row, by the signature alone, so that a row meets the same fate in a batch of one and in
a batch of ten thousand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from daybreak.score.columns import Reason, TypedColumn, take, typed_column
from daybreak.score.signature import Field, ModelSpec, Type, parse_type
from daybreak.score.values import exact, listed, only_element, shape_fits

__all__ = ["Conformed", "ModelOutputError", "conform"]

Array = np.ndarray[Any, Any]


class ModelOutputError(Exception):
    """The model's output does not fit its rows: too many, too few without saying which, or a column is
    missing."""


@dataclass(frozen=True)
class Conformed:
    """A batch's predictions: ``frame`` (m rows, the outputs' columns and types), their ``positions`` (int64,
    m, increasing) in the batch, and why the other rows have none."""

    frame: pd.DataFrame
    positions: Array
    refused: dict[int, Reason]


_NO_OUTPUT = Reason("NoOutput", "the model returned no output for this row")


def conform(spec: ModelSpec, raw: Any, n: int) -> Conformed:
    """Whatever a pyfunc returned for a batch of ``n`` rows, as exactly the declared columns.

    Takes ndarrays, tensors, Series, DataFrames, lists, dicts of columns, and for one row a scalar. Of several
    outputs a list has the rows and a tuple the columns, unless it is one of tuples. A pandas result, alone or as
    a column, whose index is a permutation of 0..n-1 is put in that order; with fewer rows under such an index
    the missing ones are refused, ``NoOutput`` (an index of 0, 1, 2, ... says nothing: the model may have
    numbered what it kept). A value that is not of the declared type refuses its row, ``InvalidOutput``; a
    null in a required column that is not a float, ``NullOutput``.

    Raises:
        ModelOutputError: the rows or columns cannot be matched.
    """
    raw, present = _in_order(spec, _plain(raw), n)
    missing = np.setdiff1d(np.arange(n), present)
    refused = {int(i): _NO_OUTPUT for i in missing}
    if not len(present):
        return Conformed(_empty(spec), present, refused)
    return _conform_rows(spec, _columns(spec, raw, len(present)), present, refused)


def _conform_rows(
    spec: ModelSpec, columns: list[pd.Series[Any]], present: Array, refused: dict[int, Reason]
) -> Conformed:
    done: dict[str, pd.Series[Any]] = {}
    keep = np.ones(len(present), dtype=bool)
    for field_, values in zip(spec.outputs, columns, strict=True):
        column = _output_column(field_, values)
        done[field_.name] = column.values
        keep[list(column.refused)] = False
        for i, reason in column.refused.items():
            refused.setdefault(int(present[i]), reason)
    frame = pd.DataFrame(done)
    kept = frame if keep.all() else take(frame, np.flatnonzero(keep))
    return Conformed(kept, present[keep], dict(sorted(refused.items())))


def _length(value: Any) -> int | None:
    """Elements of a list or an array, however ragged below; None for a scalar (a text is one)."""
    if isinstance(value, list | tuple):
        return len(value)
    return len(value) if isinstance(value, np.ndarray) and value.ndim else None


def _empty(spec: ModelSpec) -> pd.DataFrame:
    none = pd.Series([], dtype=object)
    return pd.DataFrame({field_.name: _output_column(field_, none).values for field_ in spec.outputs})


def _plain(raw: Any) -> Any:
    """Tensors and sparse matrices as ndarrays; views of a mapping as a dict."""
    if hasattr(raw, "detach"):
        raw = raw.detach().cpu()
        return raw.float().numpy() if str(raw.dtype) == "torch.bfloat16" else raw.numpy()
    if hasattr(raw, "toarray"):
        return raw.toarray()
    if isinstance(raw, Mapping):
        return {name: _plain(values) for name, values in raw.items()}
    if isinstance(raw, set | frozenset):
        raise ModelOutputError("the model returned a set, and its order says nothing of the rows")
    if isinstance(raw, list | tuple) and raw and hasattr(raw[0], "detach"):
        return type(raw)(_plain(part) for part in raw)
    return raw


def _in_order(spec: ModelSpec, raw: Any, n: int) -> tuple[Any, Array]:
    """What is pandas, alone or as a column of a dict or a tuple, in the batch's order; and which rows there are."""
    if isinstance(raw, pd.DataFrame | pd.Series):
        return _realign(raw, n)
    several = isinstance(raw, tuple) and len(raw) == len(spec.outputs) > 1
    parts: dict[Any, Any] = raw if isinstance(raw, dict) else dict(enumerate(raw)) if several else {}
    series = {name: _realign(part, n) for name, part in parts.items() if isinstance(part, pd.Series)}
    if not series:
        return raw, np.arange(0 if n == 1 and _length(raw) == 0 else n)
    _, present = next(iter(series.values()))
    if any(not np.array_equal(rows, present) for _, rows in series.values()):
        raise ModelOutputError("the model's output columns are of different rows, by their indexes")
    ordered = {name: series[name][0] if name in series else part for name, part in parts.items()}
    return (ordered if isinstance(raw, dict) else tuple(ordered.values())), present


def _realign(raw: pd.DataFrame | pd.Series[Any], n: int) -> tuple[Any, Array]:
    """The rows in the batch's order, and which of the batch they are."""
    index = raw.index
    whole = index.is_unique and pd.api.types.is_integer_dtype(index.dtype)
    places = index.to_numpy() if whole else np.empty(0, dtype=np.int64)
    inside = bool(whole and len(places) and places.min() >= 0 and places.max() < n)
    if inside and not (len(raw) < n and int(places.max()) == len(raw) - 1):
        order = np.argsort(places, kind="stable")
        return raw.iloc[order], places[order].astype(np.int64)
    if len(raw) == n:
        return raw, np.arange(n)
    if n == 1 and not len(raw):
        return raw, np.empty(0, dtype=np.int64)
    raise _wrong_count(n, len(raw))


def _wrong_count(n: int, got: int) -> ModelOutputError:
    return ModelOutputError(f"the model returned {got} rows for {n}, and nothing says which row is which")


def _columns(spec: ModelSpec, raw: Any, n: int) -> list[pd.Series[Any]]:
    """One Series of n values for each output, not yet of the declared type."""
    if isinstance(raw, list | tuple) and len(raw) and all(isinstance(row, Mapping) for row in raw):
        raw = _from_records(spec, list(raw))
    if isinstance(raw, pd.DataFrame):
        columns = _from_frame(spec, raw)
    elif isinstance(raw, dict):
        columns = _from_dict(spec, raw, n)
    elif isinstance(raw, pd.Series):
        columns = [raw]
    else:
        columns = _from_array(spec, raw, n)
    if len(columns) != len(spec.outputs):
        raise ModelOutputError(f"the model returned {len(columns)} columns, and declares {len(spec.outputs)}")
    for column in columns:
        if len(column) != n:
            raise _wrong_count(n, len(column))
    return [column.reset_index(drop=True) for column in columns]


def _from_records(spec: ModelSpec, rows: list[Any]) -> Any:
    """A list of dicts: one column of structs or maps if that is the output, else one row each."""
    only = spec.outputs[0]
    if len(spec.outputs) == 1 and only.type.startswith(("struct", "map")) and only.name not in rows[0]:
        return _cells(rows)
    return pd.DataFrame({f.name: _cells([row.get(f.name) for row in rows]) for f in spec.outputs if f.name in rows[0]})


def _from_frame(spec: ModelSpec, raw: pd.DataFrame) -> list[pd.Series[Any]]:
    names = spec.output_names
    if raw.columns.is_unique and all(name in raw.columns for name in names):
        return [raw[name] for name in names]
    if len(names) == 1 and spec.outputs[0].type.startswith("array") and raw.shape[1] > 1:
        return [_cells(list(raw.to_numpy()))]
    anonymous = len(names) == 1 or names[0].startswith("prediction") or raw.columns.equals(pd.RangeIndex(len(names)))
    if anonymous and raw.shape[1] == len(names):
        return [raw.iloc[:, i] for i in range(len(names))]
    lacking = [name for name in names if name not in raw.columns]
    raise ModelOutputError(
        f"the output lacks the declared {listed(lacking)}; it has {listed([str(name) for name in raw])}"
    )


def _from_dict(spec: ModelSpec, raw: dict[Any, Any], n: int) -> list[pd.Series[Any]]:
    if len(spec.outputs) == 1 and spec.outputs[0].name not in raw:
        only = spec.outputs[0]
        if only.type.startswith(("struct", "map")) and n == 1:
            return [_cells([raw])]
        raw = {only.name: next(iter(raw.values()))} if len(raw) == 1 else raw
    lacking = [name for name in spec.output_names if name not in raw]
    if lacking:
        raise ModelOutputError(
            f"the output lacks the declared {listed(lacking)}; it has {listed([str(name) for name in raw])}"
        )
    return [_one_column(field_, raw[field_.name], n) for field_ in spec.outputs]


def _from_array(spec: ModelSpec, raw: Any, n: int) -> list[pd.Series[Any]]:
    """An ndarray, list or scalar: the values of the one output, or a row of values for several."""
    if len(spec.outputs) == 1:
        return [_one_column(spec.outputs[0], raw, n)]
    if isinstance(raw, np.ndarray) and raw.ndim == 1 and n == 1 and raw.dtype != object:
        raw = raw[None]
    if isinstance(raw, np.ndarray) and raw.ndim == 2:
        return [pd.Series(raw[:, i]) for i in range(raw.shape[1])]
    columns = isinstance(raw, tuple) and not all(isinstance(part, tuple) for part in raw)
    if columns and len(raw) == len(spec.outputs):
        return [_one_column(field_, part, n) for field_, part in zip(spec.outputs, raw, strict=True)]
    if not columns and _length(raw) is not None and all(_length(row) == len(spec.outputs) for row in raw):
        return [_cells([row[i] for row in raw]) for i in range(len(spec.outputs))]
    raise ModelOutputError(f"a {type(raw).__name__} cannot be split into {len(spec.outputs)} columns")


def _one_column(field_: Field, raw: Any, n: int) -> pd.Series[Any]:
    if isinstance(raw, pd.Series):
        return raw
    if isinstance(raw, pd.DataFrame):
        raw = raw.to_numpy()
    if isinstance(raw, str | bytes) or not hasattr(raw, "__len__") or (isinstance(raw, np.ndarray) and not raw.ndim):
        raw = [raw.item() if isinstance(raw, np.ndarray) else raw]
    nested = field_.type.startswith("array")
    if isinstance(raw, np.ndarray) and raw.ndim > 1:
        if not nested and raw.shape[1:] == (1,):
            return pd.Series(raw[:, 0])
        return _cells(list(raw))
    if nested and n == 1 and len(raw) and _length(raw[0]) is None and raw[0] is not None:
        raw = [raw]
    if isinstance(raw, np.ndarray):
        return pd.Series(raw)
    return _cells([only_element(value) for value in raw] if not nested else list(raw))


def _cells(values: list[Any]) -> pd.Series[Any]:
    """Values as they are, one a row: neither numbers are joined to floats nor arrays to a matrix."""
    cells = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        cells[i] = value
    return pd.Series(cells, dtype=object)


def _output_column(field_: Field, values: pd.Series[Any]) -> TypedColumn:
    type_ = parse_type(field_.type)
    if type_.kind == "array" and (column := _vectors(field_, type_, values)) is not None:
        return column
    column = typed_column(type_, values, nullable=not field_.required, side="Output", name=field_.name)
    if type_.kind == "array" and field_.shape is not None:
        _refuse_shapes(field_, column)
    return column


def _vectors(field_: Field, type_: Type, values: pd.Series[Any]) -> TypedColumn | None:
    """The usual case at speed: an array of numbers a row, each an ndarray already. They stay ndarrays."""
    item = type_.element
    cells = values.to_list()
    if item.kind not in ("float", "double", "long", "integer"):
        return None
    width = len(field_.shape) if field_.shape else 1
    if width != 1 or not all(isinstance(cell, np.ndarray) and cell.ndim == 1 for cell in cells):
        return None
    done = [exact(item, cell) for cell in cells]
    if any(vector is None for vector in done):
        return None
    column = TypedColumn(_cells(done), {})
    if field_.shape is not None:
        _refuse_shapes(field_, column)
    return column


def _refuse_shapes(field_: Field, column: TypedColumn) -> None:
    declared = field_.shape or ()
    for i, value in enumerate(column.values):
        if i not in column.refused and value is not None and not shape_fits(_shape(value), declared):
            column.refused[i] = Reason(
                "InvalidOutput",
                f"column {field_.name!r} has the shape {_shape(value)}, and declares {declared}",
            )


def _shape(value: Any) -> tuple[int, ...]:
    try:
        return np.shape(value)
    except ValueError:
        return (-2,)
