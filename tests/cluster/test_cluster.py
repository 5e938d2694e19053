"""A job on a real cluster, end to end: the real command, the built wheel, and the GPUs that Spark hands out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import Cluster
from models import DOUBLE_IN, PLACED_OUT, Placed
from pyspark.sql import SparkSession

ROWS, SHARDS = 800, 8
Make = Callable[..., Any]


def test_a_job_runs_on_the_gpus_of_both_workers(
    cluster: Cluster, spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    model = save_model(Placed(rows_per_second=50), DOUBLE_IN, PLACED_OUT)
    source = table([(i, float(i)) for i in range(ROWS)], "id bigint, x double")
    config = tmp_path / "job.yaml"
    config.write_text(json.dumps(job(source, model, shards={"rows": ROWS // SHARDS, "by": "key"})))

    told = cluster.submit(config).told()

    assert (told["status"], told["rows_in"], told["rows_scored"], told["rows_dead"]) == ("published", ROWS, ROWS, 0)
    scores = spark.read.format("delta").load(told["output"]).collect()
    assert sorted((row.id, row.y) for row in scores) == [(i, 2.0 * i) for i in range(ROWS)]
    assert {row.gpu for row in scores} == {"worker-0.gpu-0", "worker-1.gpu-0"}
    assert all(".zip/daybreak/" in row.package for row in scores), "the executors run what spark-submit.sh has sent"
