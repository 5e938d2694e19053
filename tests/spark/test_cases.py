"""Public cases whose cause lies in the way through Spark and Delta; the others stand with their modules.

The rows of cases 02, 04, 05, 06 and 40 are scored by one run, which a gate refuses first, in a session not in UTC.
"""

from __future__ import annotations

import decimal
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.models import ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, Object, Property, Schema
from models import DOUBLE_IN, DOUBLE_OUT, Double, Mixed, Random, Rude, Unsure
from pyspark.sql import SparkSession

from daybreak import Summary, score
from daybreak.errors import GateError, PreflightError

Make = Callable[..., Any]
BIG = 9223372036854775707


# -- one table of odd rows -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of each row, by key: (y, told), or the dead letter."""

    summary: Summary
    refused: str
    scored: dict[int, tuple[float, str]]
    dead: dict[int | None, Any]


COLUMNS = (
    "id bigint, n bigint, amount decimal(10,2), day date, at timestamp, v array<float>, s struct<x:string,a:int>,"
    " text string"
)
ODD: dict[int, dict[str, Any]] = {
    2: {"n": None},
    3: {"amount": None},
    40: {"day": date(9999, 12, 31)},
    41: {"at": datetime(9999, 12, 31, 12)},
    50: {"v": []},
    51: {"v": None},
    52: {"s": None},
    53: {"s": {"x": "only", "a": None}},
    60: {"text": None},
    61: {"text": ""},
    62: {"text": "  "},
    63: {"text": "😀"},
    99: {"id": None},
}
DEAD = {2: "n", 40: "day", 41: "at", 51: "v", 52: "s", 53: "s", 60: "text"}


def typical(key: int) -> dict[str, Any]:
    amount, at = decimal.Decimal(f"{key}.10"), datetime(2024, 3, 31, 2, 30)
    return {
        "id": key,
        "n": BIG if key == 1 else key,
        "amount": amount,
        "day": date(2024, 2, 29),
        "at": at,
        "v": [1.0] * 3,
        "s": {"x": "x", "a": 2},
        "text": "a",
    }


