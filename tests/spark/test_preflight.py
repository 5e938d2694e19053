"""What is refused before any executor works: each with its exit code and a message that a person can act on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.types import ColSpec, DataType, Schema
from models import DOUBLE_IN, DOUBLE_OUT, Double, NeedsAbsentModule
from pyspark.sql import SparkSession

from daybreak import score
from daybreak.cli import main
from daybreak.errors import DaybreakError, ModelLoadError, PreflightError
from daybreak.ops import doctor

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def people(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("tables") / "people")
    rows = [(i, float(i), str(i), [i], i % 3) for i in range(30)]
    spark.createDataFrame(rows, "id bigint, x double, name string, list array<int>, third int").write.format(
        "delta"
    ).save(path)
    return path


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("models") / "double")
    signature = mlflow.models.ModelSignature(inputs=DOUBLE_IN, outputs=DOUBLE_OUT)
    mlflow.pyfunc.save_model(path=path, python_model=Double(), signature=signature, pip_requirements=[])
    return path


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "missing table": ({"input": {"table": "./no/such/table"}}, "there is no table at .*/no/such/table"),
    "missing catalog table": ({"input": {"table": "nowhere"}}, "there is no table 'nowhere' in the catalog"),
    "not parquet": ({"input": {"format": "parquet"}}, "input.format is 'parquet', and .* is a Delta table"),
    "missing version": ({"input": {"version": 99}}, "input.version 99 .* cannot be read; the newest is 0"),
    "missing key column": ({"input": {"key": ["idd"]}}, "key column 'idd' is not in the table"),
    "array key": ({"input": {"key": ["list"]}}, "key column 'list' is of type array<int>: an array has no order"),
    "duplicate key": ({"input": {"key": ["third"]}}, r"names more than one row:\n  - third=0 \(10 rows\)"),
    "wrong type": ({"input": {"columns": {"x": "name"}}}, "column 'name' is string, .* 'x' is double"),
    "missing column": ({"input": {"columns": {"x": "y"}}}, "column 'y' is not in the table, .* needs it as double"),
    "no such input": ({"input": {"columns": {"z": "x"}}}, "input.columns names 'z', which is no input of the model"),
    "bad condition": ({"input": {"where": "x >"}}, "input.where 'x >' is refused by Spark"),
    "unknown in condition": ({"input": {"where": "q > 1"}}, "input.where 'q > 1' is refused by Spark"),
    "unstable condition": ({"input": {"where": "rand() > 0.5"}}, "is not deterministic"),
    "clock in condition": (
        {"input": {"where": "x > 1 AND current_date() > '2020-01-01'"}},
        "at another time: current_date",
    ),
    "clock in a date": ({"input": {"where": "date(name) < DATE 'tomorrow'"}}, "at another time: 'tomorrow'"),
    "clock in a cast": ({"input": {"where": "date(name) < 'Yesterday UTC'"}}, "at another time: 'Yesterday UTC'"),
    "no such output schema": ({"output": {"table": "nodb.t"}, "state": "./s"}, "in the schema 'nodb', which does not"),
    "not a catalog name": ({"input": {"table": "lake.my-table"}}, "'lake.my-table' is no catalog name"),
    "missing model": ({"model": {"uri": "./no/such/model"}}, "no/such/model"),
    "missing registered model": ({"model": {"uri": "models:/nobody@champion"}}, "nobody"),
    "unknown parameter": ({"model": {"params": {"heat": 1}}}, r"model.params \['heat'\] are not in the model's"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_starts(
    spark: SparkSession, people: str, double: str, job: Make, name: str, tmp_path: Path
) -> None:
    over, message = REFUSED[name]
    with pytest.raises(DaybreakError, match=message) as refusal:
        score(job(people, double, **over), spark=spark)
    assert refusal.value.exit_code == 2
    assert not (tmp_path / "scores_daybreak").exists()


def test_case_09_an_absent_column_is_told_among_all_misfits(
    spark: SparkSession, people: str, save_model: Make, job: Make
) -> None:
    inputs = Schema([ColSpec(DataType.long, "name"), ColSpec(DataType.string, "x"), ColSpec(DataType.double, "z")])
    with pytest.raises(PreflightError) as refusal:
        score(job(people, save_model(Double(), inputs, DOUBLE_OUT), input={"key": "nokey"}), spark=spark)
    for told in ("'nokey'", "'name' is string", "'x' is double", "'z' is not in the table"):
        assert told in str(refusal.value)


def test_case_23_a_doubled_key_is_listed_before_anything_is_scored(
    spark: SparkSession, double: str, table: Make, job: Make, tmp_path: Path
) -> None:
    rows = [(5, 1.0), (6, 1.0), (5, 2.0), (None, 1.0), (None, 2.0)]
    with pytest.raises(PreflightError) as refusal:
        score(job(table(rows, "id bigint, x double"), double), spark=spark)
    assert "the key ['id'] names more than one row:\n  - id=5 (2 rows)\n" in str(refusal.value)
    assert not (tmp_path / "scores_daybreak").exists()


def test_a_view_is_refused_and_told_why(spark: SparkSession, double: str, people: str, job: Make) -> None:
    spark.sql(f"CREATE OR REPLACE TABLE plain USING delta AS SELECT * FROM delta.`{people}`")
    spark.sql("CREATE OR REPLACE VIEW numbered AS SELECT *, uuid() AS u FROM plain")
    try:
        with pytest.raises(PreflightError, match="'numbered' is a view, and a view has no version to pin"):
            score(job("numbered", double), spark=spark)
    finally:
        spark.sql("DROP VIEW numbered")
        spark.sql("DROP TABLE plain")


def test_case_27_an_output_of_other_types_is_refused(
    spark: SparkSession, people: str, double: str, job: Make, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/scores` (id string, window string, y string) USING delta")
    with pytest.raises(PreflightError) as refusal:
        score(job(people, double), spark=spark)
    for told in (
        "'id' is string, and the run has bigint",
        "'y' is string, and the run has double",
        "partitioned by []",
    ):
        assert told in str(refusal.value)


def test_a_prediction_named_like_the_key_is_refused(
    spark: SparkSession, people: str, save_model: Make, job: Make
) -> None:
    model = save_model(Double(), DOUBLE_IN, Schema([ColSpec(DataType.double, "ID")]))
    with pytest.raises(PreflightError, match="two columns named 'ID'"):
        score(job(people, model), spark=spark)


def test_a_model_without_signature_is_refused(spark: SparkSession, people: str, job: Make, tmp_path: Path) -> None:
    mlflow.pyfunc.save_model(path=str(tmp_path / "bare"), python_model=Double(), pip_requirements=[])
    with pytest.raises(DaybreakError, match="has no signature"):
        score(job(people, str(tmp_path / "bare")), spark=spark)


def test_case_10_a_missing_module_is_one_fatal_error_and_no_dead_letters(
    spark: SparkSession, people: str, save_model: Make, job: Make, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match="a_module_that_is_nowhere"):
        score(job(people, save_model(NeedsAbsentModule(), DOUBLE_IN, DOUBLE_OUT), shards={"rows": 100}), spark=spark)
    assert not (tmp_path / "scores").exists()
    assert spark.read.format("delta").load(f"{tmp_path}/scores_daybreak/dead_letters").count() == 0


@pytest.fixture
def command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return run  # type: ignore[return-value]


def test_the_command_line_ends_with_json_and_exit_codes(
    spark: SparkSession, people: str, double: str, job: Make, tmp_path: Path, command_line: Make
) -> None:
    file = tmp_path / "job with space.yaml"
    file.write_text(json.dumps(job(people, double)))
    code, out, err = command_line("score", "--config", str(file), "--json")
    told = json.loads(out.splitlines()[-1])
    assert (code, told["rows_scored"], told["status"]) == (0, 30, "published")
    names = "run_id status rows_in rows_scored rows_dead rows_skipped rows_forward shards shards_resumed seconds"
    assert set(f"{names} input_version model_version output_version".split()) <= set(told)
    assert "30 of 30 rows, 1 of 1 shards" in err

    code, out, _ = command_line("runs", "--config", str(file))
    assert (code, told["run_id"] in out, "published" in out) == (0, True, True)

    code, out, _ = command_line("publish", "--config", str(file), told["run_id"], "--json")
    assert (code, json.loads(out.splitlines()[-1])["output_version"]) == (0, told["output_version"])
    code, _, err = command_line("publish", "--config", str(file), "20990101T000000Z-nowhere")
    assert (code, "there is no run '20990101T000000Z-nowhere'" in err, told["run_id"] in err) == (1, True, True)

    for overrides, expected in (
        (["input.key=third"], 2),
        (["gates.min_rows=31", "window=w9"], 3),
        (["input.freshness.max_age=0s"], 4),
        (["model.uri=models:/nobody/1"], 2),
    ):
        code, _, err = command_line("score", "--config", str(file), *(f"--set={one}" for one in overrides))
        assert code == expected
        assert err.splitlines()[-1 if "to mend it" not in err else -2].startswith(("daybreak: ", "  - ", "  "))
        assert "Traceback" not in err


def test_doctor_says_what_is_there_and_what_is_not(
    spark: SparkSession, people: str, double: str, job: Make, tmp_path: Path, command_line: Make
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job(people, double)))
    code, out, _ = command_line("doctor", "--config", str(file))
    assert code == 0, out
    for told in ("packages", "with Delta Lake", "Java", "GPU", "takes x double and gives y double", "version 0 of"):
        assert told in out
    assert "a task's file is in place when the task commits" in out
    assert not list((tmp_path / "scores_daybreak" / "staging").glob("*"))

    (tmp_path / "file").touch()  # where no folder can be made, as without the right to
    bad = ("--set", "input.table=./nowhere", "--set", f"state={tmp_path}/file/state")
    code, out, _ = command_line("doctor", "--config", str(file), *bad)
    assert (code, "BAD  job: there is no table at" in out, "BAD  staging: could not be checked" in out) == (
        2,
        True,
        True,
    )


def test_doctor_and_runs_end_with_what_is_wrong_whatever_is(
    spark: SparkSession, people: str, double: str, job: Make, tmp_path: Path, command_line: Make,
) -> None:  # fmt: skip
    system = spark._jvm.java.lang.System  # type: ignore[union-attr]
    version = system.getProperty("java.version")
    for told, ok in (("17-ea", "ok "), ("tomorrow", "BAD")):
        system.setProperty("java.version", told)
        try:
            findings = [str(finding) for finding in doctor.examine(None)]
        finally:
            system.setProperty("java.version", version)
        assert any(finding.startswith(f"{ok}  Java") and told in finding for finding in findings)
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job(people, double)))
    spark.range(3).write.format("delta").save(f"{tmp_path}/other/runs")
    code, _, err = command_line("runs", "--config", str(file), "--set", f"state={tmp_path}/other")
    assert code == 2
    assert "is no run log that this Daybreak reads" in err
