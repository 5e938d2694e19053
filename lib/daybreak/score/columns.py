"""A column of values as a declared type: which rows are refused, and one dtype whatever the batch holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from daybreak.score.signature import Type
from daybreak.score.values import FIRST, LAST, article, coerce, encodable, exact, is_null
from daybreak.types import KINDS

__all__ = ["Reason", "TypedColumn", "own", "take", "typed_column"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Reason:
    """Why one row was refused."""

    error_class: str
    message: str


@dataclass
class TypedColumn:
    """A column on its way: ``values`` of n rows, where the refused ones hold anything."""

    values: pd.Series[Any]
    refused: dict[int, Reason]


def typed_column(type_: Type, values: pd.Series[Any], *, nullable: bool, side: str, name: str) -> TypedColumn:
    """``values`` converted to ``type_``; a null is let through only if ``nullable`` or in a float column."""
    raw = _raw(values)
    n = len(raw)
    if type_.kind == "datetime" and raw.dtype.kind == "M":
        done, nulls = raw.astype("datetime64[us]"), np.isnat(raw)
        return _finish(type_, done, nulls, {}, nullable=nullable, side=side, name=name)
    if (fast := exact(type_, raw)) is not None and fast.ndim == 1:
        return _finish(type_, fast, np.zeros(n, bool), {}, nullable=nullable, side=side, name=name)
    texts = type_.kind == "string" and pd.api.types.infer_dtype(raw, skipna=False) == "string"
    if texts and (side == "Input" or encodable(raw)):  # what Spark sends is UTF-8
        return _finish(type_, raw, np.zeros(n, bool), {}, nullable=nullable, side=side, name=name)
    return _slow_column(type_, raw, nullable=nullable, side=side, name=name)


def _raw(values: pd.Series[Any]) -> Array:
    """The column as an ndarray that has not lost anything: nullable integers stay integers or become
    objects."""
    dtype = values.dtype
    if isinstance(dtype, pd.DatetimeTZDtype):
        naive: Array = values.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        return naive
    if isinstance(dtype, np.dtype):
        return values.to_numpy()
    if hasattr(dtype, "numpy_dtype") and dtype.kind in "iufb" and not values.isna().any():
        return values.to_numpy(dtype=dtype.numpy_dtype)
    return values.to_numpy(dtype=object)


def _slow_column(type_: Type, raw: Array, *, nullable: bool, side: str, name: str) -> TypedColumn:
    done = np.empty(len(raw), dtype=object)
    nulls = np.zeros(len(raw), dtype=bool)
    refused: dict[int, Reason] = {}
    for i, value in enumerate(raw):
        if is_null(value):
            nulls[i] = True
            continue
        try:
            done[i] = coerce(type_, value)
        except (ValueError, TypeError, OverflowError) as error:
            refused[i] = Reason(f"Invalid{side}", f"column {name!r}: {error}")
    return _finish(type_, done, nulls, refused, nullable=nullable, side=side, name=name)


def _finish(
    type_: Type,
    values: Array,
    nulls: Array,
    refused: dict[int, Reason],
    *,
    nullable: bool,
    side: str,
    name: str,
) -> TypedColumn:
    floats = type_.kind in ("float", "double")
    if not floats and not nullable:
        for i in np.flatnonzero(nulls).tolist():
            refused[i] = Reason(f"Null{side}", f"column {name!r} is null, and the model requires {article(type_)}")
    holes = nulls.copy()
    holes[list(refused)] = True
    if type_.kind == "datetime":
        _refuse_beyond(side, values, holes, refused, name)
    return TypedColumn(_typed(type_, values, holes, nullable=nullable, side=side), refused)


_LIMITS = {
    "Input": (np.datetime64("1677-09-22", "us"), np.datetime64("2262-04-11", "us"), "datetime64[ns] (1677 to 2262)"),
    "Output": (FIRST, LAST, "the years 1 to 9999"),
}


def _refuse_beyond(side: str, values: Array, holes: Array, refused: dict[int, Reason], name: str) -> None:
    """MLflow models take datetime64[ns], which ends in the year 2262; a later date must not wrap round. What they
    give crosses as Python's datetime."""
    low, high, limits = _LIMITS[side]
    places = np.flatnonzero(~holes)
    times = values[places].astype("datetime64[us]")
    beyond = (times < low) | (times > high)
    for i, time in zip(places[beyond].tolist(), times[beyond], strict=True):
        refused[i] = Reason(f"Invalid{side}", f"column {name!r}: {time} is beyond {limits}")
        holes[i] = True


def _typed(type_: Type, values: Array, holes: Array, *, nullable: bool, side: str) -> pd.Series[Any]:
    """The column in the dtype that the type always has here, whatever the batch holds."""
    kind = type_.kind
    if kind == "datetime":
        unit = "ns" if side == "Input" else "us"
        times = np.full(len(values), np.datetime64("NaT"), dtype=f"datetime64[{unit}]")
        times[~holes] = values[~holes]
        return pd.Series(times)
    if kind in ("float", "double"):
        return pd.Series(_filled(values, holes, np.dtype(KINDS[kind].dtype), float("nan")))
    if kind in ("boolean", "integer", "long"):
        plain = _filled(values, holes, np.dtype(KINDS[kind].dtype), 0)
        if not nullable:
            return pd.Series(plain)
        masked = pd.array(plain, dtype=KINDS[kind].optional)  # type: ignore[call-overload]
        masked[holes] = pd.NA
        return pd.Series(masked)
    objects = np.empty(len(values), dtype=object)
    objects[~holes] = values[~holes]
    return pd.Series(objects, dtype=object)


def _filled(values: Array, holes: Array, dtype: np.dtype[Any], blank: Any) -> Array:
    if values.dtype == dtype and not holes.any():
        return values
    filled = np.full(len(values), blank, dtype=dtype)
    filled[~holes] = values[~holes]
    return filled


def own(frame: pd.DataFrame, positions: Array) -> pd.DataFrame:
    """``take``, and nothing that the model does to the rows reaches the frame: lists and dicts are copied too."""
    taken = take(frame, positions)
    for i, dtype in enumerate(taken.dtypes):
        cells = taken.iloc[:, i].to_list() if dtype.kind == "O" else []
        if any(isinstance(cell, list | dict) for cell in cells):
            taken.isetitem(i, pd.Series([_copied(cell) for cell in cells], dtype=object))  # type: ignore[arg-type]
    return taken


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value] if value and isinstance(value[0], list | dict) else [*value]
    return {name: _copied(item) for name, item in value.items()} if isinstance(value, dict) else value


def take(frame: pd.DataFrame, positions: Array) -> pd.DataFrame:
    """Those rows as a frame of its own with a RangeIndex."""
    return frame.take(positions).reset_index(drop=True)
