"""How time and memory grow with the rows of a light run: build/bench/growth.json and a plot.

python tests/benchmarks/growth.py [--rows 100000,1000000,10000000]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import run
from bench import CORES, Ground
from light import GROWTH


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests/benchmarks/growth.py")
    parser.add_argument("--rows", default="100000,1000000,10000000")
    parser.add_argument("--folder", type=Path, default=run.ROOT / "build/bench/growth", help="of data and results")
    parser.add_argument("--plots", type=Path, default=run.ROOT / "docs", help="a folder")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    ground, points = Ground(asked.folder.absolute()), []
    for rows in map(int, asked.rows.split(",")):
        run.in_a_process(GROWTH, ground, "prepare", rows=rows)
        point = run.in_a_process(GROWTH, ground, "daybreak", rows=rows)
        points.append(point)
        print(
            f"{rows:>12,} rows  {point['seconds']:7.1f} s  {rows / point['seconds']:>9,.0f} rows/s"
            f"  worker {point['peak_mb']['python']:,} MB  JVM {point['peak_mb']['java']:,} MB"
            f"  {json.dumps(point['facts']['timing'])}",
            flush=True,
        )
        (asked.folder.parent / "growth.json").write_text(json.dumps(points, indent=2) + "\n")
        plot(points, asked.plots / "benchmark-growth.png")


def plot(points: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    rows = [point["rows"] for point in points]
    figure, (time, memory) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    time.plot(rows, [point["seconds"] for point in points], "o-", color="#d9822b")
    time.set(xscale="log", yscale="log", ylabel="seconds, end to end")
    for kind, label, color in (("python", "largest worker", "#d9822b"), ("java", "JVM", "#8a9ba8")):
        memory.plot(rows, [point["peak_mb"][kind] for point in points], "o-", color=color, label=label)
    memory.set(xscale="log", ylim=(0, None), ylabel="peak MB")
    memory.legend(frameon=False)
    for axes in (time, memory):
        axes.set_xlabel(f"rows of 20 numbers, history mode, {CORES} cores")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
