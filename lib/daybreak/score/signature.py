"""What a model takes and gives: its MLflow signature as plain, picklable data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from daybreak.errors import PreflightError
from daybreak.schema import quoted
from daybreak.types import KINDS, TENSORS

__all__ = ["Field", "ModelSpec", "Type", "model_spec", "parse_type"]

_ALLOWED = ", ".join(KINDS) + ", and arrays, objects (structs) and maps of these"
_LOG_HINT = (
    "log the model again with signature=mlflow.models.infer_signature(inputs, model.predict(inputs)), "
    "or attach one with mlflow.models.set_signature(model_uri, signature)"
)


@dataclass(frozen=True)
class Type:
    """One type as a tree: a scalar of ``KINDS``, or an array, map or struct of others."""

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
            return f"STRUCT<{', '.join(f'{quoted(name)}: {type_.ddl}' for name, type_, _ in self.members)}>"
        if self.kind == "map":
            return f"MAP<STRING, {self.element.ddl}>"
        return f"ARRAY<{self.element.ddl}>" if self.kind == "array" else KINDS[self.kind].delta

    @property
    def element(self) -> Type:
        if self.item is None:
            raise ValueError(f"{self.kind} without an item type")
        return self.item

    @property
    def innermost(self) -> Type:
        """The type below all arrays."""
        return self.element.innermost if self.kind == "array" else self


def _member_text(name: str, type_: Type, required: bool) -> str:
    return f"{quoted(name)}:{type_}{'' if required else '?'}"


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
    if kind in KINDS:
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


@dataclass(frozen=True)
class Field:
    """One input or output. ``shape`` (without the row dimension) and ``dtype`` (numpy) are set for tensors
    only.

    ``name`` is empty for an input that the signature leaves unnamed: it is matched by position. ``number`` is set
    where the model's own name for it is an integer, as pandas numbers columns; ``name`` is its text then.
    """

    name: str
    type: str
    required: bool = True
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    number: int | None = None

    @property
    def label(self) -> str | int:
        """The name as the model has it."""
        return self.name if self.number is None else self.number

    @property
    def ddl(self) -> str:
        """The Spark SQL type of the column."""
        return parse_type(self.type).ddl


@dataclass(frozen=True)
class ModelSpec:
    """A model's signature. ``params`` are the inference parameters it knows, with their defaults, and
    ``param_schema`` is MLflow's JSON of them. A model that is ``hinted`` has its signature from the type hint of its
    ``predict``, ``list[...]``, and takes such a list.
    """

    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    tensor_inputs: bool = False
    params: dict[str, Any] = field(default_factory=dict)
    param_schema: str = ""
    hinted: bool = False

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
        return ", ".join(f"{quoted(field_.name)} {field_.ddl}" for field_ in self.outputs)


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
    params = getattr(signature, "params", None)
    return ModelSpec(
        inputs=_unique([_field(spec, "input", _name(spec, "input")) for spec in inputs.inputs], "input"),
        outputs=_unique(_outputs(outputs.inputs), "output"),
        tensor_inputs=bool(inputs.is_tensor_spec()),
        params={param.name: param.default for param in params or []},
        param_schema=params.to_json() if params else "",
        hinted=bool(getattr(signature, "_is_signature_from_type_hint", False)),
    )


def _outputs(specs: Sequence[Any]) -> list[Field]:
    several = len(specs) > 1
    unnamed = [f"prediction_{i}" if several else "prediction" for i in range(len(specs))]
    names = [_name(spec, "output") or name for spec, name in zip(specs, unnamed, strict=True)]
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


def _name(spec: Any, side: str) -> str:
    """The name as a text, empty for none: pandas numbers columns that were given no names."""
    name = spec.name
    if name is None or isinstance(name, str) or (isinstance(name, int) and not isinstance(name, bool)):
        return "" if name is None else str(name)
    raise PreflightError(
        f"the model's {side} {name!r} has a name that is neither a text nor an integer",
        fix="name the columns with texts (frame.columns = [...]) and log the model again",
    )


def _field(spec: Any, side: str, name: str) -> Field:
    place = f"the model's {side} {name!r}" if name else f"the model's unnamed {side}"
    number = spec.name if isinstance(spec.name, int) else None
    if hasattr(spec, "shape"):
        return replace(_tensor_field(spec, name, place), number=number)
    required = bool(getattr(spec, "required", True))
    return Field(name, str(_column_type(spec.type, place)), required, number=number)


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
    name = {"U": "str", "S": "bytes", "M": "datetime64"}.get(dtype.kind, dtype.name)
    if name in TENSORS:
        return TENSORS[name]
    raise PreflightError(
        f"{place} is a tensor of {dtype}, which has no column type; allowed are {', '.join(TENSORS)}",
        fix="let the model use one of these and log it again",
    )
