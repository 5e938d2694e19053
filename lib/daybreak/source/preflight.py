"""What is refused on the driver, before any executor works: keys that are no keys, columns that do not fit.

The result, a :class:`Binding`, says which table column feeds which model input, and by which SQL expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from daybreak.config import Input
from daybreak.errors import PreflightError
from daybreak.schema import RESERVED, Column, literal, quoted
from daybreak.score.signature import Field, ModelSpec, Type, parse_type
from daybreak.types import KEYS, KINDS, NO_KEY, NO_KEY_ELSE, UNFIT, UNFIT_ELSE, spark_name

_ROWS = f"{RESERVED}rows"


@dataclass(frozen=True)
class Feature:
    """One model input: its name in the signature, the table column that feeds it, and its SQL on the way out."""

    field: Field
    column: str
    sql: str


@dataclass(frozen=True)
class Binding:
    keys: tuple[Column, ...]
    features: tuple[Feature, ...]


def bind(schema: T.StructType, source: Input, spec: ModelSpec) -> Binding:
    """Fit the table to the key and to the model's signature.

    Raises PreflightError that lists every column that does not fit, with both types.
    """
    reserved = [field.name for field in schema.fields if field.name.lower().startswith(RESERVED)]
    problems = [f"column {name!r} has a name that Daybreak keeps for itself ('{RESERVED}...')" for name in reserved]
    keys = [_key(schema, name, problems) for name in source.key]
    features = [_feature(schema, field, column, problems) for field, column in _pairs(schema, source, spec, problems)]
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise PreflightError(
            f"{source.table!r} does not fit the job:\n{lines}",
            fix=f"the table's columns: {_listing(schema)}",
        )
    return Binding(tuple(key for key in keys if key), tuple(feature for feature in features if feature))


def require_unique(rows: DataFrame, keys: Sequence[Column]) -> None:
    """Raises PreflightError that lists up to ten keys which name more than one row. A null key names none."""
    names = [quoted(key.name) for key in keys]
    whole = " AND ".join(f"{name} IS NOT NULL" for name in names)
    twins = rows.where(whole).groupBy(*map(F.col, names)).agg(F.count(F.lit(1)).alias(_ROWS)).where(F.col(_ROWS) > 1)
    told = [_told(key).alias(key.name) for key in keys]
    found = twins.orderBy(F.desc(_ROWS), *map(F.col, names)).limit(11).select(*told, _ROWS).collect()
    if not found:
        return
    listing = [", ".join(f"{key.name}={row[i]!r}" for i, key in enumerate(keys)) for row in found]
    shown = "\n".join(f"  - {text} ({row[_ROWS]} rows)" for text, row in zip(listing[:10], found, strict=False))
    more = "\n  - and more" if len(found) > 10 else ""
    raise PreflightError(
        f"the key {[key.name for key in keys]} names more than one row:\n{shown}{more}",
        fix="name more columns in input.key, or remove the duplicates; Daybreak picks no arbitrary winner",
    )


def _told(key: Column) -> SparkColumn:
    """A key's value as Python can hold it: its years end in 9999, and its texts are UTF-8."""
    value = F.col(quoted(key.name))
    return value.cast("string") if key.type.startswith(("date", "timestamp", "string")) else value


def column(schema: T.StructType, name: str) -> T.StructField | None:
    """The column of that name, letter for letter or else, as in Spark SQL, in any case if only one fits."""
    exact = [field for field in schema.fields if field.name == name]
    folded = [field for field in schema.fields if field.name.lower() == name.lower()]
    found = exact or folded
    return found[0] if len(found) == 1 else None


def _key(schema: T.StructType, name: str, problems: list[str]) -> Column | None:
    found = column(schema, name)
    if found is None:
        problems.append(f"key column {name!r} is not in the table")
        return None
    kind = found.dataType.simpleString()
    if (known := spark_name(kind)) not in KEYS:
        why = NO_KEY.get(known, NO_KEY_ELSE)
        problems.append(f"key column {name!r} is of type {kind}: {why}. A key is of {', '.join(KEYS)}")
    return Column(found.name, kind, "names the row")


def _pairs(schema: T.StructType, source: Input, spec: ModelSpec, problems: list[str]) -> Iterable[tuple[Field, str]]:
    """Each model input with the column that feeds it; an optional input without one is left out."""
    if spec.by_position:
        yield from _by_position(schema, source, spec, problems)
        return
    chosen = source.columns or {}
    if isinstance(chosen, list):
        if len(chosen) != len(spec.inputs):
            inputs = ", ".join(field.name for field in spec.inputs)
            problems.append(f"input.columns lists {len(chosen)}, and the model takes {len(spec.inputs)}: {inputs}")
        chosen = dict(zip((field.name for field in spec.inputs), chosen, strict=False))
    for name in set(chosen) - {field.name for field in spec.inputs}:
        problems.append(f"input.columns names {name!r}, which is no input of the model")
    for field in spec.inputs:
        name = chosen.get(field.name, field.name)
        if field.required or field.name in chosen or column(schema, name) is not None:
            yield field, name


