"""Check the machine and a job before the night: what is there, what is not, and how to mend it."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from daybreak.config import JobConfig
from daybreak.errors import DaybreakError, first_line, root_cause, text
from daybreak.ops import scaling, session
from daybreak.score import params, registry
from daybreak.sink.staging import PER_TASK
from daybreak.source import snapshot
from daybreak.storage import Storage

log = logging.getLogger(__name__)

_ON_PURPOSE = "fails on purpose"
_PACKAGES = ("pyspark", "delta-spark", "mlflow", "torch", "pandas", "pyarrow")
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}


@dataclass(frozen=True)
class Finding:
    ok: bool
    what: str
    told: str
    mend: str = ""

    def __str__(self) -> str:
        line = f"{'ok ' if self.ok else 'BAD'}  {self.what}: {self.told}"
        return line if self.ok or not self.mend else f"{line}\n     to mend it: {self.mend}"


def examine(job: JobConfig | None) -> list[Finding]:
    """All findings, good and bad. A check that breaks is a finding too, and does not end the examination."""
    findings = _guarded("packages", _packages)
    spark = _session(findings)
    checks: dict[str, Callable[[], Iterator[Finding]]] = {}
    if spark is not None:
        checks |= {"Java": lambda: _java(spark), "memory": lambda: _memory(spark), "GPU": lambda: _gpu(spark)}
        if job is not None:
            checks |= {"input": lambda: _input(spark, job), "staging": lambda: _staging(spark, job)}
    if job is not None:
        checks |= {"model": lambda: _model(job)}
    return findings + [finding for what, check in checks.items() for finding in _guarded(what, check)]


def _guarded(what: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What a check finds until it ends or breaks, whatever it breaks with."""
    found: list[Finding] = []
    try:
        for finding in check():
            found.append(finding)
    except DaybreakError as error:
        found.append(Finding(False, "job", error.problem, error.fix))
    except (Exception, SystemExit) as error:
        log.debug("the check of %s", what, exc_info=True)
        told = f"could not be checked: {type(error).__name__}: {root_cause(error)}"
        found.append(
            Finding(False, what, told, "mend what it says and run doctor again; --verbose shows the stack trace")
        )
    return found


def _packages() -> Iterator[Finding]:
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(False, "packages", f"{name} is not installed", f"pip install {name}, or make venv")
            return
    yield Finding(True, "packages", ", ".join(f"{name} {version}" for name, version in found.items()))


def _session(findings: list[Finding]) -> SparkSession | None:
    """Spark with Delta, or None and a finding that says why not."""
    try:
        spark = session.own(session.current("daybreak doctor"), batch_rows=1000)
        told = f"{spark.version}, master {spark.sparkContext.master}, with Delta Lake"
    except DaybreakError as error:
        findings.append(Finding(False, "Delta", error.problem, error.fix))
        return None
    except (Exception, SystemExit) as error:
        log.debug("no session", exc_info=True)
        findings.append(Finding(False, "Spark", root_cause(error), "start it through ./spark-submit.sh"))
        return None
    findings.append(Finding(True, "Spark", told))
    return spark


def _java(spark: SparkSession) -> Iterator[Finding]:
    version = str(spark._jvm.java.lang.System.getProperty("java.version"))  # type: ignore[union-attr]
    major, fix = java_major(version), "install Java 17 or newer and set JAVA_HOME to it"
    told = version if major is not None else f"calls itself {version!r}, which names no version"
    yield Finding(major is not None and major >= 17, "Java", told, fix)


def java_major(version: str) -> int | None:
    """The 17 of ``17.0.9+9`` and ``17-ea``, the 8 of ``1.8.0_392``; None where the text names none."""
    match = re.match(r"(?:1\.)?(\d+)(?!\d)", version.strip())
    return int(match[1]) if match else None


