"""Kills at random moments, all night long: `make faults SEED=1 RUNS=10`.

Each run of the campaign is one job on a fresh table, killed a few times and given again until it is published. Victims
are the driver's machine, an executor, a Python worker or a worker's machine; moments are drawn so that every phase has
its share. Then the run is judged: see :class:`night.Night`. The seed decides what is killed and when, as far as the
machine's own pace allows. Exit code 1 if any run lost, doubled or changed a row.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlflow
from cluster import Cluster, Driver
from local_spark import session
from mlflow.models import ModelSignature
from models import DOUBLE_IN, DOUBLE_OUT, Counted
from night import AGAIN, POISON, ROWS, SHARDS, SLOTS, Night, end_all_of
from pyspark.sql import SparkSession

PHASES = ("start", "plan", "score", "stage", "audit", "MERGE", "run log")
KILLS = 6  # a run; those whose moment does not come any more are let go


@dataclass
class Verdict:
    """What became of one run of the campaign."""

    number: int
    kills: list[tuple[str, str]] = field(default_factory=list)  # phase and victim
    submissions: int = 0
    forward: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: int = 0
    double: int = 0

    def __str__(self) -> str:
        killed = ", ".join(f"{victim} in {phase}" for phase, victim in self.kills)
        end = "; ".join(self.wrong) or "holds"
        counts = f"{self.number:>3}  {self.submissions:>11}  {self.forward:>7}  {self.lost:>4}  {self.double:>6}"
        return f"{counts}  {end}  ({killed})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/cluster/campaign.py")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=10)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the cluster ends with the campaign
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="daybreak-faults-") as folder, session() as spark:
        print("run  submissions  forward  lost  double  verdict", flush=True)
        for number in range(1, asked.runs + 1):
            chance = random.Random(f"{asked.seed}/{number}")
            here = Path(folder) / str(number)
            (here / "cluster").mkdir(parents=True)
            with Cluster(here / "cluster") as cluster:
                verdicts.append(one_run(number, here, cluster, spark, chance))
            print(verdicts[-1], flush=True)
    return told(verdicts, asked.seed)


def told(verdicts: list[Verdict], seed: int) -> int:
    kills = [kill for verdict in verdicts for kill in verdict.kills]
    by_phase = Counter(phase for phase, _ in kills)
    by_victim = Counter(victim for _, victim in kills)
    print("\nphase    " + "  ".join(f"{phase}: {by_phase[phase]}" for phase in PHASES))
    print("victim   " + "  ".join(f"{victim}: {count}" for victim, count in sorted(by_victim.items())))
    lost, double = sum(one.lost for one in verdicts), sum(one.double for one in verdicts)
    print(f"seed {seed}: {len(verdicts)} runs, {len(kills)} kills, lost {lost}, double {double}")
    return 1 if any(verdict.wrong for verdict in verdicts) else 0


def one_run(number: int, folder: Path, cluster: Cluster, spark: SparkSession, chance: random.Random) -> Verdict:
    night, verdict = job(folder, cluster, spark), Verdict(number)
    try:
        finish(night, disturbed(night, verdict, chance), verdict)
    except (TimeoutError, subprocess.TimeoutExpired) as hangs:
        verdict.wrong.append(f"hangs: {hangs}")
    if night.merged():
        judge(night, verdict)
    return verdict


def disturbed(night: Night, verdict: Verdict, chance: random.Random) -> Driver:
    """Kill one run again and again, and give its command again. Returns the driver that is left alone."""
    plan = sorted(chance.choices(PHASES, k=KILLS), key=PHASES.index)
    driver = submit(night, verdict)
    for phase in plan:
        if not reached(night, driver, phase, chance):
            if driver.poll() == 0:
                break
            driver = submit(night, verdict)  # an attempt that ended by itself, as after a shard's last attempt
            continue
        victim = kill(night, driver, phase, chance)
        verdict.kills.append((now_in(night, aimed=phase), victim))
        if driver.poll() is not None:
            if published(night):
                break
            driver = submit(night, verdict)
    return driver


def job(folder: Path, cluster: Cluster, spark: SparkSession) -> Night:
    signature = ModelSignature(inputs=DOUBLE_IN, outputs=DOUBLE_OUT)
    model = Counted(str(folder / "calls"), 60, POISON)
    mlflow.pyfunc.save_model(path=str(folder / "model"), python_model=model, signature=signature, pip_requirements=[])
    rows = spark.createDataFrame([(i, float(i)) for i in range(ROWS)], "id bigint, x double")
    rows.repartition(2).write.format("delta").save(str(folder / "input"))
    document = {
        "name": "night",
        "input": {"table": str(folder / "input"), "key": ["id"]},
        "window": "w1",
        "model": {"uri": str(folder / "model")},
        "batch": {"tokens": 10},
        "shards": {"rows": ROWS // SHARDS, "by": "key"},
        "output": {"table": str(folder / "scores")},
        "retention": "0s",
        "mlflow": {"tracking_uri": f"sqlite:///{folder}/mlflow.db"},
    }
    return Night(folder, cluster, spark, document)


def submit(night: Night, verdict: Verdict) -> Driver:
    verdict.submissions += 1
    return night.submit()


def begun(night: Night, phase: str) -> Callable[[], bool]:
    given = night.given()
    return {
        "start": lambda: True,
        "plan": night.planned,
        "score": lambda: night.given() > given or night.staged(1),
        "stage": night.staged,
        "audit": lambda: night.staged(1),
        "MERGE": night.audited,
        "run log": night.merged,
    }[phase]


SPREAD = {"start": 8.0, "plan": 0.5, "score": 2.0, "stage": 3.0, "audit": 1.0, "MERGE": 1.5, "run log": 0.5}
"""Seconds after a phase has begun, within which its kill comes."""


def reached(night: Night, driver: Driver, phase: str, chance: random.Random) -> bool:
    """Wait for the moment of a kill. False when the driver ends before. TimeoutError when neither comes."""
    there, delay = begun(night, phase), chance.uniform(0, SPREAD[phase])
    patience = time.monotonic() + 600
    while not there():
        if driver.poll() is not None:
            return False
        if time.monotonic() > patience:
            raise TimeoutError(f"phase {phase!r} did not begin in ten minutes")
        time.sleep(0.005)
    end = time.monotonic() + delay
    while time.monotonic() < end and driver.poll() is None:
        time.sleep(0.005)
    return driver.poll() is None


def kill(night: Night, driver: Driver, phase: str, chance: random.Random) -> str:
    """Kill somebody. Only workers' processes are alive while scoring; a machine that is killed is replaced."""
    cluster = night.cluster
    victims: dict[str, list[Any]] = {"driver": [driver]}
    if phase in ("score", "stage"):
        victims["executor"] = cluster.executors()
        victims["Python worker"] = cluster.python_workers()
        victims["machine"] = [worker for worker in cluster.workers if worker.alive()]
    kind = chance.choice([name for name, some in victims.items() if some])
    victim = chance.choice(victims[kind])
    if kind == "driver":
        end_all_of(victim)
    else:
        victim.kill()
    if kind == "machine":
        cluster.start_worker()
    return kind


