from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from daybreak.ops import session

WHOLE_STAGE = "spark.sql.codegen.wholeStage"


def own(**application: str) -> Any:
    """As much of a Spark session as its settings."""
    settings: dict[str, str] = dict(session._INTERPRETED)
    conf = SimpleNamespace(set=settings.__setitem__, get=settings.get)
    return SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: application), conf=conf)


@pytest.mark.parametrize(
    ("rows", "application", "compiles"),
    [
        (session.MANY_ROWS, {}, "true"),
        (session.MANY_ROWS - 1, {}, "false"),
        (session.MANY_ROWS, {WHOLE_STAGE: "false"}, "false"),
    ],
)
def test_spark_compiles_for_many_rows_and_where_the_application_lets_it(
    rows: int, application: dict[str, str], compiles: str
) -> None:
    spark = own(**application)
    with session.compiled(spark, rows=rows):
        assert spark.conf.get(WHOLE_STAGE) == compiles
    assert spark.conf.get(WHOLE_STAGE) == "false"