def _memory(spark: SparkSession) -> Iterator[Finding]:
    conf = spark.sparkContext.getConf()
    driver = conf.get("spark.driver.memory", "1g") or "1g"
    yield _driver_memory(driver)
    limit = conf.get("spark.executor.pyspark.memory")
    yield Finding(
        limit is None,
        "worker memory",
        "not capped by spark.executor.pyspark.memory" if limit is None else f"spark.executor.pyspark.memory is {limit}",
        "unset it: it limits the address space, which breaks CUDA; size spark.executor.memoryOverhead instead",
    )


def _driver_memory(driver: str) -> Finding:
    fix = "set spark.driver.memory to 2g or more in conf/spark/<env>.conf"
    try:
        return Finding(in_bytes(driver) >= 2 * 2**30, "driver memory", driver, fix)
    except ValueError as error:
        return Finding(False, "driver memory", first_line(error), fix)


def in_bytes(size: str) -> int:
    """A Spark memory size, such as ``4g``, in bytes. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+)\s*([bkmgtp]?)b?", size.strip().lower())
    if match is None:
        raise ValueError(f"{size!r} is no memory size; write it as 4g or 512m")
    return int(match[1]) * _UNITS[match[2]]


def _gpu(spark: SparkSession) -> Iterator[Finding]:
    conf = dict(spark.sparkContext.getConf().getAll())
    wanted = scaling.choose(conf)
    if wanted.task is not None:
        yield Finding(True, "GPU", f"{wanted.task.gpus:g} a scoring task; {wanted.reason}")
        return
    asked, share = conf.get(f"spark.{scaling.EXECUTOR_GPUS}"), conf.get(f"spark.{scaling.TASK_GPUS}")
    if asked is None:
        yield Finding(True, "GPU", "none asked for; models run on the CPU")
        return
    yield Finding(
        share is not None,
        "GPU",
        f"{asked} an executor, {share or 'none'} a task; {wanted.reason}",
        f"set spark.{scaling.TASK_GPUS} to 1: one task slot, one worker and one model on each GPU",
    )


def _model(job: JobConfig) -> Iterator[Finding]:
    uri = job.mlflow.tracking_uri
    pin, spec = registry.resolve(job.model.uri, tracking_uri=uri, registry_uri=job.mlflow.registry_uri or uri)
    params.complete(spec, job.model.params)
    takes = ", ".join(f"{one.name or 'column'} {one.type}" for one in spec.inputs)
    gives = ", ".join(f"{one.name} {one.type}" for one in spec.outputs)
    yield Finding(True, "model", f"{pin.resolved} takes {takes} and gives {gives}")


def _input(spark: SparkSession, job: JobConfig) -> Iterator[Finding]:
    pinned = snapshot.pin(spark, job.input)
    yield Finding(True, "input", f"{pinned.table}, version {pinned.version} of {pinned.committed_at.isoformat()}")


def _staging(spark: SparkSession, job: JobConfig) -> Iterator[Finding]:
    """Write below the state folder as a run does, and see whether a task's file is there before its job ends."""
    state = job.state_path()
    storage = Storage(spark, f"{state}/staging/.doctor-{uuid.uuid4().hex[:8]}")
    try:
        early = files_before_commit(spark, storage)
    finally:
        storage.delete()
    yield Finding(
        early,
        "staging",
        f"{state} takes files, and a task's file is in place when {'the task' if early else 'only the job'} commits",
        "a killed run would be scored again from its start; put state: on a local disk, HDFS or s3a://",
    )


def files_before_commit(spark: SparkSession, storage: Storage) -> bool:
    """Whether the file of a finished task stays when a later task of the same job fails."""
    second_fails = F.when(F.col("id") == 1, F.raise_error(F.lit(_ON_PURPOSE))).otherwise(F.col("id"))
    rows = spark.range(0, 2, 1, 2).select(second_fails.alias("id"))
    try:
        rows.write.options(**PER_TASK).mode("append").parquet(storage.at("probe"))
    except Exception as error:
        if _ON_PURPOSE not in text(error):
            raise
        return bool(storage.files("probe"))
    return False