def now_in(night: Night, *, aimed: str) -> str:
    """The phase that the run is in, by what it has written. Once a shard is staged the others are still scored, so a
    kill aimed at scoring was one."""
    steps = {"run log": night.merged, "MERGE": night.audited, "audit": lambda: night.staged(1)}
    steps |= {"stage": night.staged, "score": lambda: night.given() > 0, "plan": night.planned}
    found = next((phase for phase, there in steps.items() if there()), "start")
    return aimed if (aimed, found) == ("score", "stage") else found


def published(night: Night) -> bool:
    return night.merged() and [row.status for row in night.table("runs")] == ["published"]


def finish(night: Night, driver: Driver, verdict: Verdict) -> None:
    """Give the command again until the run is published."""
    for _ in range(5):
        if driver.wait(timeout=600) == 0 or published(night):
            return
        driver = submit(night, verdict)
    verdict.wrong.append(f"not published after {verdict.submissions} submissions: {driver.err.read_text()[-2000:]}")


def judge(night: Night, verdict: Verdict) -> None:
    """Hold the run against what an undisturbed one gives: the model is a function of its row."""
    expected = {i: 2.0 * i for i in range(ROWS) if i != POISON}
    rows = night.scores()
    found, letters = Counter(row.id for row in rows), Counter(night.letters())
    both = found + letters
    verdict.lost = len({*expected, int(POISON)} - set(both))
    verdict.double = sum(count - 1 for count in both.values())
    verdict.forward = night.given()
    most = ROWS + len(verdict.kills) * SLOTS * night.largest() + (verdict.submissions + len(verdict.kills)) * AGAIN
    runs = night.table("runs")
    checks = {
        f"{verdict.lost} lost": verdict.lost == 0,
        f"{verdict.double} double": verdict.double == 0,
        "other scores than an undisturbed run": {row.id: row.y for row in rows} == expected,
        f"{len(runs)} rows in the run log": len(runs) == 1,
        "counts in the run log": all((r.rows_in, r.rows_scored, r.rows_dead) == (ROWS, ROWS - 1, 1) for r in runs),
        f"{verdict.forward} rows forward, of {most} at most": ROWS <= verdict.forward <= most,
        "a shard with two receipts": set(Counter(row.shard_id for row in night.table("shards")).values()) == {1},
    }
    verdict.wrong += [what for what, right in checks.items() if not right]
    verdict.wrong += staging_left(night)


def staging_left(night: Night) -> list[str]:
    """A kill between the run log and the housekeeping leaves the next run to do it."""
    if night.files("staging/*"):
        night.submit("--set", "window=w2").told()
    return ["staging is not empty"] if night.files("staging/*") else []


if __name__ == "__main__":
    sys.exit(main())
