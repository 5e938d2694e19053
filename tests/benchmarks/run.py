"""Measures the contenders side by side: interleaved, each in a process of its own, medians with their spread.

    python tests/benchmarks/run.py [--rows 4000] [--repeats 3] [--only limit,daybreak]

Prints a table; writes build/bench/heavy.json, and docs/benchmark-heavy.png when all contenders took part.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import heavy
import prepare
from bench import GUARANTEES, Contender, Ground

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).resolve()


def main() -> None:
    asked = arguments()
    ground = Ground(asked.folder.absolute())
    if asked.step:
        return step(asked.step, ground, rows=asked.rows, result=asked.result)
    chosen = [one for one in heavy.CONTENDERS if not asked.only or one.name in asked.only.split(",")]
    in_a_process(ground, "prepare", rows=asked.rows)
    measured: dict[str, list[dict[str, Any]]] = {one.name: [] for one in chosen}
    for repeat in range(asked.repeats):
        for one in chosen:  # interleaved: what else the machine does meets them all alike
            measured[one.name].append(in_a_process(ground, one.name, rows=asked.rows))
            rate = rates(measured[one.name])[-1]
            print(f"{repeat + 1} of {asked.repeats}  {one.name}: {rate:.1f} docs/s", flush=True)
    report = summarized(measured, rows=asked.rows)
    (ground.folder / "heavy.json").write_text(json.dumps(report, indent=2) + "\n")
    print("\n" + table(chosen, report))
    if len(chosen) == len(heavy.CONTENDERS):
        plot(chosen, report, asked.plot)
        print(f"\n{ground.folder / 'heavy.json'}, {asked.plot}")
    return None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/benchmarks/run.py")
    parser.add_argument("--rows", type=int, default=4000, help="documents")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help=f"of {', '.join(one.name for one in heavy.CONTENDERS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/bench", help="of data and results")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/benchmark-heavy.png")
    parser.add_argument("--step", help=argparse.SUPPRESS)  # what the processes are started with
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def in_a_process(ground: Ground, name: str, *, rows: int) -> dict[str, Any]:
    """One step, so that no contender has the memory, the threads or the warm JVM of another."""
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        options = {"--step": name, "--folder": ground.folder, "--rows": rows, "--result": result}
        command = [sys.executable, HERE, *(word for option in options.items() for word in option)]
        with log.open("w") as output:
            ended = subprocess.run([*map(str, command)], stdout=output, stderr=output, cwd=ROOT, check=False)
        if ended.returncode:
            sys.exit(f"{name} failed with exit code {ended.returncode}:\n{log.read_text()[-4000:]}")
        return json.loads(result.read_text())


def step(name: str, ground: Ground, *, rows: int, result: Path) -> None:
    if name == "prepare":
        prepare.fill(ground, rows=rows)
        result.write_text("{}")
        return
    (contender,) = (one for one in heavy.CONTENDERS if one.name == name)
    result.write_text(json.dumps(contender.run(ground).as_dict()))


def rates(runs: list[dict[str, Any]], of: str = "scoring") -> list[float]:
    return [run["rows"] / run[of] for run in runs if run[of]]


def summarized(measured: dict[str, list[dict[str, Any]]], *, rows: int) -> dict[str, Any]:
    """Medians by contender, and every run for who wants to look closer."""
    scoring = {name: rates(runs) for name, runs in measured.items()}
    whole = {name: rates(runs, "whole") for name, runs in measured.items()}
    return {
        "rows_per_s": {name: round(median(found), 2) for name, found in scoring.items()},
        "rows_per_s_end_to_end": {name: round(median(found), 2) for name, found in whole.items() if found},
        "spread": {name: [round(min(found), 2), round(max(found), 2)] for name, found in scoring.items()},
        "rows": rows,
        "cores": heavy.CORES,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_after": os.getloadavg()[0],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": measured,
    }


def table(chosen: list[Contender], report: dict[str, Any]) -> str:
    """The numbers, and what each contender gives for them."""
    head = ("contender", "docs/s", "lowest-highest", "of limit", "end to end", "peak MB", *GUARANTEES)
    body = [head, *(line(one, report) for one in chosen)]
    widths = [max(map(len, column)) for column in zip(*body, strict=True)]
    return "\n".join("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in body)


def line(one: Contender, report: dict[str, Any]) -> tuple[str, ...]:
    rate, limit = report["rows_per_s"][one.name], report["rows_per_s"].get("limit")
    low, high = report["spread"][one.name]
    whole = report["rows_per_s_end_to_end"].get(one.name)
    peak = median(run["peak_rss_mb"] for run in report["runs"][one.name])
    return (
        *(one.label, f"{rate:.1f}", f"{low:.1f}-{high:.1f}"),
        *(f"{rate / limit:.2f}" if limit else "", f"{whole:.1f}" if whole else "-", f"{peak:,.0f}"),
        *("yes" if guarantee in one.gives else "no" for guarantee in GUARANTEES),
    )


def plot(chosen: list[Contender], report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    names = [one.name for one in chosen][::-1]
    rate = [report["rows_per_s"][name] for name in names]
    low, high = zip(*(report["spread"][name] for name in names), strict=True)
    figure, axes = plt.subplots(figsize=(8, 0.6 * len(names) + 1.4), layout="constrained")
    ends = [[r - x for r, x in zip(rate, low, strict=True)], [x - r for r, x in zip(rate, high, strict=True)]]
    colors = ["#d9822b" if name == "daybreak" else "#8a9ba8" for name in names]
    axes.barh([one.label for one in chosen][::-1], rate, xerr=ends, color=colors, capsize=3)
    axes.bar_label(axes.containers[-1], [f" {value:.0f}" for value in rate], padding=6)
    axes.set_xlabel(f"documents per second, scoring ({report['rows']:,} docstrings, MiniLM fp32, 2 cores)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
