"""The main job in a real session: counts, contents, dead letters, the run log, resume, publishing twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from models import DOUBLE_IN, DOUBLE_OUT, Choosing, Difference, Double, Random, Same, Unable
from pyspark.sql import SparkSession

from daybreak import config, run, score
from daybreak.errors import ConfigError, DaybreakError, GateError, LeaseError, ModelLoadError, ShardError
from daybreak.ops import runlog
from daybreak.sink import publish

Make = Callable[..., Any]


def read(spark: SparkSession, path: str) -> list[Any]:
    return spark.read.format("delta").load(path).collect()


def versions(spark: SparkSession, path: str) -> int:
    return len(spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect())


def numbers(count: int) -> list[tuple[int, float]]:
    return [(i, float(i)) for i in range(count)]


def refused(spark: SparkSession, document: dict[str, Any]) -> tuple[runlog.RunLog, Any]:
    """The run log, and the row of a run of the job that a gate has just refused."""
    with pytest.raises(GateError):
        score(document, spark=spark)
    log = runlog.RunLog(spark, config.parse(document).state_path())
    [row] = log.newest(1)
    return log, row


def test_each_row_is_scored_once_and_five_that_raise_are_dead_letters(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    poison = (7.0, 77.0, 177.0, 777.0, 999.0)
    document = job(table(numbers(1000), "id bigint, x double"), save_model(Double(poison), DOUBLE_IN, DOUBLE_OUT))
    summary = score(document, spark=spark)
    counts = (summary.rows_in, summary.rows_scored, summary.rows_dead, summary.rows_skipped)
    assert (summary.status, counts) == ("published", (1000, 995, 5, 0))
    assert summary.rows_forward >= 1000

    scores = {row.id: row for row in read(spark, summary.output)}
    assert {key: row.y for key, row in scores.items()} == {i: 2.0 * i for i in range(1000) if float(i) not in poison}
    assert {(row.window, row.run_id, row.input_version) for row in scores.values()} == {("w1", summary.run_id, "0")}
    assert {row.model_version for row in scores.values()} == {summary.model_version}
    files = spark.read.format("delta").load(summary.output).inputFiles()
    assert len(files) > 1, "one task has written the whole window"
    [properties] = spark.sql(f"DESCRIBE DETAIL delta.`{summary.output}`").select("properties").collect()[0]
    assert properties["delta.dataSkippingStatsColumns"] == "`id`,run_id"

    dead = read(spark, f"{summary.output}_daybreak/dead_letters")
    assert {row.key: row.message for row in dead} == {f'{{"id":{int(x)}}}': f"cannot score {x}" for x in poison}
    assert {(row.phase, row.error_class, row.run_id) for row in dead} == {("forward", "ValueError", summary.run_id)}
    assert {json.loads(row.input)["x"] for row in dead} == set(poison)

    [logged] = read(spark, f"{summary.output}_daybreak/runs")
    assert (logged.status, logged.rows_in, logged.rows_scored, logged.rows_dead) == ("published", 1000, 995, 5)
    assert (logged.output_version, logged.input_version) == (summary.output_version, "0")
    shards = read(spark, f"{summary.output}_daybreak/shards")
    assert sum(row.rows_in for row in shards) == 1000
    assert {"forward", "wall", "rows_forward", "host"} <= set(json.loads(shards[0].receipt))

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    tracked = client.get_run(logged.mlflow_run_id)
    assert tracked.data.tags["daybreak.run_id"] == summary.run_id
    assert (tracked.data.metrics["rows_dead"], tracked.data.params["input_version"]) == (5, "0")
    assert [file.path for file in client.list_artifacts(logged.mlflow_run_id)] == ["job.yaml"]


@pytest.mark.parametrize("mode", ["history", "latest"])
def test_a_second_run_publishes_again_and_doubles_nothing(
    spark: SparkSession, table: Make, save_model: Make, job: Make, mode: str
) -> None:
    model = save_model(Double(), DOUBLE_IN, DOUBLE_OUT)
    document = job(table(numbers(300), "id bigint, x double"), model, output={"mode": mode})
    first = score(document, spark=spark)
    table([(0, 1000.0), *numbers(301)[1:]], "id bigint, x double", mode="overwrite")
    second = score(document, spark=spark)
    assert second.run_id != first.run_id
    assert second.output_version > first.output_version
    scores = read(spark, second.output)
    assert {row.id: row.y for row in scores} == {0: 2000.0, **{i: 2.0 * i for i in range(1, 301)}}
    assert len(scores) == 301
    assert {row.run_id for row in scores} == {second.run_id}

    third = score({**document, "window": "w2"}, spark=spark)
    expected = 602 if mode == "history" else 301
    assert spark.read.format("delta").load(third.output).count() == expected


def test_publishing_a_run_twice_changes_nothing(
    spark: SparkSession, table: Make, save_model: Make, job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = job(table(numbers(100), "id bigint, x double"), save_model(Double((5.0,)), DOUBLE_IN, DOUBLE_OUT))

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_close", killed)
    with pytest.raises(KeyboardInterrupt):  # between the MERGE and the run log
        score(document, spark=spark)
    monkeypatch.undo()
    output = document["output"]["table"]
    before = (versions(spark, output), sorted(read(spark, output)))
    resumed = score(document, spark=spark)
    assert (versions(spark, output), sorted(read(spark, output))) == before
    assert (resumed.rows_forward, resumed.output_version, resumed.status) == (0, before[0] - 1, "published")

    strict = config.parse({**document, "gates": {"max_dead_fraction": 0.0}})
    again = run.republish(resumed.run_id, strict, spark=spark)
    assert (again.status, again.output_version, again.rows_forward) == ("published", resumed.output_version, 0)
    assert len(read(spark, f"{output}_daybreak/dead_letters")) == 1
    assert [row.status for row in read(spark, f"{output}_daybreak/runs")] == ["published"]


def test_an_older_run_is_not_published_over_a_newer_one_nor_by_another_job(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    source, model = table(numbers(60), "id bigint, x double"), save_model(Double((5.0,)), DOUBLE_IN, DOUBLE_OUT)
    document = job(source, model, output={"mode": "latest"}, gates={"max_dead_fraction": 0.0})
    document["state"] = str(tmp_path / "state")
    _, older = refused(spark, document)
    lenient = {**document, "gates": {"max_dead_fraction": 1.0}, "retention": "30d"}
    with pytest.raises(ConfigError, match="is one of job 'test', and the job file is 'another'"):
        run.republish(older.run_id, config.parse({**lenient, "name": "another"}), spark=spark)

    (tmp_path / "state").rename(tmp_path / "moved")  # of no account to what a run scores
    lenient["state"] = str(tmp_path / "moved")
    newer = score(lenient, spark=spark, fresh=True)
    before = (versions(spark, newer.output), sorted(read(spark, newer.output)))
    with pytest.raises(DaybreakError, match=f"{older.run_id} is older than {newer.run_id}"):
        run.republish(older.run_id, config.parse(lenient), spark=spark)
    assert (versions(spark, newer.output), sorted(read(spark, newer.output))) == before

    strict = {**lenient, "window": "w9", "gates": {"max_dead_fraction": 0.0}}
    _, other = refused(spark, strict)
    (tmp_path / "moved").rename(tmp_path / "moved again")
    strict = {**strict, "state": str(tmp_path / "moved again"), "gates": {"max_dead_fraction": 1.0}}
    assert run.republish(other.run_id, config.parse(strict), spark=spark).rows_scored == 59


def test_a_run_is_published_where_it_was_meant_to_be_or_not_at_all(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, model = table(numbers(60), "id bigint, x double"), save_model(Double((5.0,)), DOUBLE_IN, DOUBLE_OUT)
    document = job(source, model, output={"table": "./scores"}, gates={"max_dead_fraction": 0.0})
    document["state"] = str(tmp_path / "state")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    _, row = refused(spark, document)
    monkeypatch.chdir(tmp_path / "elsewhere")
    lenient = config.parse({**document, "gates": {"max_dead_fraction": 1.0}})
    with pytest.raises(ConfigError, match=f"is for {tmp_path}/scores, .* means {tmp_path}/elsewhere/scores from here"):
        run.republish(row.run_id, lenient, spark=spark)
    assert not any((tmp_path / "elsewhere").iterdir())
    monkeypatch.chdir(tmp_path)
    assert run.republish(row.run_id, lenient, spark=spark).rows_scored == 59


def test_a_refused_run_gives_way_to_a_newer_input(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    document = job(table([], "id bigint, x double"), save_model(Double(), DOUBLE_IN, DOUBLE_OUT))
    with pytest.raises(GateError, match=r"0 rows, and gates\.min_rows is 1"):
        score(document, spark=spark)
    table(numbers(40), "id bigint, x double", mode="append")
    summary = score(document, spark=spark)
    assert (summary.rows_scored, summary.input_version) == (40, "1")


def test_columns_may_have_any_name_that_we_use_ourselves(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    source = table(
        [(i, float(i), 1, 2, 3) for i in range(60)], "count int, x double, place int, input_hash int, rows int"
    )
    document = job(source, save_model(Double(), DOUBLE_IN, DOUBLE_OUT), input={"key": "count"}, select="changed")
    spark.range(1).createOrReplaceTempView("mine")
    assert score(document, spark=spark).rows_scored == 60
    assert score(document, spark=spark).rows_skipped == 60
    assert SparkSession.getActiveSession().table("mine").count() == 1  # the user's session is the active one again


def test_a_row_that_dies_loses_its_earlier_score(spark: SparkSession, table: Make, save_model: Make, job: Make) -> None:
    document = job(table(numbers(50), "id bigint, x double"), save_model(Double((5.0,)), DOUBLE_IN, DOUBLE_OUT))
    healthy = save_model(Double(), DOUBLE_IN, DOUBLE_OUT, name="healthy")
    score({**document, "model": {"uri": healthy}}, spark=spark)
    summary = score({**document, "gates": {"max_dead_fraction": 0.1}}, spark=spark)
    assert sorted(row.id for row in read(spark, summary.output)) == [i for i in range(50) if i != 5]


def test_what_did_not_change_is_not_scored_again(spark: SparkSession, table: Make, save_model: Make, job: Make) -> None:
    model = save_model(Double(), DOUBLE_IN, DOUBLE_OUT)
    document = job(table(numbers(200), "id bigint, x double"), model, select="changed", output={"mode": "latest"})
    score(document, spark=spark)
    still = score(document, spark=spark)
    assert (still.status, still.rows_skipped, still.rows_forward) == ("nothing", 200, 0)

    changed = [(i, 7000.0 if i in (3, 150) else float(i)) for i in range(201)]
    table(changed, "id bigint, x double", mode="overwrite")
    part = score(document, spark=spark)
    assert (part.rows_in, part.rows_scored, part.rows_skipped, part.rows_forward) == (201, 3, 198, 3)
    assert {row.id: row.y for row in read(spark, part.output)} == {i: 2 * x for i, x in changed}

    other = save_model(Double(factor=3.0), DOUBLE_IN, DOUBLE_OUT, name="other")
    anew = score({**document, "model": {"uri": other}}, spark=spark)
    assert anew.rows_skipped == 0


def test_a_model_that_was_registered_anew_under_the_old_name_and_version_scores_all_rows(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    source = table(numbers(60), "id bigint, x double")
    document = job(source, "models:/again/1", select="changed", output={"mode": "latest"})
    client = mlflow.MlflowClient(document["mlflow"]["tracking_uri"])
    for factor in (2.0, 3.0):
        client.create_registered_model("again")
        path = save_model(Double(factor=factor), DOUBLE_IN, DOUBLE_OUT, name=f"by {factor}")
        assert client.create_model_version("again", path).version in (1, "1")
        summary = score(document, spark=spark)
        assert (summary.rows_scored, summary.rows_skipped) == (60, 0)
        assert {row.y for row in read(spark, summary.output)} == {factor * i for i in range(60)}
        client.delete_registered_model("again")


def test_a_run_is_not_resumed_with_another_model_in_the_place_of_the_pinned_one(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    model = save_model(Double((5.0,)), DOUBLE_IN, DOUBLE_OUT)
    document = job(table(numbers(60), "id bigint, x double"), model, gates={"max_dead_fraction": 0.0})
    _, row = refused(spark, document)
    shutil.rmtree(model)
    save_model(Double((5.0,), factor=3.0), DOUBLE_IN, DOUBLE_OUT)
    with pytest.raises(ModelLoadError, match="has changed since it was pinned"):
        run.republish(row.run_id, config.parse({**document, "gates": {"max_dead_fraction": 1.0}}), spark=spark)
    assert not Path(document["output"]["table"]).exists()


@pytest.mark.parametrize("by", ["key", "files"])
def test_case_32_resume_scores_what_is_left_with_the_first_pins(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path, by: str
) -> None:
    flag = tmp_path / "not mounted"
    flag.touch()
    source = table(numbers(1000), "id bigint, x double", files=8)
    document = job(source, "models:/twice@champion", shards={"rows": 125, "by": by})
    client = mlflow.MlflowClient(document["mlflow"]["tracking_uri"])
    client.create_registered_model("twice")

    def crown(name: str, model: Any) -> None:
        path = save_model(model, DOUBLE_IN, DOUBLE_OUT, name=name)
        version = client.create_model_version("twice", path).version
        client.set_registered_model_alias("twice", "champion", version)

    crown("v1", Unable(777.0, str(flag)))
    with pytest.raises(ShardError, match="same command"):
        score(document, spark=spark)
    assert not Path(document["output"]["table"]).exists()
    [failed] = read(spark, f"{document['output']['table']}_daybreak/runs")
    assert failed.status == "failed"
    assert "libfeatures.so is not mounted" in failed.error

    flag.unlink()
    table([(5000, 1.0)], "id bigint, x double", mode="append", files=1)  # table and alias move on: the run does not
    crown("v2", Double(factor=3.0))
    wider = spark.newSession()
    wider.conf.set("spark.sql.shuffle.partitions", "5")
    wider.conf.set("spark.sql.files.maxPartitionBytes", "300b")  # would begin a file's rows elsewhere
    summary = score(document, spark=wider)
    assert summary.run_id == failed.run_id
    assert (summary.input_version, summary.model_version) == ("0", "1")
    assert summary.shards_resumed >= 1
    assert 0 < summary.rows_forward < 1000
    assert {row.id: row.y for row in read(spark, summary.output)} == {i: 2.0 * i for i in range(1000)}
    assert spark.read.format("delta").load(summary.output).count() == 1000

    fresh = score(document, spark=spark)
    assert (fresh.run_id != summary.run_id, fresh.rows_in, fresh.input_version) == (True, 1001, "1")
    assert (fresh.model_version, fresh.shards_resumed) == ("2", 0)
    assert {row.id: row.y for row in read(spark, fresh.output)} == {**{i: 3.0 * i for i in range(1000)}, 5000: 3.0}


def test_auto_precision_is_decided_by_a_worker_and_pinned(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    model = save_model(Choosing(), DOUBLE_IN, DOUBLE_OUT)
    document = job(table(numbers(20), "id bigint, x double"), model, model={"uri": model, "precision": "auto"})
    decided = score(document, spark=spark)
    again = score(document, spark=spark)
    pinned = {row.run_id: json.loads(row.pins)["precision"] for row in read(spark, f"{decided.output}_daybreak/runs")}
    assert pinned[decided.run_id] == pinned[again.run_id]  # the same dictionary: it was not decided a second time
    assert pinned[decided.run_id]["precision"] == "fp32"
    assert "bf16" in pinned[decided.run_id]["reason"]
    receipts = read(spark, f"{decided.output}_daybreak/shards")
    assert {json.loads(row.receipt)["precision"] for row in receipts} == {"fp32"}
    assert {row.id: row.y for row in read(spark, decided.output)} == {i: 2.0 * i for i in range(20)}


def test_the_worker_that_decides_on_the_precision_goes_on_with_the_model_that_it_loaded(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(spark.sparkContext.environment, "DAYBREAK_TEST", "has workers of its own")
    (calls := tmp_path / "calls").mkdir()
    model = save_model(Random(str(calls)), DOUBLE_IN, DOUBLE_OUT)
    score(job(table(numbers(20), "id bigint, x double"), model, model={"uri": model, "precision": "auto"}), spark=spark)
    assert len(list(calls.glob("loaded-*"))) == 1


def test_a_resumed_run_keeps_the_precision_of_its_staged_shards(
    spark: SparkSession, table: Make, save_model: Make, job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_model(Choosing(), DOUBLE_IN, DOUBLE_OUT)
    document = job(table(numbers(20), "id bigint, x double"), model, model={"uri": model, "precision": "auto"})
    with monkeypatch.context() as killed:
        killed.setattr(run, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            score(document, spark=spark)
    resumed = score(document, spark=spark)
    [row] = read(spark, f"{resumed.output}_daybreak/runs")
    pinned = {"precision": "fp32", "reason": "the staged shards were scored in it"}
    assert (resumed.rows_forward, json.loads(row.pins)["precision"]) == (0, pinned)


def test_a_gate_may_change_without_scoring_again_and_another_configuration_may_not(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    document = job(table(numbers(100), "id bigint, x double"), save_model(Double((5.0,)), DOUBLE_IN, DOUBLE_OUT))
    document["gates"] = {"max_dead_fraction": 0.0}
    with pytest.raises(GateError, match=r"1 of 100 rows are dead letters \(1\.00%\)"):
        score(document, spark=spark)
    assert not Path(document["output"]["table"]).exists()
    lenient = score({**document, "gates": {"max_dead_fraction": 0.5}}, spark=spark)
    assert (lenient.status, lenient.rows_forward, lenient.shards_resumed) == ("published", 0, lenient.shards)

    with pytest.raises(GateError):
        score(document, spark=spark)
    other = score({**document, "input": {**document["input"], "where": "id >= 0"}, "gates": {}}, spark=spark)
    assert (other.rows_forward >= 100, other.shards_resumed) == (True, 0)


def test_case_18_a_table_of_no_rows_is_done_where_the_gate_allows_it(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    document = job(table([], "id bigint, x double"), save_model(Double(), DOUBLE_IN, DOUBLE_OUT))
    summary = score({**document, "gates": {"min_rows": 0}}, spark=spark)
    assert (summary.status, summary.rows_in) == ("nothing", 0)


def test_case_01_a_null_key_is_a_dead_letter_and_its_neighbour_is_exact(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    big = 9223372036854775707
    rows = [(big, 1.0), (None, 2.0), (big - 1, None)]
    document = job(table(rows, "id bigint, x double", files=1), save_model(Double(), DOUBLE_IN, DOUBLE_OUT))
    summary = score({**document, "gates": {"max_dead_fraction": 1.0}}, spark=spark)
    assert (summary.rows_in, summary.rows_scored, summary.rows_dead) == (3, 2, 1)
    assert {row.id for row in read(spark, summary.output)} == {big, big - 1}
    [letter] = read(spark, f"{summary.output}_daybreak/dead_letters")
    assert (letter.key, letter.phase, letter.error_class) == ('{"id":null}', "key", "NullKey")


def test_case_01_integers_beside_nulls_keep_every_digit_whatever_the_largest_of_them_is(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    """pandas makes such a column through float64, and looks at its largest value alone to see whether digits went."""
    big = 2**53 + 1
    signature = Schema([ColSpec(DataType.long, "n", required=False)])
    rows = [(None, 1), (0, None), (-big, -big), (-big - 2, 2**60), (2**60, -big)]
    document = job(
        table(rows, "id bigint, n bigint", files=1),
        save_model(Same(), signature, Schema([ColSpec(DataType.string, "told")])),
        gates={"max_dead_fraction": 1.0},
    )
    summary = score(document, spark=spark)
    assert (summary.rows_in, summary.rows_scored, summary.rows_dead) == (5, 4, 1)
    told = {row.id: row.told for row in read(spark, summary.output)}
    assert told == {key: "None" if n is None else str(n) for key, n in rows if key is not None}


def test_case_09_inputs_are_taken_by_name_with_an_optional_one_absent_and_params_pass_through(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    source = table([(10, 1, i) for i in range(5)], "b int, a int, id bigint")
    model = save_model(
        Difference(),
        Schema([ColSpec(DataType.long, "a"), ColSpec(DataType.long, "b"), ColSpec(DataType.long, "c", required=False)]),
        Schema([ColSpec(DataType.long, "d"), ColSpec(DataType.long, "s")]),
        params=ParamSchema([ParamSpec("times", DataType.long, 1)]),
    )
    summary = score(job(source, model, model={"params": {"times": 3}}), spark=spark)
    assert {(row.d, row.s) for row in read(spark, summary.output)} == {(9, 33)}


def test_catalog_tables_by_name(spark: SparkSession, save_model: Make, job: Make, tmp_path: Path) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS nights")
    spark.createDataFrame(numbers(30), "id bigint, x double").write.format("delta").saveAsTable("nights.people")
    model = save_model(Double(), DOUBLE_IN, DOUBLE_OUT)
    document = job("nights.people", model, state=str(tmp_path / "state"), input={"where": "id < 20"})
    document["output"] = {"table": "nights.scores", "mode": "latest"}
    try:
        summary = score(document, spark=spark)
        assert spark.table("nights.scores").count() == 20
        assert {path.name for path in (tmp_path / "state").iterdir()} >= {"runs", "shards", "dead_letters", "staging"}
        score(document, spark=spark)
        assert spark.table("nights.scores").count() == 20
        assert summary.output == "nights.scores"
    finally:
        spark.sql("DROP DATABASE nights CASCADE")


def test_file_splits_and_key_buckets_give_the_same_scores(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    source = table(numbers(400), "id bigint, x double", files=4)
    model = save_model(Double((8.0,)), DOUBLE_IN, DOUBLE_OUT)
    contents = []
    for by in ("files", "key"):
        document = job(source, model, shards={"by": by, "rows": 100}, output={"table": str(tmp_path / by)})
        summary = score(document, spark=spark)
        contents.append({(row.id, row.y, row.input_hash) for row in read(spark, summary.output)})
        plan = json.loads(read(spark, f"{summary.output}_daybreak/runs")[0].pins)["plan"]
        assert (plan["by"], summary.shards) == (by, 4)
    assert contents[0] == contents[1]
    assert len(contents[0]) == 399


def test_a_second_driver_is_refused_while_the_first_may_be_alive(
    spark: SparkSession, table: Make, save_model: Make, job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = job(table(numbers(100), "id bigint, x double"), save_model(Double((1.0,)), DOUBLE_IN, DOUBLE_OUT))
    document["gates"] = {"max_dead_fraction": 0.0}
    log, row = refused(spark, document)
    elsewhere = runlog.Holder("another-host", 1, "2")
    log.update(row.run_id, status="scoring", holder=str(elsewhere))
    log.beat(row.run_id)
    with pytest.raises(LeaseError, match=f"run {row.run_id} of job 'test' is held by process 1 on another-host"):
        score(document, spark=spark)

    monkeypatch.setattr(runlog, "STALE_AFTER", runlog.timedelta(0))
    with pytest.raises(GateError):  # a stale holder is taken over
        score(document, spark=spark)
    [row] = log.newest(1)
    assert (row.holder, row.epoch) == (str(runlog.Holder.here()), 2)


def test_what_a_driver_left_that_was_killed_as_it_beat_is_no_heartbeat(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    document = job(table(numbers(60), "id bigint, x double"), save_model(Double((1.0,)), DOUBLE_IN, DOUBLE_OUT))
    document["gates"] = {"max_dead_fraction": 0.0}
    log, row = refused(spark, document)
    log.update(row.run_id, status="scoring", holder=str(runlog.Holder("another-host", 1, "2")))
    for left in ("", '{"holder": "another-ho'):
        log.storage.write_text(left, "heartbeats", row.run_id)
        assert log.last_beat(row.run_id) is None
    assert score({**document, "gates": {"max_dead_fraction": 1.0}}, spark=spark).rows_forward == 0


def test_two_threads_are_two_drivers(spark: SparkSession, table: Make, save_model: Make, job: Make) -> None:
    document = job(table(numbers(20), "id bigint, x double"), save_model(Double(), DOUBLE_IN, DOUBLE_OUT))
    with (
        runlog.alone(config.parse(document).state_path(), document["name"]),
        pytest.raises(LeaseError, match="job 'test' is running in another thread"),
    ):
        score(document, spark=spark)
    assert not Path(document["output"]["table"]).exists()
    assert score(document, spark=spark).rows_scored == 20


def test_a_lease_that_is_lost_on_the_way_to_the_merge_is_noticed(
    spark: SparkSession, table: Make, save_model: Make, job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause of this driver, in which another takes over and publishes: the MERGE would read the output after that."""
    document = job(table(numbers(20), "id bigint, x double"), save_model(Double(), DOUBLE_IN, DOUBLE_OUT))
    create = publish._create

    def taken_over_meanwhile(*args: Any) -> None:
        create(*args)
        log = runlog.RunLog(spark, f"{document['output']['table']}_daybreak")
        log.update(log.newest(1)[0].run_id, holder="another-host:1:2")

    monkeypatch.setattr(publish, "_create", taken_over_meanwhile)
    with pytest.raises(LeaseError):
        score(document, spark=spark)
    assert read(spark, document["output"]["table"]) == []


