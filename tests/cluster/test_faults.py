"""Faults on a real cluster: drivers, executors, Python workers and machines that are killed; stores that refuse.

Most of them take minutes, and belong to the nights of `make faults`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
from cluster import Cluster, until
from models import DOUBLE_IN, DOUBLE_OUT, Counted
from night import AGAIN, POISON, ROWS, SHARDS, SLOTS, Night, end_all_of
from pyspark.sql import SparkSession

Make = Callable[..., Any]


@pytest.fixture
def night(spark: SparkSession, table: Make, save_model: Make, job: Make, tmp_path: Path) -> Callable[..., Night]:
    def make(cluster: Cluster, **over: Any) -> Night:
        model = save_model(Counted(str(tmp_path / "calls"), 60, POISON), DOUBLE_IN, DOUBLE_OUT)
        source = table([(i, float(i)) for i in range(ROWS)], "id bigint, x double")
        shards = {"rows": ROWS // SHARDS, "by": "key"}
        return Night(tmp_path, cluster, spark, job(source, model, shards=shards, batch={"tokens": 10}, **over))

    return make


@pytest.mark.night
def test_a_driver_killed_in_every_phase_of_one_run(cluster: Cluster, night: Callable[..., Night]) -> None:
    job = night(cluster)
    phases = {
        "plan": job.planned,
        "score": lambda: job.given() > 0,
        "stage": lambda: job.staged(0.5),
        "audit": lambda: job.staged(1),
        "MERGE": job.audited,
        "run log": job.merged,
    }
    for phase, begun in phases.items():
        driver = job.submit()
        driver.until(begun)
        end_all_of(driver)
        assert phase == "run log" or not job.merged()
    commits = job.commits()
    told = job.submit().told()

    job.holds(told)
    [run] = job.table("runs")
    assert (run.status, run.run_id) == ("published", told["run_id"])
    assert (told["rows_forward"], told["shards_resumed"]) == (0, told["shards"])
    assert job.commits() == commits  # it was merged once, before the last kill
    in_flight = 2 * SLOTS * job.largest()  # at the kills while scoring and staging
    assert ROWS <= job.given() <= ROWS + in_flight + 2 * AGAIN


def test_case_31_an_executor_a_python_worker_and_a_machine_are_killed(
    own_cluster: Cluster, night: Callable[..., Night]
) -> None:
    job = night(own_cluster)
    driver = job.submit()
    driver.until(lambda: job.given() > 0 and own_cluster.python_workers())
    own_cluster.python_workers()[0].kill()
    driver.until(job.staged)
    driver.until(own_cluster.executors)[0].kill()
    driver.until(lambda: job.staged(0.4))
    own_cluster.workers[0].kill()
    told = driver.told()

    job.holds(told)
    assert told["shards_resumed"] == 0
    assert job.given() <= ROWS + 3 * SLOTS * job.largest() + 4 * AGAIN


@pytest.mark.night
def test_staging_that_refuses_ends_the_run_and_the_same_command_goes_on(
    cluster: Cluster, night: Callable[..., Night]
) -> None:
    """A full disk, as the kernel shows it to a process that may write no more."""
    job = night(cluster)
    driver = job.submit()
    driver.until(job.staged)
    for executor in driver.until(cluster.executors):
        resource.prlimit(executor.pid, resource.RLIMIT_FSIZE, (0, 0))
    assert driver.done() == 1
    said = driver.err.read_text()
    assert "a shard failed every attempt, and the job was ended: java.io.IOException: File too large" in said
    assert "Traceback" not in said
    assert not job.output.exists()
    survived = {file: file.stat().st_mtime_ns for file in job.files("staging/*/shards/part-*")}

    told = job.submit().told()
    job.holds(told)
    assert told["shards_resumed"] == len(survived) > 0
    assert {file: file.stat().st_mtime_ns for file in survived} == survived


@pytest.mark.night
def test_of_two_submissions_one_runs_and_a_paused_driver_cannot_publish(
    cluster: Cluster, night: Callable[..., Night]
) -> None:
    job = night(cluster)
    first = job.submit()  # paused, it keeps its executor and the GPU
    first.until(job.staged)
    os.killpg(first.pid, signal.SIGSTOP)
    [run] = job.table("runs")
    beat(job.state / "heartbeats", run.run_id, "2126-01-01T00:00:00+00:00")  # in place of going on beating
    second = job.submit()
    assert second.done() == 5
    said = second.err.read_text()
    for what in (f"run {run.run_id}", f"process {first.pid}", "since 20", "heartbeat"):
        assert what in said

    beat(job.state / "heartbeats", run.run_id, "2026-01-01T00:00:00+00:00")  # in place of waiting for a minute
    told = job.submit().told()
    job.holds(told)
    commits = job.commits()

    os.killpg(first.pid, signal.SIGCONT)
    assert first.done() == 5
    assert "lost its lease" in first.err.read_text()
    assert job.commits() == commits
    job.holds(told)
    [run] = job.table("runs")
    assert (run.status, run.epoch) == ("published", 2)


def beat(beats: Path, run_id: str, at: str) -> None:
    (beats / f".{run_id}.crc").unlink(missing_ok=True)
    told = json.loads((beats / run_id).read_text())
    (beats / run_id).write_text(json.dumps({**told, "at": at}))


@pytest.mark.night
def test_two_submissions_at_the_same_moment(cluster: Cluster, night: Callable[..., Night], tmp_path: Path) -> None:
    job = night(cluster)
    # MLflow itself fails when two processes create its tables at once
    mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").search_experiments()
    drivers = [job.submit(), job.submit()]
    until(lambda: all(driver.poll() is not None for driver in drivers), seconds=900)
    codes = sorted(driver.returncode for driver in drivers)
    assert codes == [0, 5], [driver.err.read_text() for driver in drivers]
    [winner] = [driver for driver in drivers if not driver.returncode]
    job.holds(winner.told())
    assert len(job.table("runs")) == 1
