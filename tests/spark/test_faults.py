"""Rows that end or stall their worker, other writers on the output, and what is left behind: in real runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from models import DOUBLE_IN, DOUBLE_OUT, Deadly, Double
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from daybreak import local, score
from daybreak.errors import GateError
from daybreak.ops import runlog
from daybreak.ops.runlog import RunLog
from daybreak.schema import Column
from daybreak.sink import tables
from daybreak.sink.tables import CONFLICTS

Make = Callable[..., Any]
REPO = Path(__file__).parents[2]


def read(spark: SparkSession, path: str | Path) -> list[Any]:
    return spark.read.format("delta").load(str(path)).collect()


def test_case_20_21_rows_that_end_or_stall_their_worker_are_dead_letters_and_the_run_goes_on(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    model = save_model(Deadly(7.0, 150.0, 399.0), DOUBLE_IN, DOUBLE_OUT)
    source = table([(i, float(i)) for i in range(400)], "id bigint, x double")
    lenient = {"gates": {"max_dead_fraction": 0.1}, "shards": {"rows": 100, "by": "key"}}
    summary = score(job(source, model, batch={"row_timeout": "6s"}, **lenient), spark=spark)

    assert (summary.status, summary.rows_scored, summary.rows_dead) == ("published", 397, 3)
    assert {row.id: row.y for row in read(spark, summary.output)} == {
        i: 2.0 * i for i in range(400) if i not in (7, 150, 399)
    }
    state = f"{summary.output}_daybreak"
    letters = {json.loads(row.key)["id"]: row for row in read(spark, f"{state}/dead_letters")}
    assert {key: (row.phase, row.error_class) for key, row in letters.items()} == {
        7: ("worker", "ProcessEndedError"),
        150: ("forward", "SystemExit"),
        399: ("worker", "RowTimeoutError"),
    }
    facts = [json.loads(row.receipt) for row in read(spark, f"{state}/shards")]
    assert sum(one.get("processes_ended", 0) for one in facts) >= 4  # of each: the batch, and the row


def test_case_20_where_spark_tries_a_task_only_once_and_the_terminal_was_closed(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    model = save_model(Deadly(7.0, -1.0, -1.0), DOUBLE_IN, DOUBLE_OUT)
    document = job(table([(i, float(i)) for i in range(100)], "id bigint, x double"), model)
    config = tmp_path / "job.yaml"
    config.write_text(json.dumps(document))
    once = ["--conf", "spark.master=local[2]", "--conf", "spark.driver.memory=1g", "--conf", "spark.ui.enabled=false"]
    command = [str(REPO / "spark-submit.sh"), *once, "jobs/score.py", "--config", str(config), "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**os.environ}, start_new_session=True, **pipes) as run:  # type: ignore[call-overload]
        staging = Path(f"{document['output']['table']}_daybreak/staging")
        while run.poll() is None and not list(staging.glob("*/plan/part-*")):
            time.sleep(0.1)
        os.killpg(run.pid, signal.SIGHUP)  # the driver's and the JVM's, as the terminal sends it
        out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    told = json.loads(out.splitlines()[-1])
    assert (told["rows_scored"], told["rows_dead"]) == (99, 1)
    assert "scored in processes of its own" in err


def test_case_26_writers_that_conflict_end_as_if_one_had_come_after_the_other(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two jobs and a busy third writer on one table of latest scores; keys 100 to 199 are in both jobs."""
    models = [save_model(Double(factor=factor), DOUBLE_IN, DOUBLE_OUT, name=f"m{factor:g}") for factor in (2.0, 3.0)]
    documents = []
    for i, (model, first) in enumerate(zip(models, (0, 100), strict=True)):
        rows = table([(k, float(k)) for k in range(first, first + 200)], "id bigint, x double", name=f"in{i}")
        over = {"name": f"job{i}", "output": {"mode": "latest"}, "state": str(tmp_path / f"state{i}")}
        documents.append(job(rows, model, **over))
    score(documents[0], spark=spark)
    output = documents[0]["output"]["table"]
    summaries, done = [], threading.Event()

    def overtaken() -> int:
        return sum("another writer committed first" in record.message for record in caplog.records)

    def busy() -> None:
        while not done.is_set() and overtaken() < 3:
            with contextlib.suppress(*CONFLICTS):
                DeltaTable.forPath(spark, output).update("id = 0", {"y": F.lit(-1.0)})

    jobs = [
        threading.Thread(target=lambda document=document: summaries.append(score(document, spark=spark, show=False)))
        for document in documents
    ]
    other = threading.Thread(target=busy)
    for thread in (*jobs, other):
        thread.start()
    for thread in jobs:
        thread.join()
    done.set()
    other.join()
    assert overtaken() >= 3

    assert [summary.status for summary in summaries] == ["published", "published"]
    by_key = {row.id: row for row in read(spark, output)}
    assert len(read(spark, output)) == len(by_key) == 300
    factors = {key: round(row.y / key) for key, row in by_key.items() if key}
    assert {factors[key] for key in range(1, 100)} == {2}
    assert {factors[key] for key in range(200, 300)} == {3}
    assert {factors[key] for key in range(100, 200)} in ({2}, {3})  # one job after the other, whole
    for document, summary in zip(documents, sorted(summaries, key=lambda one: one.job), strict=True):
        log = RunLog(spark, document["state"])
        assert [row.status for row in log.of_job(summary.job)][:1] == ["published"]