@pytest.fixture(scope="module")
def odd(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, tracking: Callable[[Path], str]) -> Outcome:
    folder = tmp_path_factory.mktemp("odd")
    rows = [{**typical(key), **ODD.get(key, {})} for key in range(100)]
    spark.createDataFrame(rows, COLUMNS).coalesce(1).write.format("delta").save(f"{folder}/rows")
    inputs = [
        *(ColSpec(DataType.long, "n"), ColSpec(DataType.double, "amount"), ColSpec(DataType.datetime, "day")),
        *(ColSpec(DataType.datetime, "at"), ColSpec(Array(DataType.float), "v"), ColSpec(DataType.string, "text")),
        ColSpec(Object([Property("a", DataType.long)]), "s"),
    ]
    outputs = Schema([ColSpec(DataType.double, "y"), ColSpec(DataType.string, "told")])
    signature = ModelSignature(inputs=Schema(inputs), outputs=outputs)
    mlflow.pyfunc.save_model(f"{folder}/model", python_model=Mixed(), signature=signature, pip_requirements=[])
    document: dict[str, Any] = {
        "name": "odd",
        "input": {"table": f"{folder}/rows", "key": ["id"]},
        "window": "w",
        "model": {"uri": f"{folder}/model"},
        "output": {"table": f"{folder}/scores"},
        "batch": {"tokens": 7},
        "mlflow": {"tracking_uri": tracking(folder)},
    }
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        with pytest.raises(GateError) as refusal:
            score(document, spark=spark)
        summary = score({**document, "gates": {"max_dead_fraction": 0.5}}, spark=spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    scored = spark.read.format("delta").load(summary.output).collect()
    letters = spark.read.format("delta").load(f"{summary.output}_daybreak/dead_letters").drop("at").collect()
    dead = {json.loads(letter.key)["id"]: letter for letter in letters}
    assert (len(scored), len(letters)) == (summary.rows_scored, summary.rows_dead)
    return Outcome(summary, str(refusal.value), {row.id: (row.y, row.told) for row in scored}, dead)


def test_case_02_integers_with_a_null_and_decimals_for_doubles_have_one_policy(odd: Outcome) -> None:
    assert (odd.dead[2].error_class, "'n' is null" in odd.dead[2].message) == ("NullInput", True)
    assert odd.scored[0][0] == 0 + 0.10 + 3 + 2
    assert odd.scored[1][0] == BIG + 1.10 + 3 + 2
    assert odd.scored[3][0] is None  # a null is NaN to a float, and so is the sum


def test_case_04_the_year_9999_is_a_dead_letter_among_its_neighbours(odd: Outcome) -> None:
    assert [odd.dead[key].error_class for key in (40, 41)] == ["InvalidInput"] * 2
    assert "9999-12-31T00:00:00.000000 is beyond datetime64[ns]" in odd.dead[40].message
    assert odd.scored[39][1] == odd.scored[42][1]
    assert odd.scored[39][1].startswith("2024-02-29 2024-03-31T02:30:00 ")


def test_case_05_arrays_are_lists_and_structs_dicts_and_null_ones_dead_letters(odd: Outcome) -> None:
    assert odd.scored[50][0] == pytest.approx(50 + 50.10 + 0 + 2)
    assert [odd.dead[key].error_class for key in (51, 52, 53)] == ["NullInput", "NullInput", "InvalidInput"]
    assert "member 'a' is null" in odd.dead[53].message


def test_case_06_odd_texts_are_scored_and_a_null_is_a_dead_letter_with_its_key(odd: Outcome) -> None:
    assert odd.dead[60].phase == "input"
    assert [odd.scored[key][1].split("T02:30:00 ")[1] for key in (61, 62, 63)] == ["", "  ", "😀"]


def test_case_40_rows_in_are_rows_out_with_key_phase_and_reason(odd: Outcome) -> None:
    told = {key: (letter.phase, letter.message.split("'")[1]) for key, letter in odd.dead.items() if key is not None}
    assert told == {key: ("input", name) for key, name in DEAD.items()}
    assert (odd.dead[None].phase, odd.dead[None].error_class) == ("key", "NullKey")
    assert "8 of 100 rows are dead letters" in odd.refused
    assert (odd.summary.rows_in, odd.summary.rows_scored, odd.summary.rows_dead) == (100, 92, 8)
    assert odd.summary.rows_forward == 0  # published from what the refused run had staged, and nothing doubled
    assert set(odd.scored) == set(range(99)) - set(DEAD)
    given = json.loads(odd.dead[41].input)
    assert (given["at"], given["day"]) == ("9999-12-31T12:00:00+00:00", "2024-02-29T00:00:00+00:00")


# -- one run each ----------------------------------------------------------------------------------------------------


def test_case_22_25_a_random_model_scores_each_row_once_and_loads_once_a_process(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    model = save_model(Random(str(calls)), DOUBLE_IN, DOUBLE_OUT)
    source = table([(i, float(i)) for i in range(400)], "id bigint, x double", files=8)
    document = job(source, model, shards={"rows": 50}, output={"mode": "latest"})
    score({**document, "model": {"uri": save_model(Double(), DOUBLE_IN, DOUBLE_OUT, name="before")}}, spark=spark)
    summary = score(document, spark=spark)
    published = {row.id: row.y for row in spark.read.format("delta").load(summary.output).collect()}
    staged = spark.read.parquet(f"{summary.output}_daybreak/staging/{summary.run_id}/shards").where("kind = 'scored'")
    assert published == {row.k0: row.p0 for row in staged.select("k0", "p0").collect()}
    predicted = Counter(int(line) for file in calls.glob("scored-*") for line in file.read_text().split())
    assert predicted == Counter(range(400))
    loaded = [file.name.split("-")[1] for file in calls.glob("loaded-*")]
    assert Counter(loaded) == dict.fromkeys((file.name.split("-")[1] for file in calls.glob("scored-*")), 1)
    assert summary.shards > len(loaded)


def test_case_18_three_rows_in_eight_parts_are_scored_in_the_shards_that_hold_any(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    for i in range(3):  # a file each, and empty ones beside it: more than there are slots
        source = table([(i, float(i))], "id bigint, x double", mode="append", files=8)
    model = save_model(Double(), DOUBLE_IN, DOUBLE_OUT)
    summary = score(job(source, model, shards={"by": "files", "rows": 1}), spark=spark)
    assert (summary.status, summary.rows_scored, summary.shards) == ("published", 3, 3)


def test_case_29_a_second_version_adds_a_column_only_where_the_table_was_altered(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    source = table([(i, float(i)) for i in range(40)], "id bigint, x double", files=1)
    document = job(source, save_model(Double(), DOUBLE_IN, DOUBLE_OUT, name="v1"))
    first = score(document, spark=spark)
    outputs = Schema([*DOUBLE_OUT.inputs, ColSpec(DataType.string, "confidence", required=False)])
    document["model"] = {"uri": save_model(Unsure(), DOUBLE_IN, outputs, name="v2")}
    document |= {"window": "w2", "shards": {"by": "key", "rows": 10}}
    with pytest.raises(PreflightError, match=r"it has no column 'confidence' \(string\)") as refusal:
        score(document, spark=spark)
    alter = f"ALTER TABLE delta.`{first.output}` ADD COLUMNS (`confidence` STRING)"
    assert alter in str(refusal.value)
    spark.sql(alter)
    score(document, spark=spark)
    rows = spark.read.format("delta").load(first.output)
    assert rows.schema["confidence"].dataType.simpleString() == "string"
    assert {(row.window, row.confidence) for row in rows.collect()} == {("w1", None), ("w2", None), ("w2", "sure")}


def test_a_rude_model_harms_no_row_and_no_later_run(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    start = datetime(2024, 3, 31)
    rows = [(decimal.Decimal(f"1234567890.{i:03}"), i, start + timedelta(hours=i), [i, 1]) for i in range(300)]
    source = table(rows, "id decimal(20,3), n bigint, at timestamp, v array<bigint>", files=2)
    inputs = [ColSpec(DataType.long, "n"), ColSpec(DataType.datetime, "at"), ColSpec(Array(DataType.long), "v")]
    outputs = [ColSpec(DataType.long, "n"), ColSpec(DataType.datetime, "at"), ColSpec(DataType.long, "total")]
    document = job(source, save_model(Rude(), Schema(inputs), Schema(outputs)), batch={"tokens": 64})
    summary = score({**document, "gates": {"max_dead_fraction": 0.5}}, spark=spark)
    found = spark.read.format("delta").load(summary.output).selectExpr("id", "n", "unix_seconds(at) AS s", "total")
    began = 1711843200
    wanted = {(key, n, began + 3600 * n, n + 1) for key, n, _, _ in rows if n % 100 != 7}
    assert {tuple(row) for row in found.collect()} == wanted
    assert (summary.rows_scored, summary.rows_dead) == (297, 3)

    polite = save_model(Double(), DOUBLE_IN, DOUBLE_OUT, name="polite")  # in the same worker processes
    document = job(
        table([(1, 1.5)], "id bigint, x double", name="next"), polite, output={"table": f"{tmp_path}/next_s"}
    )
    assert score(document, spark=spark).rows_scored == 1
