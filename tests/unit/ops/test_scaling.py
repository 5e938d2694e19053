"""What the scoring stage asks for, by the settings of the application."""

from __future__ import annotations

from pathlib import Path

import pytest

from daybreak.errors import ConfigError
from daybreak.ops.scaling import Executor, Task, choose

CONF = Path(__file__).parents[3] / "conf" / "spark"
STANDALONE = {"spark.master": "spark://host:7077"}
DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}
OWN_GPUS = {"spark.daybreak.scoring.executor.resource.gpu.amount": "1"}
ALL_GPUS = {"spark.executor.resource.gpu.amount": "1"}
ONE = Executor(cores=1, memory="1g", overhead="", gpus=1, script="", vendor="")


@pytest.mark.parametrize(
    ("conf", "task", "executor", "reason"),
    [
        ({}, None, None, "executors of all stages"),
        ({"spark.master": "local[*,4]", **DYNAMIC, **OWN_GPUS}, None, None, "one machine"),
        ({"spark.master": "local", **OWN_GPUS}, None, None, "one machine"),
        ({**STANDALONE, **DYNAMIC}, None, None, "executors of all stages"),
        ({**STANDALONE, **DYNAMIC, **OWN_GPUS}, Task(1, 1), ONE, "go when they are idle"),
        ({**STANDALONE, **DYNAMIC, **OWN_GPUS, **ALL_GPUS}, Task(1, 1), ONE, "go when they are idle"),
        ({"spark.master": "local-cluster[2,1,1024]", **DYNAMIC, **OWN_GPUS}, Task(1, 1), ONE, "go when they are idle"),
        ({**STANDALONE, **ALL_GPUS}, None, None, "executors of all stages"),
        ({**STANDALONE, **DYNAMIC, **ALL_GPUS}, None, None, "every executor holds GPUs"),
        ({**STANDALONE, **OWN_GPUS, **ALL_GPUS}, Task(1, 1), None, "until the application ends"),
        (
            {**STANDALONE, **ALL_GPUS, "spark.daybreak.scoring.task.resource.gpu.amount": "0.25"},
            Task(1, 0.25),
            None,
            "until the application ends",
        ),
    ],
)
def test_the_request_follows_master_allocation_and_settings(
    conf: dict[str, str], task: Task | None, executor: Executor | None, reason: str
) -> None:
    wanted = choose(conf)
    assert (wanted.task, wanted.executor) == (task, executor)
    assert reason in wanted.reason


def test_what_the_stage_does_not_say_is_as_for_the_others() -> None:
    others = {"executor.cores": "2", "executor.memory": "4g", "task.cpus": "2"}
    conf = {**STANDALONE, **DYNAMIC, **OWN_GPUS, **{f"spark.{key}": value for key, value in others.items()}}
    conf["spark.daybreak.scoring.executor.memory"] = "6g"
    assert choose(conf).task == Task(2, 1)
    assert choose(conf).executor == Executor(cores=2, memory="6g", overhead="", gpus=1, script="", vendor="")


def test_gpus_that_no_executor_would_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="no executor has one") as refused:
        choose({**STANDALONE, **OWN_GPUS})
    assert "spark.dynamicAllocation.enabled" in refused.value.fix


@pytest.mark.parametrize("value", ["none", "0", "-1"])
def test_an_amount_is_a_number_above_zero(value: str) -> None:
    conf = {**STANDALONE, **DYNAMIC, "spark.daybreak.scoring.executor.resource.gpu.amount": value}
    with pytest.raises(ConfigError, match=rf"executor.resource.gpu.amount is '{value}'"):
        choose(conf)


@pytest.mark.parametrize(
    ("name", "script", "vendor"),
    [
        ("standalone-gpu", "", ""),
        ("yarn-gpu", "./gpu_discovery.sh", ""),
        ("k8s-gpu", "/opt/daybreak/conf/spark/gpu_discovery.sh", "nvidia.com"),
    ],
)
def test_the_environments_with_gpus_bring_them_for_scoring_alone(name: str, script: str, vendor: str) -> None:
    lines = (CONF / f"{name}.conf").read_text().splitlines()
    conf = {
        "spark.master": "spark://host:7077",
        **dict(line.split(None, 1) for line in lines if line[:1] not in ("", "#")),
    }
    assert not [key for key in conf if key.startswith(("spark.executor.resource", "spark.task.resource"))]
    wanted = choose(conf)
    assert wanted.task == Task(4, 1)
    assert wanted.executor == Executor(cores=4, memory="6g", overhead="8g", gpus=1, script=script, vendor=vendor)