def test_case_39_an_alert_that_fails_is_recorded_and_a_clean_run_sends_none(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    source, posts = table([(i, float(i)) for i in range(40)], "id bigint, x double"), []

    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_error(500)

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        document = job(source, save_model(Double((5.0,)), DOUBLE_IN, DOUBLE_OUT), gates={"max_dead_fraction": 0.0})
        document["alerts"] = {"url": f"http://127.0.0.1:{server.server_port}/?token=secret"}
        with pytest.raises(GateError, match="1 of 40 rows"):
            score(document, spark=spark)
        [refused] = read(spark, f"{document['output']['table']}_daybreak/runs")
        told = len(posts)
        lenient = score({**document, "gates": {"max_dead_fraction": 0.5}}, spark=spark)
        server.shutdown()
        thread.join()
    assert (refused.status, refused.rows_dead) == ("refused", 1)
    assert "the alert was not delivered: HTTPError: HTTP Error 500" in refused.error
    assert "secret" not in str(refused)
    assert {(post["run_id"], post["status"], post["exit_code"]) for post in posts} == {(refused.run_id, "refused", 3)}
    assert (lenient.status, len(posts)) == ("published", told)


def test_staged_files_of_published_runs_go_after_their_retention(
    spark: SparkSession, table: Make, save_model: Make, job: Make
) -> None:
    document = job(
        table([(i, float(i)) for i in range(50)], "id bigint, x double"), save_model(Double(), DOUBLE_IN, DOUBLE_OUT)
    )
    first = score(document, spark=spark)
    staging = Path(f"{first.output}_daybreak/staging")
    assert [folder.name for folder in staging.iterdir()] == [first.run_id]
    of_no_run = runlog.name(datetime.now(UTC) - timedelta(days=8))  # its driver was killed while it planned
    planned = runlog.name(datetime.now(UTC) - timedelta(days=8))  # its driver is still about to write its row
    RunLog(spark, f"{first.output}_daybreak").beat(planned)
    for name in (of_no_run, planned, "notes"):
        (staging / name / "plan").mkdir(parents=True)
    second = score({**document, "window": "w2"}, spark=spark)
    assert {folder.name for folder in staging.iterdir()} == {first.run_id, second.run_id, planned, "notes"}
    (staging.parent / "heartbeats" / planned).unlink()

    third = score({**document, "window": "w3", "retention": "0s"}, spark=spark)
    assert [folder.name for folder in staging.iterdir()] == ["notes"]
    assert {row.run_id for row in read(spark, f"{first.output}_daybreak/runs")} == {
        one.run_id for one in (first, second, third)
    }
    assert len(read(spark, first.output)) == 150


def test_a_table_that_another_writer_has_begun_is_waited_for_and_one_that_it_left_is_finished(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    columns = (Column("id", "BIGINT", ""), Column("w", "STRING", ""))

    def create(name: str, then: Callable[[Path], None]) -> list[float]:
        place, waited = tmp_path / name, list[float]()

        def other_goes_on(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 2:
                then(place)

        tables.create(spark, str(place), columns, by_path=True, partition="w", sleep=other_goes_on)
        made = DeltaTable.forPath(spark, str(place))
        assert (made.toDF().columns, made.detail().first().partitionColumns) == (["id", "w"], ["w"])
        return waited

    (tmp_path / "begun" / "_delta_log").mkdir(parents=True)
    made_elsewhere = spark.createDataFrame([], local.struct(columns)).write.format("delta").partitionBy("w")
    assert len(create("begun", lambda place: made_elsewhere.mode("append").save(str(place)))) == 2
    (tmp_path / "left" / "_delta_log").mkdir(parents=True)
    (tmp_path / "left" / "_delta_log" / f".{0:020}.json.tmp").write_text("{}")
    assert len(create("left", lambda _: None)) == 5
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    with pytest.raises(AnalysisException, match="is not a Delta table"):
        create("foreign", lambda _: None)

    document = job(table([(1, 1.0)], "id bigint, x double"), save_model(Double(), DOUBLE_IN, DOUBLE_OUT))
    (Path(document["output"]["table"]) / "_delta_log").mkdir(parents=True)
    assert [row.y for row in read(spark, score(document, spark=spark).output)] == [2.0]
