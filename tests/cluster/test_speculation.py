"""A shard that hangs on one machine is scored by a second attempt on another, and counts once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import Cluster
from models import ATTEMPT_OUT, DOUBLE_IN, Straggling
from pyspark.sql import SparkSession

ROWS, SHARDS, AT = 400, 8, 123.0
EAGER = {
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
}
Make = Callable[..., Any]


def test_case_34_one_attempt_of_a_shard_wins(
    cluster: Cluster, spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    model = save_model(Straggling(AT), DOUBLE_IN, ATTEMPT_OUT)
    source = table([(i, float(i)) for i in range(ROWS)], "id bigint, x double", files=4)
    document = job(source, model, shards={"rows": ROWS // SHARDS, "by": "key"})
    config = tmp_path / "job.yaml"
    config.write_text(json.dumps(document))

    told = cluster.submit(config, conf=EAGER).told()

    assert (told["rows_in"], told["rows_scored"], told["rows_dead"]) == (ROWS, ROWS - 1, 1)
    state = f"{document['output']['table']}_daybreak"
    scores = spark.read.format("delta").load(told["output"]).collect()
    assert sorted((row.id, row.y) for row in scores) == [(i, 2.0 * i) for i in range(ROWS) if i != AT]
    assert {row.attempt for row in scores} == {0, 1}, "a first attempt hangs for ten minutes, so another has won"
    staged = spark.read.parquet(f"{state}/staging/*/shards")
    receipts = staged.where("kind = 'receipt'").collect()
    assert len(receipts) == len({row.shard_id for row in receipts}) == told["shards"]
    assert not any("isolated" in json.loads(row.receipt) for row in receipts), "no attempt has failed"
    [letter] = spark.read.format("delta").load(f"{state}/dead_letters").collect()
    assert (json.loads(letter.input), letter.phase) == ({"x": AT}, "forward")
    assert spark.read.format("delta").load(f"{state}/shards").count() == told["shards"]