def test_a_driver_that_lost_its_lease_may_not_publish(
    spark: SparkSession, table: Make, save_model: Make, job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = job(table(numbers(100), "id bigint, x double"), save_model(Double(), DOUBLE_IN, DOUBLE_OUT))
    audited = run._audit

    def taken_over_meanwhile(current: run.Run) -> Any:
        result = audited(current)
        current.log.update(current.run_id, holder="another-host:1:2")
        return result

    monkeypatch.setattr(run, "_audit", taken_over_meanwhile)
    with pytest.raises(LeaseError):
        score(document, spark=spark)
    assert not Path(document["output"]["table"]).exists()


def test_staged_rows_that_vanish_are_noticed_before_publishing(
    spark: SparkSession, table: Make, save_model: Make, job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = job(table(numbers(400), "id bigint, x double"), save_model(Double(), DOUBLE_IN, DOUBLE_OUT))
    scored = run._score

    def then_lose_a_file(current: run.Run, **kwargs: Any) -> None:
        scored(current, **kwargs)
        victim = current.staging.storage.files("shards")[0]
        Path(victim.path.removeprefix("file:")).unlink()

    monkeypatch.setattr(run, "_score", then_lose_a_file)
    with pytest.raises(GateError, match=r"1 shard\(s\) do not reconcile"):
        score(document, spark=spark)
    assert not Path(document["output"]["table"]).exists()
    monkeypatch.undo()
    fresh = score(document, spark=spark, fresh=True)
    assert (fresh.rows_scored, fresh.rows_forward, fresh.shards_resumed) == (400, 400, 0)


def test_times_are_utc_whatever_the_session_says(spark: SparkSession, table: Make, save_model: Make, job: Make) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        document = job(table(numbers(10), "id bigint, x double"), save_model(Double(), DOUBLE_IN, DOUBLE_OUT))
        before = datetime.now(UTC)
        summary = score({**document, "window": "{date}"}, spark=spark)
        assert spark.conf.get("spark.sql.session.timeZone") == "Pacific/Auckland"
        assert summary.window == f"{before:%Y-%m-%d}"
        [at] = {
            row[0]
            for row in spark.read.format("delta").load(summary.output).selectExpr("unix_seconds(scored_at)").collect()
        }
        assert before.timestamp() - 1 <= at <= datetime.now(UTC).timestamp()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
