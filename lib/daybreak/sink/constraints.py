"""What the owner of an output table demands of its rows, as far as it can be held before there are scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from daybreak.schema import quoted

_CHECK = "delta.constraints."
_LENGTH, _DEFAULT = "__CHAR_VARCHAR_TYPE_STRING", "CURRENT_DEFAULT"  # as Spark keeps them in a field's metadata
_GENERATED, _IDENTITY = "delta.generationExpression", "delta.identity.start"


@dataclass(frozen=True)
class Declared:
    """A table as Delta's own log declares it."""

    schema: T.StructType
    partitions: tuple[str, ...]
    checks: Mapping[str, str]
    append_only: bool


def declared(spark: SparkSession, table: DeltaTable) -> Declared:
    """Raises Py4JJavaError where this Delta may not write to the table, and PySparkException where it is none."""
    [detail] = table.detail().select("location", "partitionColumns", "properties").collect()
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, detail.location)  # type: ignore[union-attr]
    snapshot = log.unsafeVolatileSnapshot()  # as new as the detail
    log.protocolWrite(snapshot.protocol())
    return Declared(
        schema=T.StructType.fromJson(json.loads(snapshot.metadata().schemaString())),
        partitions=tuple(detail.partitionColumns),
        checks={key.removeprefix(_CHECK): sql for key, sql in detail.properties.items() if key.startswith(_CHECK)},
        append_only=detail.properties.get("delta.appendOnly", "").lower() == "true",
    )


def unfilled(table: Declared, filled: Sequence[str]) -> list[str]:
    """Columns that would refuse each row, or take another value than the run has, whatever the model says."""
    names, problems = {name.lower() for name in filled}, []
    for field in table.schema.fields:
        told, facts = f"its column {field.name!r}", field.metadata
        if field.name.lower() not in names:
            if not {_DEFAULT, _GENERATED, _IDENTITY} & facts.keys():
                problems += [f"its column {path!r} is NOT NULL, and the run does not fill it" for path in _never(field)]
        elif _IDENTITY in facts:
            problems.append(f"{told} is an identity column, which Delta fills, and the run has values for it")
        elif _GENERATED in facts:
            problems.append(f"{told} is generated as ({facts[_GENERATED]}), and the run has values for it")
        elif str(facts.get(_LENGTH, "")).startswith("char"):
            problems.append(f"{told} is {facts[_LENGTH]}, which pads what is written; take STRING, or VARCHAR")
    return problems


def _never(field: T.StructField, path: str = "") -> list[str]:
    """A column, and the members of a struct, that may not be null. Delta wants members though the struct is null."""
    path += field.name
    inner = field.dataType.fields if isinstance(field.dataType, T.StructType) else []
    return [*([] if field.nullable else [path]), *(one for member in inner for one in _never(member, f"{path}."))]


def violated(
    table: Declared, held: DataFrame, *, keys: DataFrame, known: Mapping[str, str], filled: Sequence[str]
) -> list[str]:
    """Demands on the keys, on what all rows have and on what the run leaves null, that the rows to come would not meet.

    ``held`` are the table's rows that the run may replace, and ``keys`` the rows to come, by their keys alone.
    """
    demands = _demands(table)
    if not demands and not table.append_only:
        return []
    replaces = not held.isEmpty()
    problems = ["it only takes new keys (delta.appendOnly is set)"] if table.append_only and replaces else []
    rows = keys.withColumns({name: F.lit(value) for name, value in known.items()})
    if not replaces:  # a row that is there keeps what the run does not fill
        rows = _with_nulls(rows, table, filled)
    told = {name: sql for name, sql in demands.items() if _refers_to(rows, sql)}
    if not told:
        return problems
    try:
        [counted] = rows.agg(*(_refused(sql).alias(f"c{i}") for i, sql in enumerate(told.values()))).collect()
    except (PySparkException, Py4JJavaError):  # a demand that fails on a row: Delta tells it
        return problems
    return problems + [
        f"its {name} ({sql}) refuses {count} of the run's rows"
        for (name, sql), count in zip(told.items(), counted, strict=True)
        if count
    ]


def _demands(table: Declared) -> dict[str, str]:
    """Conditions by what a person calls them."""
    demands = {f"CHECK constraint {name!r}": sql for name, sql in table.checks.items()}
    for field in table.schema.fields:
        if str(length := field.metadata.get(_LENGTH, "")).startswith("varchar"):
            size, name = str(length).removeprefix("varchar(").rstrip(")"), quoted(field.name)
            demands[f"column {field.name!r} of {length}"] = f"{name} IS NULL OR length({name}) <= {size}"
    return demands


def _with_nulls(rows: DataFrame, table: Declared, filled: Sequence[str]) -> DataFrame:
    """With the owner's columns that the run does not fill, as an insert leaves them."""
    names = {name.lower() for name in filled}
    empty = {
        field.name: F.lit(None).cast(field.dataType)
        for field in table.schema.fields
        if field.name.lower() not in names and not {_DEFAULT, _GENERATED, _IDENTITY} & field.metadata.keys()
    }
    return rows.withColumns(empty)


def _refers_to(rows: DataFrame, sql: str) -> bool:
    """Whether a condition is on columns that the rows have."""
    try:
        rows.select(F.expr(sql)).schema  # noqa: B018  (forces the analysis)
    except PySparkException:
        return False
    return True


def _refused(sql: str) -> SparkColumn:
    """How many rows: a CHECK refuses what is null, too."""
    return F.count_if(~F.coalesce(F.expr(sql), F.lit(False)))
