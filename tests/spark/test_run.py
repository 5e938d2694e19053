"""The main job in a real session: counts, contents, dead letters, the run log, publishing twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models import DOUBLE_IN, DOUBLE_OUT, Double
from pyspark.sql import SparkSession

from daybreak import score


def read(spark: SparkSession, path: str) -> list[Any]:
    return spark.read.format("delta").load(path).collect()


def numbers(count: int) -> list[tuple[int, float]]:
    return [(i, float(i)) for i in range(count)]


def test_each_row_is_scored_once_and_five_that_raise_are_dead_letters(
    spark: SparkSession, table: Callable[..., str], save_model: Callable[..., str], job: Callable[..., Any]
) -> None:
    poison = (7.0, 77.0, 177.0, 777.0, 999.0)
    document = job(table(numbers(1000), "id bigint, x double"), save_model(Double(poison), DOUBLE_IN, DOUBLE_OUT))
    summary = score(document, spark=spark)
    print(summary)
    assert (summary.status, summary.rows_in, summary.rows_scored, summary.rows_dead) == ("published", 1000, 995, 5)
    scores = {row.id: row.y for row in read(spark, summary.output)}
    assert scores == {i: 2.0 * i for i in range(1000) if float(i) not in poison}
    dead = read(spark, f"{summary.output}_daybreak/dead_letters")
    assert sorted(row.key for row in dead) == sorted(f'{{"id":{int(x)}}}' for x in poison)
    assert {(row.phase, row.error_class) for row in dead} == {("forward", "ValueError")}
    assert {row.message for row in dead} == {f"cannot score {x}" for x in poison}
