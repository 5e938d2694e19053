"""One value as a declared type, or the reason why it is none. Arrays at once where numpy is exact."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from daybreak.score.signature import Type
from daybreak.types import KINDS

__all__ = [
    "FIRST",
    "LAST",
    "article",
    "coerce",
    "encodable",
    "exact",
    "is_null",
    "listed",
    "only_element",
    "shape_fits",
    "shown",
    "within",
]

Array = np.ndarray[Any, Any]
_EXACT = 2**53
FIRST, LAST = np.datetime64("0001-01-01", "us"), np.datetime64("9999-12-31T23:59:59.999999", "us")


def is_null(value: Any) -> bool:
    """None, NaN, NaT, NA and a decimal NaN."""
    if value is None or value is pd.NA or value is pd.NaT:
        return True
    return isinstance(value, float | np.floating | np.datetime64 | decimal.Decimal) and bool(value != value)


def coerce(type_: Type, value: Any) -> Any:
    """``value``, which is not null, as a Python or numpy value of ``type_``.

    Raises:
        ValueError: it is not of that type, or does not fit into it.
    """
    return _COERCE[type_.kind](type_, value)


def _coerce_integer(type_: Type, value: Any) -> int:
    whole = isinstance(value, int | np.integer | np.bool_)
    if isinstance(value, float | np.floating | decimal.Decimal):
        whole = bool(-_EXACT < value < _EXACT) and bool(value == int(value))
    if not whole:
        raise ValueError(f"{shown(value)} is not {article(type_)}")
    bits = 31 if type_.kind == "integer" else 63
    number = int(value)
    if not -(2**bits) <= number < 2**bits:
        raise ValueError(f"{number} is out of range for {article(type_)}")
    return number


def _coerce_float(type_: Type, value: Any) -> float:
    if not isinstance(value, int | float | np.integer | np.floating | np.bool_ | decimal.Decimal):
        raise ValueError(f"{shown(value)} is not {article(type_)}")
    number = float(value)
    if type_.kind == "float":
        with np.errstate(over="ignore"):
            narrow = np.float32(number)
        if np.isinf(narrow) and not np.isinf(number):
            raise ValueError(f"{number!r} is out of range for {article(type_)}")
        return float(narrow)
    return number


def _coerce_boolean(type_: Type, value: Any) -> bool:
    if isinstance(value, bool | np.bool_) or (isinstance(value, int | np.integer | float) and value in (0, 1)):
        return bool(value)
    raise ValueError(f"{shown(value)} is not {article(type_)}")


def _coerce_string(type_: Type, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not {article(type_)}")
    if not encodable([value]):
        raise ValueError(f"{shown(value)} holds half a surrogate pair, which no table can")
    return str(value)


def _coerce_binary(type_: Type, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"{shown(value)} is not {article(type_)}")
    return bytes(value)


def _coerce_datetime(type_: Type, value: Any) -> np.datetime64:
    time = _microseconds(type_, value)
    if not FIRST <= time <= LAST:
        raise ValueError(f"{time} is beyond the years 1 to 9999")
    return time


def _microseconds(type_: Type, value: Any) -> np.datetime64:
    if isinstance(value, dt.datetime):
        aware = value.tzinfo is not None
        naive = value.astimezone(dt.UTC).replace(tzinfo=None) if aware else value
        return np.datetime64(naive, "us")
    if isinstance(value, np.datetime64):
        return cast(np.datetime64, value.astype("datetime64[us]"))
    if isinstance(value, dt.date):
        return np.datetime64(value.isoformat(), "us")
    raise ValueError(f"{shown(value)} is not {article(type_)}")


def _coerce_array(type_: Type, value: Any) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        raise ValueError(f"{shown(value)} is not {article(type_)}")
    item = type_.element
    if isinstance(value, np.ndarray) and (fast := exact(item, value)) is not None:
        return list(fast.tolist())
    return [_coerce_member(item, element, f"element {i}") for i, element in enumerate(value)]


def _coerce_map(type_: Type, value: Any) -> dict[str, Any]:
    pairs = value.items() if isinstance(value, Mapping) else _pairs(type_, value)
    return {
        _coerce_string(type_, str(key)): _coerce_member(type_.element, element, f"key {key!r}")
        for key, element in pairs
    }


def _pairs(type_: Type, value: Any) -> list[Any]:
    """Arrow gives a map as a list of pairs."""
    pairs = list(value) if isinstance(value, list | tuple | np.ndarray) else [None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"{shown(value)} is not {article(type_)}")
    return pairs


def _coerce_struct(type_: Type, value: Any) -> dict[str, Any]:
    plain = getattr(value, "asDict", None) or getattr(value, "model_dump", None)  # a Row, a pydantic object
    mapping = plain() if plain else value
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{shown(value)} is not {article(type_)}")
    known = {name for name, _, _ in type_.members}
    if extra := [str(name) for name in mapping if name not in known]:
        raise ValueError(f"the struct has undeclared members {listed(extra)}")
    return {
        name: _coerce_member(member, mapping.get(name), f"member {name!r}", optional=not required)
        for name, member, required in type_.members
        if required or name in mapping
    }


def _coerce_member(type_: Type, value: Any, place: str, *, optional: bool = False) -> Any:
    if is_null(value):
        if type_.kind in ("float", "double"):
            return float("nan")
        if optional:
            return None
        raise ValueError(f"{place} is null")
    return coerce(type_, value)


_COERCE: dict[str, Callable[[Type, Any], Any]] = {
    "boolean": _coerce_boolean,
    "integer": _coerce_integer,
    "long": _coerce_integer,
    "float": _coerce_float,
    "double": _coerce_float,
    "string": _coerce_string,
    "binary": _coerce_binary,
    "datetime": _coerce_datetime,
    "array": _coerce_array,
    "map": _coerce_map,
    "struct": _coerce_struct,
}


def exact(type_: Type, values: Array) -> Array | None:
    """The whole array at once where numpy does it exactly and no value can be refused, else None."""
    kind = values.dtype.kind
    if type_.kind in ("float", "double") and kind in "fiub":
        return _fast_float(values, np.dtype(KINDS[type_.kind].dtype))
    if type_.kind in ("integer", "long") and kind in "iu":
        target = np.dtype(KINDS[type_.kind].dtype)
        fits = np.can_cast(values.dtype, target) or within(values, np.iinfo(target))
        return values.astype(target) if fits else None
    if type_.kind == "boolean" and kind == "b":
        return values
    return None


def _fast_float(values: Array, target: np.dtype[Any]) -> Array | None:
    with np.errstate(over="ignore"):
        narrow = values.astype(target)
    overflowed = values.dtype.kind == "f" and bool((np.isinf(narrow) & np.isfinite(values)).any())
    return None if overflowed else narrow


def encodable(texts: Iterable[str]) -> bool:
    """Whether texts are Unicode throughout: Python's may hold half a surrogate pair, and UTF-8 cannot."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def within(values: Array, info: np.iinfo[Any]) -> bool:
    """Whether every value of an integer array lies in the range of another integer type."""
    return values.size == 0 or (int(values.min()) >= info.min and int(values.max()) <= info.max)


def shape_fits(actual: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    """Whether a shape is the declared one, in which -1 takes any size."""
    return len(actual) == len(declared) and all(d in (-1, a) for a, d in zip(actual, declared, strict=True))


def only_element(value: Any) -> Any:
    """The element of a list or array of one, or of none but a value; anything else as it is."""
    if isinstance(value, np.ndarray) and not value.ndim:
        return value[()]
    return value[0] if isinstance(value, list | tuple | np.ndarray) and len(value) == 1 else value


def shown(value: Any) -> str:
    """A value for a message, short, with its Python type."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def article(type_: Type) -> str:
    """A type for a message, as in ``an array<float>``."""
    return f"{'an' if str(type_)[0] in 'aeiou' else 'a'} {type_}"


def listed(names: Sequence[str]) -> str:
    """Names for a message."""
    return ", ".join(repr(name) for name in names) or "no columns"
