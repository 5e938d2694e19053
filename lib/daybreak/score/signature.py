"""What a model takes and gives: its MLflow signature as plain, picklable data, and the two gates built from
it.

``admit`` is the gate in front of the model, ``conform`` the one behind it. Both decide row by row, by the
signature alone, so that a row meets the same fate in a batch of one and in a batch of ten thousand.

What ``admit`` does with a NULL (None, NaN, NaT or NA; a float NaN in a float column counts as the number it
is):

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

import datetime as dt
import decimal
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pandas as pd

from daybreak.errors import PreflightError

__all__ = [
    "Admitted",
    "Conformed",
    "Field",
    "ModelOutputError",
    "ModelSpec",
    "Reason",
    "admit",
    "conform",
    "model_spec",
    "require_columns",
]

Array = np.ndarray[Any, Any]

_DDL = {
    "boolean": "BOOLEAN",
    "integer": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "datetime": "TIMESTAMP",
}
_ALLOWED = ", ".join(_DDL) + ", and arrays, objects (structs) and maps of these"
_EXACT = 2**53
_LOG_HINT = (
    "log the model again with signature=mlflow.models.infer_signature(inputs, model.predict(inputs)), "
    "or attach one with mlflow.models.set_signature(model_uri, signature)"
)


class ModelOutputError(Exception):
    """The model's output does not fit its rows: too many, too few without saying which, or a column is
    missing."""


# ---------------------------------------------------------------------------------------------- the types


@dataclass(frozen=True)
class Type:
    """One type as a tree: a scalar of ``_DDL``, or an array, map or struct of others."""

    kind: str
    item: Type | None = None
    members: tuple[tuple[str, Type, bool], ...] = ()

    def __str__(self) -> str:
        if self.kind == "struct":
            return f"struct<{','.join(_member_text(*member) for member in self.members)}>"
        return f"{self.kind}<{self.item}>" if self.item else self.kind

    @property
    def ddl(self) -> str:
        """The Spark SQL type, as in ``ARRAY<FLOAT>``."""
        if self.kind == "struct":
            return f"STRUCT<{', '.join(f'{_quoted(name)}: {type_.ddl}' for name, type_, _ in self.members)}>"
        if self.kind == "map":
            return f"MAP<STRING, {self._item.ddl}>"
        return f"ARRAY<{self._item.ddl}>" if self.kind == "array" else _DDL[self.kind]

    @property
    def _item(self) -> Type:
        if self.item is None:
            raise ValueError(f"{self.kind} without an item type")
        return self.item


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _member_text(name: str, type_: Type, required: bool) -> str:
    return f"{_quoted(name)}:{type_}{'' if required else '?'}"


@lru_cache(maxsize=1024)
def parse_type(text: str) -> Type:
    """The tree of a canonical type string, such as ``array<struct<`a`:long,`b`:string?>>``."""
    type_, rest = _parse(text)
    if rest:
        raise ValueError(f"not a type: {text!r} (at {rest!r})")
    return type_


def _parse(text: str) -> tuple[Type, str]:
    match = re.match(r"[a-z]+", text)
    kind = match.group() if match else ""
    rest = text[len(kind) :]
    if kind in _DDL:
        return Type(kind), rest
    if kind in ("array", "map") and rest.startswith("<"):
        item, rest = _parse(rest[1:])
        return Type(kind, item), _expect(rest, ">")
    if kind == "struct" and rest.startswith("<"):
        return _parse_struct(rest[1:])
    raise ValueError(f"not a type: {text!r}; allowed are {_ALLOWED}")


def _parse_struct(text: str) -> tuple[Type, str]:
    members: list[tuple[str, Type, bool]] = []
    while match := re.match(r",?`((?:[^`]|``)*)`:", text):
        type_, text = _parse(text[match.end() :])
        optional = text.startswith("?")
        text = text[1:] if optional else text
        members.append((match.group(1).replace("``", "`"), type_, not optional))
    return Type("struct", members=tuple(members)), _expect(text, ">")


def _expect(text: str, mark: str) -> str:
    if not text.startswith(mark):
        raise ValueError(f"expected {mark!r} at {text!r}")
    return text[len(mark) :]


# ---------------------------------------------------------------------------------------------- the signature


@dataclass(frozen=True)
class Field:
    """One input or output. ``shape`` (without the row dimension) and ``dtype`` (numpy) are set for tensors
    only.

    ``name`` is empty for an input that the signature leaves unnamed: it is matched by position.
    """

    name: str
    type: str
    required: bool = True
    shape: tuple[int, ...] | None = None
    dtype: str | None = None

    @property
    def ddl(self) -> str:
        """The Spark SQL type of the column."""
        return parse_type(self.type).ddl


@dataclass(frozen=True)
class ModelSpec:
    """A model's signature. ``params`` are the inference parameters it knows, with their defaults."""

    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    tensor_inputs: bool = False
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def by_position(self) -> bool:
        """Whether the inputs are unnamed, so that the job's ``columns`` are taken in their order."""
        return any(not field_.name for field_ in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(field_.name for field_ in self.outputs)

    @property
    def output_ddl(self) -> str:
        """The outputs as a Spark SQL schema, as in ```embedding` ARRAY<FLOAT>``."""
        return ", ".join(f"{_quoted(field_.name)} {field_.ddl}" for field_ in self.outputs)


def model_spec(signature: Any) -> ModelSpec:
    """The plain form of an MLflow ``ModelSignature``.

    Unnamed outputs are called ``prediction``, or ``prediction_0``, ``prediction_1``, ... where there are
    several.

    Raises:
        PreflightError: there is no signature, no inputs, no outputs, or a column has a type without a Spark
        form.
    """
    inputs: Any = getattr(signature, "inputs", None)
    outputs: Any = getattr(signature, "outputs", None)
    for part, lacking in (("signature", signature), ("inputs", inputs), ("outputs", outputs)):
        if lacking is None or (part != "signature" and not len(lacking)):
            what = "the model has no signature" if part == "signature" else f"the model's signature has no {part}"
            raise PreflightError(f"{what}, so its columns and their types are unknown", fix=_LOG_HINT)
    params = {param.name: param.default for param in (getattr(signature, "params", None) or [])}
    return ModelSpec(
        inputs=_unique([_field(spec, "input", spec.name or "") for spec in inputs.inputs], "input"),
        outputs=_unique(_outputs(outputs.inputs), "output"),
        tensor_inputs=bool(inputs.is_tensor_spec()),
        params=params,
    )


def _outputs(specs: Sequence[Any]) -> list[Field]:
    several = len(specs) > 1
    names = [spec.name or (f"prediction_{i}" if several else "prediction") for i, spec in enumerate(specs)]
    return [_field(spec, "output", name) for spec, name in zip(specs, names, strict=True)]


def _unique(fields: list[Field], side: str) -> tuple[Field, ...]:
    seen: dict[str, str] = {}
    for name in (field_.name for field_ in fields if field_.name):
        if name.lower() in seen:
            raise PreflightError(
                f"the model's {side} columns {seen[name.lower()]!r} and {name!r} are the same but for case",
                fix="rename one in the model's signature: Spark matches column names without regard to case",
            )
        seen[name.lower()] = name
    return tuple(fields)


def _field(spec: Any, side: str, name: str) -> Field:
    place = f"the model's {side} {name!r}" if name else f"the model's unnamed {side}"
    if hasattr(spec, "shape"):
        return _tensor_field(spec, name, place)
    required = bool(getattr(spec, "required", True))
    return Field(name, str(_column_type(spec.type, place)), required)


def _column_type(type_: Any, place: str) -> Type:
    kind = type(type_).__name__
    if kind == "DataType":
        return Type(type_.name)
    if kind == "Array":
        return Type("array", _column_type(type_.dtype, place))
    if kind == "Map":
        return Type("map", _column_type(type_.value_type, place))
    if kind == "Object":
        members = [(p.name, _column_type(p.dtype, place), bool(p.required)) for p in type_.properties]
        return Type("struct", members=tuple(members))
    raise PreflightError(
        f"{place} is of type {kind}, which has no column type; allowed are {_ALLOWED}",
        fix="declare a concrete type for it in the model's signature and log the model again",
    )


def _tensor_field(spec: Any, name: str, place: str) -> Field:
    rows, *shape = (int(size) for size in spec.shape)
    if rows != -1:
        raise PreflightError(
            f"{place} has the shape {tuple(spec.shape)}: its first dimension is fixed, not -1",
            fix="log the model with -1 as the first dimension, so that rows can be batched",
        )
    type_ = Type(_tensor_kind(np.dtype(spec.type), place))
    for _ in shape if shape != [1] else ():
        type_ = Type("array", type_)
    return Field(name, str(type_), True, tuple(shape), np.dtype(spec.type).str)


def _tensor_kind(dtype: np.dtype[Any], place: str) -> str:
    named = {"b": "boolean", "M": "datetime", "U": "string", "O": "string", "S": "binary"}
    if dtype.kind in named:
        return named[dtype.kind]
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return "double" if dtype.itemsize == 8 else "float"
    if dtype.kind in "iu" and dtype != np.uint64:
        return "integer" if np.iinfo(dtype).max <= np.iinfo(np.int32).max else "long"
    raise PreflightError(
        f"{place} is a tensor of {dtype}, which has no column type; allowed are bool, int8 to int64, "
        "uint8 to uint32, float16 to float64, str and datetime64",
        fix="let the model use one of these and log it again",
    )


def require_columns(spec: ModelSpec, columns: Iterable[str], *, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """The table's columns that the model reads, in the signature's order.

    ``columns`` are the table's; ``chosen`` are the job's ``model.columns``, needed where the inputs are
    unnamed. An optional input that the table lacks is left out.

    Raises:
        PreflightError: a required column is absent, or unnamed inputs do not get the number of columns they
        take.
    """
    present = list(columns)
    if spec.by_position:
        return _chosen_columns(spec, present, chosen)
    missing = [f.name for f in spec.inputs if f.required and f.name not in present]
    if missing:
        raise PreflightError(
            f"the input table lacks {_listed(missing)}, which the model needs; it has {_listed(present)}",
            fix="select or rename the column in input.query, or score with a model that does not need it",
        )
    return tuple(f.name for f in spec.inputs if f.name in present)


def _chosen_columns(spec: ModelSpec, present: list[str], chosen: Sequence[str]) -> tuple[str, ...]:
    absent = [name for name in chosen if name not in present]
    if absent:
        raise PreflightError(f"the columns {_listed(absent)} are not in the input table; it has {_listed(present)}")
    width = _width(spec)
    if not chosen or (width not in (None, len(chosen)) and not (spec.tensor_inputs and len(chosen) == 1)):
        raise PreflightError(
            f"the model's inputs are unnamed and take {width or 'one or more'} columns in order, "
            f"but {len(chosen)} are named",
            fix="list the columns in the order the model was trained with, under model.columns",
        )
    return tuple(chosen)


def _width(spec: ModelSpec) -> int | None:
    """How many columns the unnamed inputs take; None: any number."""
    if not spec.tensor_inputs:
        return len(spec.inputs)
    shape = spec.inputs[0].shape or (1,)
    return 1 if len(shape) > 1 else shape[0] if shape[0] > 0 else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "no columns"


# ---------------------------------------------------------------------------------------------- one value


@dataclass(frozen=True)
class Reason:
    """Why one row was refused."""

    error_class: str
    message: str


def _is_null(value: Any) -> bool:
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
        raise ValueError(f"{_shown(value)} is not {_article(type_)}")
    bits = 31 if type_.kind == "integer" else 63
    number = int(value)
    if not -(2**bits) <= number < 2**bits:
        raise ValueError(f"{number} is out of range for {_article(type_)}")
    return number


def _coerce_float(type_: Type, value: Any) -> float:
    if not isinstance(value, int | float | np.integer | np.floating | np.bool_ | decimal.Decimal):
        raise ValueError(f"{_shown(value)} is not {_article(type_)}")
    number = float(value)
    if type_.kind == "float":
        with np.errstate(over="ignore"):
            narrow = np.float32(number)
        if np.isinf(narrow) and not np.isinf(number):
            raise ValueError(f"{number!r} is out of range for {_article(type_)}")
    return number


def _coerce_boolean(type_: Type, value: Any) -> bool:
    if isinstance(value, bool | np.bool_) or (isinstance(value, int | np.integer | float) and value in (0, 1)):
        return bool(value)
    raise ValueError(f"{_shown(value)} is not {_article(type_)}")


def _coerce_string(type_: Type, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not {_article(type_)}")
    return str(value)


def _coerce_binary(type_: Type, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"{_shown(value)} is not {_article(type_)}")
    return bytes(value)


def _coerce_datetime(type_: Type, value: Any) -> np.datetime64:
    if isinstance(value, dt.datetime):
        aware = value.tzinfo is not None
        naive = value.astimezone(dt.UTC).replace(tzinfo=None) if aware else value
        return np.datetime64(naive, "us")
    if isinstance(value, np.datetime64):
        return cast(np.datetime64, value.astype("datetime64[us]"))
    if isinstance(value, dt.date):
        return np.datetime64(value.isoformat(), "us")
    raise ValueError(f"{_shown(value)} is not {_article(type_)}")


def _coerce_array(type_: Type, value: Any) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        raise ValueError(f"{_shown(value)} is not {_article(type_)}")
    item = type_._item
    if isinstance(value, np.ndarray) and (fast := _fast(item, value)) is not None:
        return list(fast.tolist())
    return [_coerce_member(item, element, f"element {i}") for i, element in enumerate(value)]


def _coerce_map(type_: Type, value: Any) -> dict[str, Any]:
    pairs = value.items() if isinstance(value, Mapping) else _pairs(type_, value)
    return {str(key): _coerce_member(type_._item, element, f"key {key!r}") for key, element in pairs}


def _pairs(type_: Type, value: Any) -> list[Any]:
    """Arrow gives a map as a list of pairs."""
    pairs = list(value) if isinstance(value, list | tuple | np.ndarray) else [None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"{_shown(value)} is not {_article(type_)}")
    return pairs


def _coerce_struct(type_: Type, value: Any) -> dict[str, Any]:
    mapping = value.asDict() if hasattr(value, "asDict") else value
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{_shown(value)} is not {_article(type_)}")
    known = {name for name, _, _ in type_.members}
    if extra := [str(name) for name in mapping if name not in known]:
        raise ValueError(f"the struct has undeclared members {_listed(extra)}")
    return {
        name: _coerce_member(member, mapping.get(name), f"member {name!r}", optional=not required)
        for name, member, required in type_.members
        if required or name in mapping
    }


def _coerce_member(type_: Type, value: Any, place: str, *, optional: bool = False) -> Any:
    if _is_null(value):
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


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _article(type_: Type) -> str:
    return f"{'an' if str(type_)[0] in 'aeiou' else 'a'} {type_}"


# ---------------------------------------------------------------------------------------------- one column


@dataclass
class _Column:
    """A column on its way: ``values`` of n rows, where the refused ones hold anything."""

    values: pd.Series[Any]
    refused: dict[int, Reason]


_NUMPY = {"boolean": "bool", "integer": "int32", "long": "int64", "float": "float32", "double": "float64"}
_NULLABLE = {"boolean": "boolean", "integer": "Int32", "long": "Int64"}


def _fast(type_: Type, values: Array) -> Array | None:
    """The whole array at once where numpy does it exactly and no value can be refused, else None."""
    kind = values.dtype.kind
    if type_.kind in ("float", "double") and kind in "fiub":
        return _fast_float(values, np.dtype(_NUMPY[type_.kind]))
    if type_.kind in ("integer", "long") and kind in "iu":
        target = np.dtype(_NUMPY[type_.kind])
        fits = np.can_cast(values.dtype, target) or _within(values, np.iinfo(target))
        return values.astype(target) if fits else None
    if type_.kind == "boolean" and kind == "b":
        return values
    return None


def _fast_float(values: Array, target: np.dtype[Any]) -> Array | None:
    with np.errstate(over="ignore"):
        narrow = values.astype(target)
    overflowed = values.dtype.kind == "f" and bool((np.isinf(narrow) & np.isfinite(values)).any())
    return None if overflowed else narrow


def _within(values: Array, info: np.iinfo[Any]) -> bool:
    return values.size == 0 or (int(values.min()) >= info.min and int(values.max()) <= info.max)


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


def _column(type_: Type, values: pd.Series[Any], *, nullable: bool, side: str, name: str) -> _Column:
    """``values`` converted to ``type_``; a null is let through only if ``nullable`` or in a float column."""
    raw = _raw(values)
    n = len(raw)
    if type_.kind == "datetime" and raw.dtype.kind == "M":
        done, nulls = raw.astype("datetime64[us]"), np.isnat(raw)
        return _finish(type_, done, nulls, {}, nullable=nullable, side=side, name=name)
    if (fast := _fast(type_, raw)) is not None and fast.ndim == 1:
        return _finish(type_, fast, np.zeros(n, bool), {}, nullable=nullable, side=side, name=name)
    if type_.kind == "string" and pd.api.types.infer_dtype(raw, skipna=False) == "string":
        return _finish(type_, raw, np.zeros(n, bool), {}, nullable=nullable, side=side, name=name)
    return _slow_column(type_, raw, nullable=nullable, side=side, name=name)


def _slow_column(type_: Type, raw: Array, *, nullable: bool, side: str, name: str) -> _Column:
    done = np.empty(len(raw), dtype=object)
    nulls = np.zeros(len(raw), dtype=bool)
    refused: dict[int, Reason] = {}
    for i, value in enumerate(raw):
        if _is_null(value):
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
) -> _Column:
    floats = type_.kind in ("float", "double")
    if not floats and not nullable:
        for i in np.flatnonzero(nulls).tolist():
            refused[i] = Reason(f"Null{side}", f"column {name!r} is null, and the model requires {_article(type_)}")
    holes = nulls.copy()
    holes[list(refused)] = True
    if type_.kind == "datetime" and side == "Input":
        _refuse_beyond_nanoseconds(values, holes, refused, name)
    return _Column(_typed(type_, values, holes, nullable=nullable, side=side), refused)


def _refuse_beyond_nanoseconds(values: Array, holes: Array, refused: dict[int, Reason], name: str) -> None:
    """MLflow models take datetime64[ns], which ends in the year 2262; a later date must not wrap round."""
    low, high = np.datetime64("1677-09-22", "us"), np.datetime64("2262-04-11", "us")
    places = np.flatnonzero(~holes)
    times = values[places].astype("datetime64[us]")
    beyond = (times < low) | (times > high)
    for i, time in zip(places[beyond].tolist(), times[beyond], strict=True):
        refused[i] = Reason("InvalidInput", f"column {name!r}: {time} is beyond datetime64[ns] (1677 to 2262)")
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
        return pd.Series(_filled(values, holes, np.dtype(_NUMPY[kind]), float("nan")))
    if kind in _NULLABLE:
        plain = _filled(values, holes, np.dtype(_NUMPY[kind]), 0)
        if not nullable:
            return pd.Series(plain)
        masked = pd.array(plain, dtype=_NULLABLE[kind])  # type: ignore[call-overload]
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


# ---------------------------------------------------------------------------------------------- in front


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
    for name, field_, values in _input_columns(spec, window):
        column = _admit_column(field_, values, name)
        columns[name] = column.values
        for i, reason in column.refused.items():
            refused.setdefault(i, reason)
    keep = np.ones(n, dtype=bool)
    keep[list(refused)] = False
    positions = np.flatnonzero(keep)
    frame = pd.DataFrame(columns, index=pd.RangeIndex(n))
    return Admitted(frame if not refused else take(frame, positions), positions, dict(sorted(refused.items())))


def take(frame: pd.DataFrame, positions: Array) -> pd.DataFrame:
    """Those rows as a frame of its own with a RangeIndex."""
    return frame.take(positions).reset_index(drop=True)


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
    scalar = replace(field_, type=str(_innermost(parse_type(field_.type))), shape=())
    return [(name, scalar, values) for name, values in zip(names, series, strict=True)]


def _holds_scalars(values: pd.Series[Any]) -> bool:
    return values.dtype != object or any(isinstance(value, str | bytes) or np.isscalar(value) for value in values)


def _innermost(type_: Type) -> Type:
    return _innermost(type_._item) if type_.kind == "array" else type_


def _admit_column(field_: Field, values: pd.Series[Any], name: str) -> _Column:
    type_ = parse_type(field_.type)
    if field_.shape == (1,) and values.dtype == object:
        values = values.map(_only_element)
    column = _column(type_, values, nullable=not field_.required, side="Input", name=name)
    if field_.dtype is not None:
        _refuse_misfits(field_, column, name)
    return column


def _only_element(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple | np.ndarray) and len(value) == 1 else value


def _refuse_misfits(field_: Field, column: _Column, name: str) -> None:
    """Refuse what does not fit a tensor: another shape, or an integer beyond its dtype."""
    dtype, shape = np.dtype(field_.dtype), field_.shape or ()
    narrow = (dtype.kind in "iu" and dtype.itemsize < 4) or dtype == np.uint32
    if not narrow and (not shape or shape == (1,)):
        return
    for i, value in enumerate(column.values):
        if i in column.refused:
            continue
        try:
            cell = np.asarray(value)
        except ValueError:
            column.refused[i] = Reason("InvalidInput", f"column {name!r}: its arrays are of unequal length")
            continue
        if shape not in ((), (1,)) and not _fits(cell.shape, shape):
            column.refused[i] = Reason(
                "InvalidInput", f"column {name!r} has the shape {cell.shape}, and the model takes {shape}"
            )
        elif narrow and not _within(cell, np.iinfo(dtype)):
            column.refused[i] = Reason("InvalidInput", f"column {name!r}: {_shown(value)} is out of range for {dtype}")


def _fits(actual: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    return len(actual) == len(declared) and all(d in (-1, a) for a, d in zip(actual, declared, strict=True))


# ---------------------------------------------------------------------------------------------- behind


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

    Takes ndarrays, tensors, Series, DataFrames, lists, dicts of columns, and for one row a scalar. A pandas
    result whose index is a permutation of 0..n-1 is put in that order; with fewer rows under such an index
    the missing ones are refused, ``NoOutput`` (an index of 0, 1, 2, ... says nothing: the model may have
    numbered what it kept). A value that is not of the declared type refuses its row, ``InvalidOutput``; a
    null in a required column that is not a float, ``NullOutput``.

    Raises:
        ModelOutputError: the rows or columns cannot be matched.
    """
    present = np.arange(n)
    raw = _plain(raw)
    if isinstance(raw, pd.DataFrame | pd.Series):
        raw, present = _realign(raw, n)
    elif n == 1 and isinstance(raw, list | tuple | np.ndarray) and np.shape(raw)[:1] == (0,):
        present = present[:0]
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
    return raw


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
        f"the output lacks the declared {_listed(lacking)}; it has {_listed([str(name) for name in raw])}"
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
            f"the output lacks the declared {_listed(lacking)}; it has {_listed([str(name) for name in raw])}"
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
    if isinstance(raw, tuple) and len(raw) == len(spec.outputs) and all(np.ndim(part) for part in raw):
        return [_one_column(field_, part, n) for field_, part in zip(spec.outputs, raw, strict=True)]
    if isinstance(raw, list | tuple | np.ndarray) and all(np.shape(row)[:1] == (len(spec.outputs),) for row in raw):
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
    if nested and n == 1 and len(raw) and not np.ndim(raw[0]) and raw[0] is not None:
        raw = [raw]
    if isinstance(raw, np.ndarray):
        return pd.Series(raw)
    return _cells([_only_element(value) for value in raw] if not nested else list(raw))


def _cells(values: list[Any]) -> pd.Series[Any]:
    """Values as they are, one a row: neither numbers are joined to floats nor arrays to a matrix."""
    cells = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        cells[i] = value
    return pd.Series(cells, dtype=object)


def _output_column(field_: Field, values: pd.Series[Any]) -> _Column:
    type_ = parse_type(field_.type)
    if type_.kind == "array" and (column := _vectors(field_, type_, values)) is not None:
        return column
    column = _column(type_, values, nullable=not field_.required, side="Output", name=field_.name)
    if type_.kind == "array" and field_.shape is not None:
        _refuse_shapes(field_, column)
    return column


def _vectors(field_: Field, type_: Type, values: pd.Series[Any]) -> _Column | None:
    """The usual case at speed: an array of numbers a row, each an ndarray already. They stay ndarrays."""
    item = type_._item
    cells = values.to_list()
    if item.kind not in ("float", "double", "long", "integer"):
        return None
    width = len(field_.shape) if field_.shape else 1
    if width != 1 or not all(isinstance(cell, np.ndarray) and cell.ndim == 1 for cell in cells):
        return None
    done = [_fast(item, cell) for cell in cells]
    if any(vector is None for vector in done):
        return None
    column = _Column(_cells(done), {})
    if field_.shape is not None:
        _refuse_shapes(field_, column)
    return column


def _refuse_shapes(field_: Field, column: _Column) -> None:
    declared = field_.shape or ()
    for i, value in enumerate(column.values):
        if i not in column.refused and value is not None and not _fits(_shape(value), declared):
            column.refused[i] = Reason(
                "InvalidOutput",
                f"column {field_.name!r} has the shape {_shape(value)}, and declares {declared}",
            )


def _shape(value: Any) -> tuple[int, ...]:
    try:
        return np.shape(value)
    except ValueError:
        return (-2,)
