"""One job on a real cluster, end to end: the real command, the built wheel, and executors that come and go."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest
from cluster import Cluster, until
from mlflow.models import ModelSignature
from models import DOUBLE_IN, PLACED_OUT, Placed
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from timeline import Timeline, draw, watch

from daybreak import schema

ROWS, SHARDS, BEFORE = 800, 8, 60_000


@dataclass(frozen=True)
class Watched:
    """A run that was looked at while it lasted."""

    told: dict[str, Any]
    said: str
    timeline: Timeline
    scores: DataFrame


@pytest.fixture(scope="module")
def run(
    cluster: Cluster,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    tracking: Callable[[Path], str],
) -> Watched:
    """800 rows at 50 a second and GPU, merged into a table of 60,000, by executors that leave after three seconds."""
    folder = tmp_path_factory.mktemp("run")
    signature = ModelSignature(inputs=DOUBLE_IN, outputs=PLACED_OUT)
    model = Placed(rows_per_second=50)
    mlflow.pyfunc.save_model(path=f"{folder}/model", python_model=model, signature=signature, pip_requirements=[])
    spark.range(ROWS).selectExpr("id", "double(id) x").write.format("delta").save(f"{folder}/input")
    existing(spark).write.format("delta").save(f"{folder}/scores")
    job = {
        "name": "test",
        "input": {"table": f"{folder}/input", "key": ["id"]},
        "model": {"uri": f"{folder}/model", "precision": "fp32"},  # auto would bring a GPU twice: to decide, to score
        "shards": {"rows": ROWS // SHARDS, "by": "key"},
        "output": {"table": f"{folder}/scores", "mode": "latest"},
        "mlflow": {"tracking_uri": tracking(folder)},
    }
    config = folder / "job.yaml"
    config.write_text(json.dumps(job))
    conf = {"spark.dynamicAllocation.executorIdleTimeout": "3s", "spark.sql.shuffle.partitions": "16"}
    driver = cluster.submit(config, conf=conf)
    timeline = watch(driver)
    told = driver.told()
    if picture := os.environ.get("DAYBREAK_TIMELINE"):
        draw(timeline, told["timing"], Path(picture))
    return Watched(told, driver.err.read_text(), timeline, spark.read.format("delta").load(f"{folder}/scores"))


def existing(spark: SparkSession) -> DataFrame:
    """What an output table holds from earlier runs, so that its MERGE has something to do."""
    predictions = [
        schema.Column(name, kind, "") for name, kind in (("y", "DOUBLE"), ("gpu", "STRING"), ("package", "STRING"))
    ]
    columns = schema.output((schema.Column("id", "BIGINT", ""),), predictions, history=False)
    values = [F.lit(None).cast(column.type).alias(column.name) for column in columns[1:]]
    return spark.range(BEFORE).select("id", *values).repartition(4)


def test_a_job_runs_on_the_gpus_of_both_workers(run: Watched) -> None:
    told = run.told
    assert (told["status"], told["rows_in"], told["rows_scored"], told["rows_dead"]) == ("published", ROWS, ROWS, 0)
    scores = run.scores.where("y IS NOT NULL").collect()
    assert sorted((row.id, row.y) for row in scores) == [(i, 2.0 * i) for i in range(ROWS)]
    assert {row.gpu for row in scores} == {"worker-0.gpu-0", "worker-1.gpu-0"}
    assert all(".zip/daybreak/" in row.package for row in scores), "the executors run what spark-submit.sh has sent"


def test_case_35_executors_come_for_their_stage_and_none_is_held_after_it(run: Watched, cluster: Cluster) -> None:
    samples = run.timeline.samples
    assert (samples[0].cpu, samples[0].gpu) == (0, 0)
    assert run.timeline.span("cpu")[0] < run.timeline.span("gpu")[0], "reading and planning need no GPU"
    assert max(sample.gpu for sample in samples) == 2
    assert (samples[-1].gpu, samples[-1].cpu > 0) == (0, True)
    began, ended = run.timeline.span("gpu")
    assert all(sample.gpu for sample in samples if began <= sample.at <= ended), "they came twice"
    assert "executors with GPUs come for scoring and go when they are idle" in run.said
    until(lambda: not cluster.executors(), what="the end of the last executor")


def test_case_36_the_gpus_are_released_before_the_merge_ends_and_nothing_is_scored_again(run: Watched) -> None:
    began, ended = run.timeline.merge
    assert run.timeline.span("gpu")[1] < ended
    assert began < ended < run.timeline.samples[-1].at
    assert run.told["rows_forward"] == ROWS
    assert run.scores.count() == BEFORE, "a MERGE that lost rows, or doubled them"
