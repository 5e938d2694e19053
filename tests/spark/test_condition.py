"""``input.where`` in a real session: what moves, and what fails on a row, is refused; a fixed condition is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from models import DOUBLE_IN, DOUBLE_OUT, Double
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from daybreak import score
from daybreak.config import Input
from daybreak.errors import PreflightError
from daybreak.source import condition

Make = Callable[..., Any]

MOVING = {
    "day = 'today'": "'today'",
    "at > 'now'": "'now'",
    "at BETWEEN 'yesterday' AND 'epoch'": "'yesterday'",
    "day IN (' Tomorrow')": "' Tomorrow'",
    "CAST(concat('to', 'day') AS DATE) = day": "'today'",
    "right('xtoday', 5)::DATE = day": "'today'",
    "TO_DATE('today') = day": "'today'",
    "at > try_to_timestamp('now')": "'now'",
    "at > 'today'::timestamp_ntz": "'today'",
    "day > date_add('today', 1)": "'today'",
    "day = DATE r'today'": "r'today'",
    "day = DATE 'to\\u0064ay'": r"'to\\u0064ay'",
    "day = DATE /* of */ 'today'": "'today'",
    "at > '12:30'": "'12:30'",
    "hour('T12:30') = 12": "'T12:30'",
    "at > TIMESTAMP '12:30'": "'12:30'",
    "current_time() > TIME'12:00'": "current_time",
    "current_schema() = txt": "current_schema",
    "version() = txt": "getSparkVersion",
    "aes_encrypt(txt, '0000111122223333') IS NULL": "aesEncrypt",
    "id IN (VALUES 1)": "a subquery",
    "EXISTS (TABLE elsewhere)": "a subquery",
    "_metadata.file_modification_time > at": "_metadata, which is of files",
    "input_file_name() = txt": "not deterministic",
    "monotonically_increasing_id() > 1": "not deterministic",
    "reflect('java.lang.System', 'nanoTime') = txt": "not deterministic",
    "told(txt) = 'x'": "is refused by Spark",
    "id": "is refused by Spark",
    "count(*) > 1": "is refused by Spark",
    "": "is refused by Spark",
    "day = DATE '2026-13-01'": "is refused by Spark",
}
FIXED = [
    *(
        "day >= '2026-01-01'",
        "at > '2026-01-01 12:30'",
        "day > 'epoch'",
        "note <> 'today' AND txt <> 'now'",
        "id > 0 -- now()",
    ),
    *("exists(list, x -> x > 0)", "make_date(2026, 1, 1) <= day", "id BETWEEN 1 AND 2", "pi() > id", "list <> array()"),
    *(
        "try_to_timestamp(txt) IS NULL",
        "txt NOT IN ('today', '12:30')",
        "`current_date` = 1",
        "TIMESTAMP '2026-01-01' <= at",
    ),
]
FAILING = {
    "CAST(txt AS INT) > 3": "CAST_INVALID_INPUT",
    "1 / (id - 1) > 0": "DIVIDE_BY_ZERO",
    "id + 9223372036854775807 > 0": "ARITHMETIC_OVERFLOW",
    "list[5] = 1": "INVALID_ARRAY_INDEX",
    "element_at(list, 5) = 1": "INVALID_ARRAY_INDEX_IN_ELEMENT_AT",
    "to_date(txt) > '2026-01-01'": "CAST_INVALID_INPUT",
    "to_timestamp(txt, 'yyyy') > at": "CANNOT_PARSE_TIMESTAMP",
    "make_date(2026, 13, 1) = day": "DATETIME_FIELD_OUT_OF_BOUNDS",
    "txt RLIKE '('": "INVALID_PARAMETER_VALUE",
    "assert_true(id > 5) IS NULL": "USER_RAISED_EXCEPTION",
    "sequence(1, 2, id - id)[0] = 1": "Illegal sequence boundaries",
    "from_json(txt, 'a INT', map('mode', 'FAILFAST')).a = 1": "MALFORMED_RECORD_IN_PARSING",
}


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = str(tmp_path_factory.mktemp("tables") / "rows")
    made = ("CAST(1 AS BIGINT) AS id", "'a' AS txt", "'b' AS note", "array(1) AS list", "1 AS `current_date`")
    times = ("DATE '2026-01-02' AS day", "TIMESTAMP '2026-01-02 00:00:00' AS at")
    spark.range(1).selectExpr(*made, *times).write.format("delta").save(path)
    return spark.read.format("delta").load(path)


def of(where: str) -> Input:
    return Input(table="./t", key=["id"], where=where)


def answer(rows: DataFrame, where: str) -> str:
    """What is said against a condition; nothing, if it is taken."""
    try:
        condition.select(rows, of(where))
    except PreflightError as refusal:
        return str(refusal)
    return ""


def test_a_condition_that_moves_is_refused_and_one_that_does_not_is_taken(spark: SparkSession, rows: DataFrame) -> None:
    spark.range(1).createOrReplaceTempView("elsewhere")
    answers = {where: answer(rows, where) for where in MOVING}
    assert [where for where, told in MOVING.items() if told not in answers[where]] == []
    assert [where for where in MOVING if repr(where) not in answers[where]] == []
    chosen = rows
    for where in FIXED:
        chosen = condition.select(chosen, of(where))
    assert chosen.count() == 1


def test_a_condition_that_fails_on_a_row_is_told_and_nothing_else_is_blamed_on_it(rows: DataFrame) -> None:
    for where, told in FAILING.items():
        with pytest.raises(PreflightError, match="fails on a row") as refusal, condition.blamed(rows, of(where)):
            condition.select(rows, of(where)).groupBy("id").count().collect()
        assert all(text in str(refusal.value) for text in (told, repr(where), "TRY_CAST", "try_divide")), where
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO") as other, condition.blamed(rows, of("id > 0")):
        rows.select(F.expr("1 / (id - 1)")).collect()
    assert not isinstance(other.value, PreflightError)


def test_a_run_whose_condition_fails_on_a_row_ends_before_it_scores(
    spark: SparkSession, table: Make, save_model: Make, job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table([(1, 1.0, "7"), (2, 2.0, "abc")], "id bigint, x double, code string", files=1)
    document = job(source, save_model(Double(), DOUBLE_IN, DOUBLE_OUT), input={"where": "CAST(code AS INT) > 3"})
    with pytest.raises(PreflightError, match=r"'CAST\(code AS INT\) > 3' fails on a row.*'abc'"):
        score(document, spark=spark)

    monkeypatch.setattr("daybreak.source.preflight.require_unique", lambda *_: None)  # the plan is the next to read it
    with pytest.raises(PreflightError, match=r"'CAST\(code AS INT\) > 3' fails on a row.*'abc'"):
        score({**document, "select": "changed"}, spark=spark)
