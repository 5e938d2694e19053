"""spark-submit.sh with a real JVM: Delta, a Python worker, Spark's own messages, a folder with spaces."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

DELTA_JOB = """
import json, sys
from pyspark.sql import SparkSession

def where_daybreak_is(frames):
    import daybreak
    for frame in frames:
        yield frame.assign(found=daybreak.__file__)

spark = SparkSession.builder.getOrCreate()
spark.range(10).write.format("delta").save("a table")
table = spark.read.format("delta").load("a table")
rows = table.mapInPandas(where_daybreak_is, "id long, found string").collect()
conf = dict(spark.sparkContext.getConf().getAll())
print("a progress bar", file=sys.stderr)
print(json.dumps({"ids": sorted(row.id for row in rows), "found": rows[0].found, "conf": conf}))
sys.exit(3)
"""

ENDLESS_JOB = """
import os, time
from pathlib import Path
from pyspark.sql import SparkSession

def forever(frames):
    Path("worker.partial").write_text(str(os.getpid()))
    Path("worker.partial").rename("worker.pid")
    time.sleep(600)
    yield from frames

spark = SparkSession.builder.getOrCreate()
Path("jvm.pid").write_text(str(spark.sparkContext._gateway.proc.pid))
spark.range(1).mapInPandas(forever, "id long").collect()
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What spark-submit.sh needs, in a folder with spaces; shared, with the jars that it finds."""
    repo = tmp_path_factory.mktemp("spark submit") / "a clone; it's here"
    shutil.copytree(REPO / "conf/spark", repo / "conf/spark")
    shutil.copytree(REPO / "lib/daybreak", repo / "lib/daybreak")
    shutil.copytree(REPO / "jobs", repo / "jobs")
    shutil.copy2(REPO / "spark-submit.sh", repo)
    (repo / "jobs/delta_job.py").write_text(DELTA_JOB)
    (repo / "jobs/endless_job.py").write_text(ENDLESS_JOB)
    return repo


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The caller's environment without what a session has left in it; a scratch folder of its own."""
    scratch = tmp_path / "scratch folder"
    scratch.mkdir()
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    return {**inherited, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(scratch)}


def test_a_job_with_delta_from_another_folder(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [clone / "spark-submit.sh", "--conf", "spark.app.name=a name", "jobs/delta_job.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    seen = json.loads(done.stdout)  # nothing else on stdout: --json can be piped
    assert seen["ids"] == list(range(10))
    assert (tmp_path / "a table/_delta_log").is_dir()
    assert seen["found"] == str(clone / "lib/daybreak/__init__.py")
    assert seen["conf"]["spark.app.name"] == "a name"
    assert seen["conf"]["spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"] == "2"
    # Java's line about Spark's vector module cannot be turned off; the first submit says that it gets jars.
    said = [line for line in done.stderr.splitlines() if "jdk.incubator.vector" not in line]
    assert [line for line in said if not line.startswith("getting io.delta:")] == ["a progress bar"]
    (jars,) = (clone / "build").glob("jars-*.txt")
    assert "delta-spark_" in jars.read_text()


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    try:
        return "State:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_the_end_of_the_driver_ends_all_of_it(clone: Path, env: dict[str, str], tmp_path: Path, how: int) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        driver = subprocess.Popen(
            [clone / "spark-submit.sh", "jobs/endless_job.py"], cwd=tmp_path, env=env, stderr=stderr
        )
    try:
        assert until((tmp_path / "worker.pid").exists, 120), (tmp_path / "stderr").read_text()
        pids = [int((tmp_path / f"{name}.pid").read_text()) for name in ("jvm", "worker")]
        assert all(map(is_running, pids))
        driver.send_signal(how)
        assert driver.wait(timeout=60) != 0
        assert until(lambda: not any(map(is_running, pids)), 60), [is_running(pid) for pid in pids]
    finally:
        driver.kill()
