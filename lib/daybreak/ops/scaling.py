"""Which executors score: those of a profile with GPUs that come for the scoring stage alone, or those that are there.

The scoring stage has settings of its own: ``spark.daybreak.scoring.X`` is for it what ``spark.X`` is for the rest, for
the names in ``conf/spark/*-gpu.conf``. They are not Spark's own names because Spark gives those to every executor, and
one that reads, shuffles or merges would hold a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pyspark.resource import ExecutorResourceRequests, ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

from daybreak.errors import ConfigError

PREFIX = "spark.daybreak.scoring."
EXECUTOR_GPUS, TASK_GPUS = "executor.resource.gpu.amount", "task.resource.gpu.amount"


@dataclass(frozen=True)
class Task:
    cpus: int
    gpus: float


@dataclass(frozen=True)
class Executor:
    """An executor for scoring. Text that is empty leaves it to the cluster."""

    cores: int
    memory: str
    overhead: str
    gpus: int
    script: str
    vendor: str


@dataclass(frozen=True)
class Request:
    """What the scoring stage asks for, and why: nothing of its own, its tasks' part, or executors of its own too."""

    reason: str
    task: Task | None = None
    executor: Executor | None = None


def choose(conf: Mapping[str, str]) -> Request:
    """Decide by the properties of the application. Pure.

    Spark refuses a profile on one machine, and without dynamic allocation it takes task requests only: no executor
    can come for a stage then.

    Raises ConfigError for a number that is none, and where no executor would have the GPUs.
    """
    master, dynamic = conf.get("spark.master", ""), conf.get("spark.dynamicAllocation.enabled", "").lower() == "true"
    if master == "local" or master.startswith("local["):
        return Request("one machine: scoring has no executors of its own")
    if not {PREFIX + EXECUTOR_GPUS, PREFIX + TASK_GPUS} & set(conf):
        return Request(_without_settings(conf, dynamic))
    task = Task(int(_number(conf, "task.cpus", "1")), _number(conf, TASK_GPUS, "1"))
    if dynamic:
        return Request("executors with GPUs come for scoring and go when they are idle", task, _executor(conf))
    if f"spark.{EXECUTOR_GPUS}" not in conf:
        raise ConfigError(
            f"{PREFIX}* asks for GPUs, and no executor has one: without dynamic allocation none comes for a stage",
            fix=f"set spark.dynamicAllocation.enabled to true, or give all executors GPUs: spark.{EXECUTOR_GPUS} 1",
        )
    return Request("without dynamic allocation the executors hold their GPUs until the application ends", task)


def _without_settings(conf: Mapping[str, str], dynamic: bool) -> str:
    if dynamic and f"spark.{EXECUTOR_GPUS}" in conf:
        return (
            f"every executor holds GPUs, and one with shuffle files stays: spark.{EXECUTOR_GPUS} is set;"
            f" {PREFIX}{EXECUTOR_GPUS} would bring them for scoring alone"
        )
    return "scoring runs on the executors of all stages"


def _executor(conf: Mapping[str, str]) -> Executor:
    return Executor(
        cores=int(_number(conf, "executor.cores", "1")),
        memory=_setting(conf, "executor.memory", "1g"),
        overhead=_setting(conf, "executor.memoryOverhead", ""),
        gpus=int(_number(conf, EXECUTOR_GPUS, "1")),
        script=_setting(conf, "executor.resource.gpu.discoveryScript", ""),
        vendor=_setting(conf, "executor.resource.gpu.vendor", ""),
    )


def _setting(conf: Mapping[str, str], name: str, default: str) -> str:
    """The stage's own, or else what all stages have."""
    return conf.get(PREFIX + name) or conf.get(f"spark.{name}") or default


def _number(conf: Mapping[str, str], name: str, default: str) -> float:
    value = _setting(conf, name, default)
    try:
        number = float(value)
    except ValueError:
        number = 0
    if number <= 0:
        raise ConfigError(f"{PREFIX}{name} is {value!r}; it is a number above 0")
    return number


def request(spark: SparkSession) -> Request:
    """What :func:`choose` decides for this application."""
    return choose(dict(spark.sparkContext.getConf().getAll()))


def gpu_share(spark: SparkSession) -> float:
    """The part of a GPU that a scoring task has, 0 to 1; several tasks may share one."""
    task = request(spark).task
    return min(1.0, task.gpus if task else float(spark.conf.get(f"spark.{TASK_GPUS}", "1") or 1))


def profile(spark: SparkSession) -> ResourceProfile | None:
    """The profile of the scoring stage, for ``mapInPandas``; None where it has none of its own."""
    wanted = request(spark)
    return None if wanted.task is None else _built(wanted.task, wanted.executor, str(spark.sparkContext.applicationId))


@lru_cache(maxsize=1)
def _built(task: Task, executor: Executor | None, application: str) -> ResourceProfile:
    """One an application: another of the same content is another to Spark, and cannot use the first one's executors."""
    builder = ResourceProfileBuilder().require(TaskResourceRequests().cpus(task.cpus).resource("gpu", task.gpus))
    if executor is None:
        return builder.build
    requests = ExecutorResourceRequests().cores(executor.cores).memory(executor.memory)
    if executor.overhead:
        requests = requests.memoryOverhead(executor.overhead)
    return builder.require(requests.resource("gpu", executor.gpus, executor.script, executor.vendor)).build
