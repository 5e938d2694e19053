"""The real command, killed with SIGKILL at about half, and given again: every key once, and only what was left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models import DOUBLE_IN, DOUBLE_OUT, Slow
from pyspark.sql import SparkSession

REPO = Path(__file__).parents[2]
ROWS, SHARDS = 1200, 8
SMALL = {
    "spark.driver.memory": "1g",
    "spark.master": "local[2,2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
Make = Callable[..., Any]


def submit(config: Path, **options: Any) -> subprocess.Popen[str]:
    settings = [word for key, value in SMALL.items() for word in ("--conf", f"{key}={value}")]
    command = [str(REPO / "spark-submit.sh"), *settings, "jobs/score.py", "--config", str(config), "--json"]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def staged(state: Path) -> dict[str, tuple[int, int]]:
    """The finished shards' files, with what would change if one were written again."""
    found = (path for path in state.glob("staging/*/shards/part-*.parquet"))
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the run did not get to the point where it is killed"
        time.sleep(0.05)


def processes_of(folder: Path) -> list[int]:
    """Processes, JVM included, whose command line or environment names the folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                text = (process / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in text:
                found.append(int(process.name))
    return found


def test_killed_at_half_and_resumed(
    spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    model = save_model(Slow(), DOUBLE_IN, DOUBLE_OUT)
    source = table([(i, float(i)) for i in range(ROWS)], "id bigint, x double")
    document = job(source, model, shards={"rows": ROWS // SHARDS, "by": "key"}, batch={"tokens": 25})
    config = tmp_path / "job.yaml"
    config.write_text(json.dumps(document))
    state = Path(f"{document['output']['table']}_daybreak")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    first = submit(config, env=environment)
    try:
        wait_for(lambda: len(staged(state)) >= SHARDS // 2, first)
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    end = time.monotonic() + 60
    while processes_of(tmp_path) and time.monotonic() < end:
        time.sleep(0.1)
    assert not processes_of(tmp_path), "the killed driver left processes behind"
    survived = staged(state)
    assert SHARDS // 2 <= len(survived) < SHARDS
    assert not Path(document["output"]["table"]).exists()

    table([(ROWS, 1.0)], "id bigint, x double", mode="append", files=1)
    second = submit(config, env=environment)
    out, err = second.communicate(timeout=300)
    assert second.returncode == 0, err
    told = json.loads(out.splitlines()[-1])
    assert told["shards_resumed"] == len(survived)
    [run] = spark.read.format("delta").load(f"{state}/runs").collect()
    receipts = spark.read.format("delta").load(f"{state}/shards").collect()
    assert (run.run_id, run.status, run.epoch, len(receipts)) == (told["run_id"], "published", 2, told["shards"])

    assert told["rows_forward"] == ROWS - rows_in(spark, state, survived)
    assert {name: mark for name, mark in staged(state).items() if name in survived} == survived
    assert (told["rows_in"], told["rows_scored"], told["rows_dead"], told["input_version"]) == (ROWS, ROWS, 0, "0")
    scores = spark.read.format("delta").load(document["output"]["table"]).collect()
    assert sorted((row.id, row.y) for row in scores) == [(i, 2.0 * i) for i in range(ROWS)]


def rows_in(spark: SparkSession, state: Path, names: dict[str, Any]) -> int:
    """Rows of the shards in some staged files, by their receipts."""
    paths = [str(path) for path in state.glob("staging/*/shards/part-*.parquet") if path.name in names]
    return int(spark.read.parquet(*paths).agg({"rows_in": "sum"}).collect()[0][0])
