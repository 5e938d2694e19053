"""The real command, killed with SIGKILL at about half, and given again: every key once, and only what was left.

On the local disk, and with staging, state and output on S3.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
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
Files = dict[str, Any]


class Disk:
    """A folder of this machine for what a run writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, str(folder)
        self.settings: dict[str, str] = {}

    def files(self) -> Files:
        """Every file, with what would change if it were written again."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}

    def copy(self) -> Path:
        """Where this machine can read it."""
        return self.folder


class S3:
    """A bucket of a server on this machine, reached as any S3 is."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        import boto3

        access = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
        self._client, self._folder = boto3.client("s3", endpoint_url=endpoint, **access), folder
        self._client.create_bucket(Bucket="lake")
        self.url = "s3a://lake"
        self.settings = {
            "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.2",
            "spark.jars.excludes": "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime",
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "any",
            "spark.hadoop.fs.s3a.secret.key": "any",
        }

    def files(self) -> Files:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket="lake")
        objects = (entry for page in pages for entry in page.get("Contents", ()))
        return {entry["Key"]: (entry["LastModified"], entry["Size"]) for entry in objects}

    def copy(self) -> Path:
        for key in self.files():
            if not key.endswith("/"):
                (self._folder / key).parent.mkdir(parents=True, exist_ok=True)
                self._client.download_file("lake", key, str(self._folder / key))
        return self._folder


@pytest.fixture(params=["disk", "s3a"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk | S3]:
    if request.param == "disk":
        yield Disk(tmp_path)
        return
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield S3("http://{}:{}".format(*server.get_host_and_port()), tmp_path / "lake")
    finally:
        server.stop()


def submit(config: Path, store: Disk | S3, **options: Any) -> subprocess.Popen[str]:
    settings = [word for pair in {**SMALL, **store.settings}.items() for word in ("--conf", "=".join(pair))]
    command = [str(REPO / "spark-submit.sh"), *settings, "jobs/score.py", "--config", str(config), "--json"]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def staged(store: Disk | S3) -> Files:
    """The finished shards' files, by name."""
    shard = re.compile(r"scores_daybreak/staging/[^/]+/shards/(part-[^/]+\.parquet)")
    found = ((shard.fullmatch(name), mark) for name, mark in store.files().items())
    return {match[1]: mark for match, mark in found if match}


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
    spark: SparkSession, store: Disk | S3, table: Make, save_model: Make, job: Make, tmp_path: Path
) -> None:
    model = save_model(Slow(), DOUBLE_IN, DOUBLE_OUT)
    source = table([(i, float(i)) for i in range(ROWS)], "id bigint, x double")
    shards, output = {"rows": ROWS // SHARDS, "by": "key"}, {"table": f"{store.url}/scores"}
    document = job(source, model, shards=shards, batch={"tokens": 25}, output=output)
    config = tmp_path / "job.yaml"
    config.write_text(json.dumps(document))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    first = submit(config, store, env=environment)
    try:
        wait_for(lambda: len(staged(store)) >= SHARDS // 2, first)
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    end = time.monotonic() + 60
    while processes_of(tmp_path) and time.monotonic() < end:
        time.sleep(0.1)
    assert not processes_of(tmp_path), "the killed driver left processes behind"
    survived = staged(store)
    assert SHARDS // 2 <= len(survived) < SHARDS
    assert not [name for name in store.files() if name.startswith("scores/")]

    table([(ROWS, 1.0)], "id bigint, x double", mode="append", files=1)
    second = submit(config, store, env=environment)
    out, err = second.communicate(timeout=300)
    assert second.returncode == 0, err
    told = json.loads(out.splitlines()[-1])
    state = store.copy() / "scores_daybreak"
    assert told["shards_resumed"] == len(survived)
    [run] = spark.read.format("delta").load(f"{state}/runs").collect()
    receipts = spark.read.format("delta").load(f"{state}/shards").collect()
    assert (run.run_id, run.status, run.epoch, len(receipts)) == (told["run_id"], "published", 2, told["shards"])

    assert told["rows_forward"] == ROWS - rows_in(spark, state, survived)
    assert {name: mark for name, mark in staged(store).items() if name in survived} == survived
    assert (told["rows_in"], told["rows_scored"], told["rows_dead"], told["input_version"]) == (ROWS, ROWS, 0, "0")
    scores = spark.read.format("delta").load(str(store.copy() / "scores")).collect()
    assert sorted((row.id, row.y) for row in scores) == [(i, 2.0 * i) for i in range(ROWS)]


def rows_in(spark: SparkSession, state: Path, names: dict[str, Any]) -> int:
    """Rows of the shards in some staged files, by their receipts."""
    paths = [str(path) for path in state.glob("staging/*/shards/part-*.parquet") if path.name in names]
    return int(spark.read.parquet(*paths).agg({"rows_in": "sum"}).collect()[0][0])