def _by_position(
    schema: T.StructType, source: Input, spec: ModelSpec, problems: list[str]
) -> Iterable[tuple[Field, str]]:
    """The inputs of a model that names none: the job's ``columns``, in order."""
    chosen = source.columns
    if not isinstance(chosen, list) or not chosen:
        problems.append("the model's inputs have no names, so input.columns must list the columns in their order")
        return
    for name in sorted({name for name in chosen if chosen.count(name) > 1}):
        problems.append(f"input.columns lists {name!r} {chosen.count(name)} times; a column feeds one input")
    fields = _tensor_fields(schema, spec, chosen) if spec.tensor_inputs else spec.inputs
    if len(fields) != len(chosen):
        problems.append(f"the model takes {len(fields)} column(s) in order, and input.columns lists {len(chosen)}")
    for field, name in zip(fields, chosen, strict=False):
        yield replace(field, name=name), name


def _tensor_fields(schema: T.StructType, spec: ModelSpec, chosen: Sequence[str]) -> tuple[Field, ...]:
    """An unnamed tensor is fed by one array column or, if a row of it is flat, by a column for each place in a row."""
    tensor = spec.inputs[0]
    item = parse_type(tensor.type).item
    shape = tensor.shape or ()
    found = column(schema, chosen[0])
    if item is None or len(shape) > 1:
        return (tensor,)
    if len(chosen) == 1 and found is not None and isinstance(found.dataType, T.ArrayType):
        return (tensor,)
    return (Field("", str(item)),) * (len(chosen) if shape[0] < 0 else shape[0])


def _feature(schema: T.StructType, field: Field, name: str, problems: list[str]) -> Feature | None:
    found = column(schema, name)
    if found is None:
        problems.append(f"column {name!r} is not in the table, and the model needs it as {field.type}")
        return None
    try:
        return Feature(field, found.name, _out(quoted(found.name), parse_type(field.type), found.dataType))
    except _MisfitError as misfit:
        problems.append(
            f"column {found.name!r} is {found.dataType.simpleString()}, and the model's input {field.name!r} is"
            f" {field.type}: {misfit}"
        )
        return None


class _MisfitError(Exception):
    """Why a Spark type cannot feed an MLflow type."""


def _out(sql: str, wanted: Type, given: T.DataType, depth: int = 0) -> str:
    """The SQL that takes a value out of the table as its MLflow type; see ``daybreak.types``.

    Raises _MisfitError. Members of a struct are taken by name (a cast would take them by place), and what the
    model does not know of them stays behind.
    """
    if wanted.kind == "array":
        return _array(sql, wanted.element, given, depth)
    if wanted.kind == "map":
        return _map(sql, wanted.element, given, depth)
    if wanted.kind == "struct":
        return _struct(sql, wanted, given, depth)
    takes, name = KINDS[wanted.kind].takes, spark_name(given.simpleString())
    if name not in takes:
        why = "" if name in KEYS else f"; {UNFIT.get(name, UNFIT_ELSE)}"
        raise _MisfitError(f"{given.simpleString()} is no {wanted.kind}, which takes {', '.join(takes)}{why}")
    if depth and wanted.kind == "datetime":  # inside a value times cross as nanoseconds, which end in 2262
        raise _MisfitError("a datetime inside an array, map or struct is not passed; give it a column of its own")
    return takes[name].sql.format(sql)


def _array(sql: str, item: Type, given: T.DataType, depth: int) -> str:
    if not isinstance(given, T.ArrayType):
        raise _MisfitError(f"{given.simpleString()} is no array")
    if item.kind == "array" and item.innermost.kind in ("map", "struct"):
        raise _MisfitError("an array of arrays of structs or maps is not passed (Spark's conversion to pandas fails)")
    element = f"x{depth}"
    inner = _out(element, item, given.elementType, depth + 1)
    return sql if inner == element else f"transform({sql}, {element} -> {inner})"


def _map(sql: str, item: Type, given: T.DataType, depth: int) -> str:
    if not isinstance(given, T.MapType) or spark_name(given.keyType.simpleString()) != "string":
        raise _MisfitError(f"{given.simpleString()} is no map with keys of type string")
    key, value = f"k{depth}", f"x{depth}"
    inner = _out(value, item, given.valueType, depth + 1)
    return sql if inner == value else f"transform_values({sql}, ({key}, {value}) -> {inner})"


def _struct(sql: str, wanted: Type, given: T.DataType, depth: int) -> str:
    if not isinstance(given, T.StructType):
        raise _MisfitError(f"{given.simpleString()} is no struct")
    parts = []
    for name, type_, required in wanted.members:
        found = column(given, name)
        if found is not None:
            inner = _out(f"{sql}.{quoted(found.name)}", type_, found.dataType, depth + 1)
            parts.append(f"{literal(name)}, {inner}")
        elif required:
            raise _MisfitError(f"it has no member {name!r}")
    if not parts:
        raise _MisfitError("it has none of the members that the model knows")
    return f"IF({sql} IS NULL, NULL, named_struct({', '.join(parts)}))"


def _listing(schema: T.StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
