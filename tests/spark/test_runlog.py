"""The run log over time: tables of an older Daybreak, pruned and restored ones."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from models import DOUBLE_IN, DOUBLE_OUT, Double, Unable
from pyspark.sql import SparkSession

from daybreak import config, local, run, schema, score
from daybreak.errors import GateError, LeaseError, ShardError
from daybreak.ops import runlog
from daybreak.ops.runlog import RunLog
from daybreak.sink import tables

Make = Callable[..., Any]

STATE_TABLES = {"runs": schema.RUNS, "shards": schema.SHARDS, "dead_letters": schema.DEAD_LETTERS}


def row_of(**values: Any) -> list[Any]:
    known = {"run_id": "r1", "job": "test", "status": runlog.SCORING, "epoch": 3, "holder": "gone:1:2"}
    told = {**known, "started_at": datetime(2026, 12, 1, tzinfo=UTC), **values}
    return [told.get(column.name) for column in schema.RUNS]


def test_state_tables_of_an_older_daybreak_are_read_as_they_are_and_then_given_the_columns_that_they_lack(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, lost = RunLog(spark, str(tmp_path)), {name: columns[-2:] for name, columns in STATE_TABLES.items()}
    for name, columns in STATE_TABLES.items():
        tables.create(spark, log.at(name), columns[:-2], by_path=True)
    local.frame(spark, [row_of()[:-2]], schema.RUNS[:-2]).write.format("delta").mode("append").save(log.at("runs"))

    [row] = log.of_job("test")  # no column is added by who only reads
    assert (row.run_id, row.epoch, row[lost["runs"][0].name], row[lost["runs"][1].name]) == ("r1", 3, None, None)
    assert log.find("r1") == log.newest(1)[0] == row

    drivers = [threading.Thread(target=RunLog(spark.newSession(), str(tmp_path)).create) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    log.create()
    for name, columns in STATE_TABLES.items():
        table = DeltaTable.forPath(spark, log.at(name))
        assert table.toDF().columns == [column.name for column in columns]
        assert table.history().count() == (3 if name == "runs" else 2)  # created, a row, and the columns, once
    log.update("r1", **{lost["runs"][0].name: "told"})
    [row] = log.of_job("test")
    assert (row.run_id, row.status, row[lost["runs"][0].name]) == ("r1", runlog.SCORING, "told")


def test_a_run_that_ended_in_the_middle_goes_on_whatever_changes_in_how_it_is_executed(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    """It cannot be published by hand before; and it may be one of an older Daybreak."""
    (flag := tmp_path / "not mounted").touch()
    source = table([(i, float(i)) for i in range(40)], "id bigint, x double", files=1)
    model = save_model(Unable(7.0, str(flag), poison=range(30)), DOUBLE_IN, DOUBLE_OUT)
    document = job(source, model, shards={"by": "key", "rows": 10}, gates={"max_dead_fraction": 1.0})
    with pytest.raises(ShardError):
        score(document, spark=spark)
    log = RunLog(spark, f"{document['output']['table']}_daybreak")
    [failed] = log.of_job("test")
    with pytest.raises(
        GateError, match=r"is not scored to its end: \d of 4 shards .* stays failed(.|\n)*daybreak score"
    ):
        run.republish(failed.run_id, config.parse(document), spark=spark)
    assert log.of_job("test") == [failed]

    recorded = json.loads(failed.config)
    for later in ("redact", "retention", "select"):
        recorded.pop(later)
    log.update(failed.run_id, config=json.dumps(recorded), config_digest="0123456789ab")
    flag.unlink()
    table([(99, 99.0)], "id bigint, x double", files=1, mode="append")
    renamed = shutil.copytree(model, tmp_path / "renamed")
    tuned = {
        **document,
        "model": {**document["model"], "uri": str(renamed)},
        "batch": {"row_timeout": "120s", "tokens": 64, "window_rows": 7},
        "shards": {"by": "key", "rows": 20},
        "redact": True,
    }
    summary = score(tuned, spark=spark)
    assert (summary.run_id, summary.input_version, summary.rows_in, summary.shards) == (failed.run_id, "0", 40, 4)
    assert summary.shards_resumed > 0
    letters = spark.read.format("delta").load(log.at("dead_letters")).collect()
    assert len(letters) == 30
    assert {(row.message, row.input) for row in letters} == {(schema.REDACTED, None)}, "of what was staged before, too"


@pytest.mark.parametrize("tidied", ["pruned", "restored", "restored in the middle"])
def test_a_run_log_that_was_pruned_or_restored_locks_no_job_out(
    tidied: str, spark: SparkSession, table: Make, save_model: Make, job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = job(
        table([(i, float(i)) for i in range(9)], "id bigint, x double", files=1),
        save_model(Double((5.0,)), DOUBLE_IN, DOUBLE_OUT),
        gates={"max_dead_fraction": 0.0},
    )
    log = RunLog(spark, f"{document['output']['table']}_daybreak")

    def tidy() -> None:
        if tidied == "pruned":
            spark.sql(f"DELETE FROM delta.`{log.at('runs')}`")
        else:
            DeltaTable.forPath(spark, log.at("runs")).restoreToVersion(1 if tidied == "restored" else 0)

    for _ in range(3):  # the second and the third take the lease over
        with pytest.raises(GateError):
            score(document, spark=spark)
    assert [row.epoch for row in log.of_job("test")] == [3]
    if tidied != "restored in the middle":
        tidy()
    lenient, audited = {**document, "gates": {"max_dead_fraction": 1.0}}, run._audit

    def and_then(current: run.Run) -> Any:
        result = audited(current)
        tidy()
        return result

    if tidied == "restored in the middle":
        monkeypatch.setattr(run, "_audit", and_then)
    summary = score(lenient, spark=spark)
    assert (summary.rows_scored, summary.rows_dead) == (8, 1)
    [row] = log.of_job("test")
    assert (row.run_id, row.status, row.epoch >= 4) == (summary.run_id, "published", True)


def test_of_two_drivers_that_start_on_a_pruned_run_log_one_gets_the_lease(spark: SparkSession, tmp_path: Path) -> None:
    log = RunLog(spark, str(tmp_path))
    log.create()
    for epoch in (1, 2, 3, 4, 5):
        log.open({"run_id": f"r{epoch}", "job": "test", "holder": str(runlog.Holder.here()), "epoch": epoch})
    spark.sql(f"DELETE FROM delta.`{log.at('runs')}`")
    opened, refused = [], []

    def driver(name: str) -> None:
        try:
            mine = {"run_id": name, "job": "test", "holder": str(runlog.Holder.here()), "epoch": 1}
            RunLog(spark.newSession(), str(tmp_path)).open(mine)
            opened.append(name)
        except LeaseError:
            refused.append(name)

    drivers = [threading.Thread(target=driver, args=(name,)) for name in ("a", "b")]
    for one in drivers:
        one.start()
    for one in drivers:
        one.join()
    assert (len(opened), len(refused)) == (1, 1)
    assert [(row.run_id, row.epoch > 5) for row in log.runs().collect()] == [(opened[0], True)]
