"""What executors an application has over time, by Spark's REST API; and the picture of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cluster import Driver

STAGES = ("prepare", "plan", "score", "audit", "publish")


@dataclass(frozen=True)
class Sample:
    """The executors at one moment, in seconds since the epoch."""

    at: float
    cpu: int
    gpu: int


@dataclass(frozen=True)
class Timeline:
    """The samples of a run, in order, and when its MERGE began and ended (by its Spark jobs)."""

    samples: Sequence[Sample]
    merge: tuple[float, float]

    def span(self, kind: str) -> tuple[float, float]:
        """When the first executor of a kind (``cpu``, ``gpu``) was there, and when the last one was seen."""
        seen = [sample.at for sample in self.samples if getattr(sample, kind)]
        return seen[0], seen[-1]


def watch(driver: Driver, *, every: float = 0.25) -> Timeline:
    """Look at the driver's executors and jobs until it ends."""
    samples: list[Sample] = []
    jobs: list[dict[str, Any]] = []
    while driver.poll() is None:
        executors = driver.rest("executors")
        if executors is not None:
            samples.append(_sample(executors))
        jobs = driver.rest("jobs") or jobs
        time.sleep(every)
    merging = [job for job in jobs if "MERGE operation" in job.get("description", "") and "completionTime" in job]
    began, ended = ([_seconds(job[time]) for job in merging] for time in ("submissionTime", "completionTime"))
    return Timeline(samples, (min(began), max(ended)))


def _sample(executors: list[dict[str, Any]]) -> Sample:
    living = [one for one in executors if one["id"] != "driver" and one["isActive"]]
    gpu = sum("gpu" in one["resources"] for one in living)
    return Sample(time.time(), cpu=len(living) - gpu, gpu=gpu)


def _seconds(moment: str) -> float:
    return datetime.strptime(moment.replace("GMT", "+0000"), "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()


def draw(timeline: Timeline, timing: dict[str, float], path: Path) -> None:
    """The executors of both kinds over a run, with its stages behind them. ``timing`` is the summary's, in seconds."""
    from matplotlib.figure import Figure

    begin = timeline.samples[0].at
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    for index, (name, left, right) in enumerate(_stages(timeline, timing)):
        axes.axvspan(left - begin, right - begin, color="0.93" if index % 2 else "0.98", linewidth=0)
        axes.text((left + right) / 2 - begin, 2.3, name, ha="center", va="center", fontsize=9, color="0.3")
    times = [sample.at - begin for sample in timeline.samples]
    for kind, color, label in (("cpu", "tab:blue", "without a GPU"), ("gpu", "tab:green", "with a GPU")):
        counts = [getattr(sample, kind) for sample in timeline.samples]
        axes.step(times, counts, where="post", color=color, label=label, linewidth=2)
    axes.set(xlabel="seconds", ylabel="executors", ylim=(-0.1, 2.6), yticks=(0, 1, 2), xlim=(0, times[-1]))
    axes.legend(loc="center left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _stages(timeline: Timeline, timing: dict[str, float]) -> Iterator[tuple[str, float, float]]:
    """Each stage with its begin and end: publishing ends with its MERGE, and the others lie before it."""
    end = timeline.merge[1]
    for name in reversed(STAGES):
        begin = max(end - timing[name], timeline.samples[0].at)
        yield name, begin, end
        end = begin
