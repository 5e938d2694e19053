"""Inference parameters: what a job gives, held against the model's signature, and its defaults for the rest."""

from __future__ import annotations

import copy
from typing import Any

from daybreak.errors import ConfigError, first_line
from daybreak.score.signature import ModelSpec

__all__ = ["complete"]


def complete(spec: ModelSpec, given: dict[str, Any]) -> dict[str, Any]:
    """Every parameter of the signature: the job's value in the declared type, else the declared default.

    MLflow's rules decide: integers pass for floating point, and texts for datetimes. But a boolean is no number.

    Raises:
        ConfigError: the signature does not know a parameter, or has another type for it. All of them are told.
    """
    declared = {param.name: param for param in _declared(spec)}
    if unknown := sorted(set(given) - set(declared)):
        known = ", ".join(declared) or "none"
        raise ConfigError(
            f"model.params {unknown} are not in the model's signature; it knows: {known}",
            fix="correct model.params in the job file",
        )
    values, problems = {}, []
    for name, param in declared.items():
        try:
            values[name] = _typed(param, given[name]) if name in given else copy.deepcopy(param.default)
        except Exception as error:
            kind = type(given[name]).__name__
            problems.append(f"{name} is {given[name]!r} ({kind}), and the model takes {_told(param)}: {_cause(error)}")
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise ConfigError(
            f"model.params do not fit the model's signature:{lines}", fix="correct model.params in the job file"
        )
    return values


def _declared(spec: ModelSpec) -> Any:
    from mlflow.types import ParamSchema

    return ParamSchema.from_json(spec.param_schema) if spec.param_schema else ()


def _typed(param: Any, value: Any) -> Any:
    if hasattr(param.dtype, "name") and param.dtype.name != "boolean" and _has_boolean(value):
        raise ValueError("a boolean is no number, text or time")
    return param.validate_param_spec(value, param)


def _has_boolean(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(_has_boolean, value)))


def _told(param: Any) -> str:
    """The declared type as a person writes it: ``long``, ``array of double``, ``object {a: long}``."""
    if hasattr(param.dtype, "properties"):
        members = ", ".join(f"{one.name}: {getattr(one.dtype, 'name', one.dtype)}" for one in param.dtype.properties)
        return f"an object {{{members}}}"
    return f"an array of {param.dtype.name}" if param.shape else f"a {param.dtype.name}"


def _cause(error: Exception) -> str:
    """The end of MLflow's message, which begins with the whole declaration."""
    return first_line(error).rpartition("error: ")[2]
