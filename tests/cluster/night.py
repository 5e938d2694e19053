"""A job whose faults can be judged from outside: what it wrote, and each row that its model was ever given."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from cluster import Cluster, Driver
from pyspark.sql import SparkSession

ROWS, SHARDS, POISON = 400, 16, 123.0
SLOTS = 2  # shards that are scored at a time
AGAIN = 40  # rows, at most, that are tried again around the poisoned one: the halves of a batch of ten
HOLDING = {
    "spark.dynamicAllocation.enabled": "false",
    "spark.executor.resource.gpu.amount": "1",
    "spark.daybreak.scoring.task.resource.gpu.amount": "0.5",
    "spark.executor.cores": str(SLOTS),
    "spark.cores.max": str(SLOTS),
}
"""One executor that comes once, and two models on its GPU: on two cores each JVM more is a minute more."""


class Night:
    """A job on a cluster, and what can be seen of it from outside: its files, and each row that its model was given."""

    def __init__(self, folder: Path, cluster: Cluster, spark: SparkSession, document: dict[str, Any]) -> None:
        self.cluster, self.spark = cluster, spark
        self.config, self.calls = folder / "job.yaml", folder / "calls"
        self.config.write_text(json.dumps(document))
        self.output = Path(document["output"]["table"])
        self.state = Path(f"{self.output}_daybreak")

    def submit(self, *arguments: str, conf: dict[str, str] | None = None) -> Driver:
        return self.cluster.submit(self.config, *arguments, conf={**HOLDING, **(conf or {})})

    def files(self, pattern: str) -> list[Path]:
        return list(self.state.glob(pattern))

    def planned(self) -> bool:
        return bool(self.files("staging/*/plan/part-*"))

    def staged(self, share: float = 0) -> bool:
        return len(self.files("staging/*/shards/part-*")) > share * (SHARDS - 1)

    def audited(self) -> bool:
        return bool(self.files(f"shards/_delta_log/{1:020}.json"))

    def merged(self) -> bool:
        return len(self.commits()) > 1

    def commits(self) -> list[str]:
        """Of the output table."""
        return sorted(file.name for file in (self.output / "_delta_log").glob("*.json"))

    def given(self) -> int:
        return len(self.calls.read_text().split()) if self.calls.exists() else 0

    def largest(self) -> int:
        """Rows of the largest shard: shards by key are not all alike."""
        return max(row.rows_in for row in self.table("shards"))

    def table(self, name: str) -> list[Any]:
        return self.spark.read.format("delta").load(str(self.state / name)).collect()

    def scores(self) -> list[Any]:
        return list(self.spark.read.format("delta").load(str(self.output)).collect())

    def letters(self) -> list[int]:
        """The keys of the dead letters."""
        return [json.loads(row.key)["id"] for row in self.table("dead_letters")]

    def holds(self, told: dict[str, Any]) -> None:
        """Each key once, as a score or as a dead letter, with the right value; and the counts say so."""
        assert sorted((row.id, row.y) for row in self.scores()) == [(i, 2.0 * i) for i in range(ROWS) if i != POISON]
        assert self.letters() == [POISON]
        counts = (told["status"], told["rows_in"], told["rows_scored"], told["rows_dead"])
        assert counts == ("published", ROWS, ROWS - 1, 1)
        receipts = self.table("shards")
        assert Counter(row.shard_id for row in receipts) == Counter(range(told["shards"]))
        assert sum(row.rows_in for row in receipts) == ROWS


def end_all_of(driver: Driver) -> None:
    """SIGKILL for the driver's machine: the Python process and its JVM."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
