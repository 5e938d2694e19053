"""The run log over time: tables of an older Daybreak, pruned and restored ones."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from daybreak import local, schema
from daybreak.ops import runlog
from daybreak.ops.runlog import RunLog
from daybreak.sink import tables

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
