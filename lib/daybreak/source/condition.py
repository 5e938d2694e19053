"""``input.where``: the rows that a run is about. It selects the same rows at every read, and fails on none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from daybreak.config import Input
from daybreak.errors import PreflightError, first_line, root_cause

_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)
    |(?P<text>r'[^']*'|r"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<name>`[^`]*`)
    |(?P<word>\w+)
    |(?P<space>\s+)
    |(?P<sign>.)""",
    re.DOTALL | re.VERBOSE | re.IGNORECASE,
)
_UNSTABLE = re.compile(
    r"\b(?:current_(?:date|time|timestamp|user|timezone)|localtimestamp|session_user|select)\b"
    r"|\b(?:now|curdate|user|unix_timestamp)\s*\(\s*\)",
    re.IGNORECASE,
)
_TIMES = {"date", "timestamp", "timestamp_ltz", "timestamp_ntz"}
# Spark takes the clock for such a text where it makes a time of it, and the day of the query for a time without a day
_CLOCK = re.compile(r"[\x00-\x20]*(?:(?:now|today|tomorrow|yesterday)\b|T|\d{1,2}:)", re.IGNORECASE)
_SUBQUERIES = ("ListQuery", "Exists", "ScalarSubquery", "LateralSubquery", "InSubquery")
_FIXED = {  # what in a plan has nothing below it and is the same at every read
    *("Literal", "AttributeReference", "NamedLambdaVariable", "CommonExpressionRef", "Pi", "EulerNumber"),
    *("CreateArray", "CreateMap", "CreateNamedStruct"),
}
_OF_A_VALUE = re.compile(r"SQLSTATE: (?:22|P0001)|IllegalArgumentException: requirement failed")  # 22: data exception


def select(table: DataFrame, source: Input) -> DataFrame:
    """The rows that the job is about: the table under ``where``.

    Raises PreflightError for a condition that does not parse, names no column, or differs from read to read.
    """
    if source.where is None:
        return table
    if unstable := unstable_words(source.where):
        raise _moves(source.where, unstable)
    try:
        chosen = table.where(source.where)
        chosen.schema  # noqa: B018  (forces the analysis)
    except PySparkException as error:
        raise PreflightError(f"input.where {source.where!r} is refused by Spark: {first_line(error)}") from None
    analyzed = chosen._jdf.queryExecution().analyzed()
    if not analyzed.deterministic():
        raise PreflightError(
            f"input.where {source.where!r} is not deterministic: a second read would select other rows",
            fix="use the table's columns and constants only; rand(), uuid() and the like change from read to read",
        )
    if unstable := sorted(set(_moving(_condition(table, analyzed)))):
        raise _moves(source.where, unstable)
    return chosen


@contextmanager
def blamed(table: DataFrame, source: Input) -> Iterator[None]:
    """Raises PreflightError where a query fails inside since ``where`` fails on a row of the table.

    A query fails for many reasons, so the condition is blamed if it fails on the table by itself.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if source.where is None or not _OF_A_VALUE.search(str(error)):
            raise
        if alone := _failure(table, source.where):
            raise PreflightError(
                f"input.where {source.where!r} fails on a row: {_said(alone)}",
                fix="make it NULL there, which selects no row, as TRY_CAST(... AS ...), try_divide, try_to_timestamp,"
                " try_element_at, get (of an array) and try_add do",
            ) from error
        raise


def _failure(table: DataFrame, where: str) -> Exception | None:
    try:
        table.where(where).agg(F.count(F.lit(1))).collect()
    except (PySparkException, Py4JJavaError) as error:
        return error if _OF_A_VALUE.search(str(error)) else None
    return None


def _said(error: Exception) -> str:
    """Spark's own words of an error, which begin with its name in brackets."""
    named = re.search(r"\[[A-Z][A-Z_.]+\].*", str(error))
    return named[0][:500] if named else root_cause(error)


def _moves(condition: str, unstable: Sequence[str]) -> PreflightError:
    return PreflightError(
        f"input.where {condition!r} means other rows at another time: {', '.join(unstable)}",
        fix="write the value itself, as in day = '2026-11-30' (--set input.where=...); a condition is on this"
        " table's columns and constants, without a subquery on another table",
    )


def unstable_words(condition: str) -> list[str]:
    """What in a condition depends on the clock, the user or another table, though Spark calls it deterministic."""
    tokens = [(str(match.lastgroup), match.group()) for match in _TOKEN.finditer(condition)]
    plain = "".join(text if kind in ("word", "space", "sign") else " " for kind, text in tokens)
    told = [(kind, text) for kind, text in tokens if kind not in ("comment", "space")]
    typed = [
        text
        for (_, word), (kind, text) in pairwise(told)
        if kind == "text" and word.lower() in _TIMES and _is_clock(text)
    ]
    return typed + [match.group().strip() for match in _UNSTABLE.finditer(plain)]


def _is_clock(text: str) -> bool:
    """Whether a text in its quotes, as the value of a time, is one of the clock. What is escaped may be."""
    raw = text[0] in "rR"
    return (not raw and "\\" in text) or _CLOCK.match(text[2:-1] if raw else text[1:-1]) is not None


def _condition(table: DataFrame, plan: Any) -> Any:
    """The condition in an analyzed plan, each function written out as what computes it."""
    plan = table.sparkSession._jvm.org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions.apply(plan)  # type: ignore[union-attr]
    while plan.getClass().getSimpleName() != "Filter":
        plan = plan.children().apply(0)
    return plan.condition()


def _moving(part: Any) -> Iterator[str]:
    """The parts of a condition that are of their time or place: what has nothing below it is a column or a constant."""
    name, children = part.getClass().getSimpleName(), part.children()
    if name in _SUBQUERIES:
        yield "a subquery"
    elif name == "AttributeReference" and part.metadata().contains("__metadata_col"):
        yield f"{part.name()}, which is of files and not of rows"
    elif name == "StaticInvoke" and (not children.size() or part.functionName() == "aesEncrypt"):
        yield str(part.functionName())
    elif name.startswith("Current") or (not children.size() and name not in _FIXED):
        yield str(part.prettyName())
    elif name == "Cast" and (text := _made_a_time(part)) is not None and _CLOCK.match(text):
        yield repr(text)
    for i in range(children.size()):
        yield from _moving(children.apply(i))


def _made_a_time(cast: Any) -> str | None:
    """The constant text that a cast makes a date or a timestamp of."""
    given, wanted = (part.dataType().simpleString() for part in (cast.child(), cast))
    if not cast.child().foldable() or not given.startswith("string") or not wanted.startswith(("date", "timestamp")):
        return None
    try:
        return str(value) if (value := cast.child().eval(None)) is not None else None
    except Py4JJavaError:  # it fails at every read, and is told then
        return None
