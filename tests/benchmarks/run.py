"""Measures the contenders side by side: interleaved, each in a process of its own, medians with their spread.

    python tests/benchmarks/run.py [--regime heavy,history,latest] [--rows N] [--repeats 3] [--only limit,daybreak]

Prints a table for each regime; writes build/bench/heavy.json and light.json, and docs/benchmark-*.png where all
contenders took part.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench import CORES, GUARANTEES, Contender, Ground, Regime
from heavy import HEAVY
from light import GROWTH, LIGHT

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).resolve()
COMPARED = (HEAVY, *LIGHT.values())
REGIMES = {regime.name: regime for regime in (*COMPARED, GROWTH)}


def main() -> None:
    asked = arguments()
    if asked.step:
        return step(asked)
    for name in asked.regime.split(","):
        keep(asked.folder, name, compared(REGIMES[name], asked))
    return None


def keep(folder: Path, name: str, report: dict[str, Any]) -> None:
    """heavy.json is one regime's; light.json holds the newest of each light one."""
    if name not in LIGHT:
        return write(folder / f"{name}.json", report)
    file = folder / "light.json"
    measured = {**(json.loads(file.read_text()) if file.exists() else {}), name: report}
    measured["rows_per_s"] = {name: measured[name]["rows_per_s"] for name in LIGHT if name in measured}
    return write(file, measured)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/benchmarks/run.py")
    names = [regime.name for regime in COMPARED]
    parser.add_argument("--regime", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--rows", type=int, help="by default 12,000 documents, 2,000,000 customers, 336,776 flights")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="some of the contenders; there is no plot then")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/bench", help="of data and results")
    parser.add_argument("--plots", type=Path, default=ROOT / "docs", help="a folder")
    parser.add_argument("--step", help=argparse.SUPPRESS)  # what the processes are started with
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def compared(regime: Regime, asked: argparse.Namespace) -> dict[str, Any]:
    chosen = [one for one in regime.contenders if not asked.only or one.name in asked.only.split(",")]
    rows = asked.rows or regime.rows
    ground = Ground(asked.folder.absolute())
    in_a_process(regime, ground, "prepare", rows=rows)
    measured: dict[str, list[dict[str, Any]]] = {one.name: [] for one in chosen}
    for repeat in range(asked.repeats):
        for one in chosen:  # interleaved: what else the machine does meets them all alike
            measured[one.name].append(in_a_process(regime, ground, one.name, rows=rows))
            rate = rates(measured[one.name])[-1]
            print(
                f"{repeat + 1} of {asked.repeats}  {regime.name}  {one.name}: {rate:,.1f} {regime.unit}/s", flush=True
            )
    report = summarized(measured, rows=rows)
    print("\n" + table(regime, chosen, report) + "\n", flush=True)
    if len(chosen) == len(regime.contenders):
        plot(regime, report, asked.plots / f"benchmark-{regime.name}.png")
    return report


def in_a_process(regime: Regime, ground: Ground, name: str, *, rows: int) -> dict[str, Any]:
    """One step, so that no contender has the memory, the threads or the warm JVM of another."""
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        options = {"--regime": regime.name, "--step": name, "--folder": ground.folder, "--rows": rows}
        words = [word for option in {**options, "--result": result}.items() for word in option]
        with log.open("w") as output:
            command = list(map(str, (sys.executable, HERE, *words)))
            env = {**os.environ, "PYTHONPATH": str(HERE.parent)}  # for the processes that a peer starts
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, env=env)
            peak = watched(process)
        if process.returncode:
            sys.exit(f"{name} failed with exit code {process.returncode}:\n{log.read_text()[-4000:]}")
        return {**json.loads(result.read_text()), "peak_mb": peak}


def watched(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """Wait for a process. Returns the peak resident MB of its largest Python process and of its JVM."""
    peak = {"python": 0, "java": 0}
    while process.poll() is None:
        for command, size in family(process.pid):
            kind = "java" if command.endswith("java") else "python"
            peak[kind] = max(peak[kind], size)
        time.sleep(0.2)
    return peak


def family(root: int) -> list[tuple[str, int]]:
    """Program and peak resident MB of a process and of all that it has started."""
    parents, found = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, KeyError):  # it has ended, or is a thread of the kernel's
            pairs = (line.split(":", 1) for line in (entry / "status").read_text().splitlines())
            facts = {key: value.split() for key, value in pairs}
            program = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
            parents[int(entry.name)] = int(facts["PPid"][0])
            found[int(entry.name)] = (program, int(facts["VmHWM"][0]) // 1024)
    members = {root}
    while more := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= more
    return [found[pid] for pid in members if pid in found]


def step(asked: argparse.Namespace) -> None:
    regime, ground = REGIMES[asked.regime], Ground(asked.folder)
    if asked.step == "prepare":
        regime.fill(ground, asked.rows)
        asked.result.write_text("{}")
        return
    (contender,) = (one for one in regime.contenders if one.name == asked.step)
    write(asked.result, asdict(contender.run(ground)))


def write(path: Path, report: dict[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=2) + "\n")


def rates(runs: list[dict[str, Any]]) -> list[float]:
    return [run["rows"] / run["seconds"] for run in runs]


def summarized(measured: dict[str, list[dict[str, Any]]], *, rows: int) -> dict[str, Any]:
    """Medians by contender, and every run for who wants to look closer."""
    found = {name: rates(runs) for name, runs in measured.items()}
    return {
        "rows_per_s": {name: round(median(rate), 2) for name, rate in found.items()},
        "spread": {name: [round(min(rate), 2), round(max(rate), 2)] for name, rate in found.items()},
        "rows": rows,
        "cores": CORES,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_after": os.getloadavg()[0],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": measured,
    }


def table(regime: Regime, chosen: list[Contender], report: dict[str, Any]) -> str:
    """The numbers, and what each contender gives for them."""
    head = (regime.name, f"{regime.unit}/s", "lowest-highest", "of limit", "worker MB", *GUARANTEES)
    body = [head, *(line(one, report) for one in chosen)]
    widths = [max(map(len, column)) for column in zip(*body, strict=True)]
    return "\n".join("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in body)


def line(one: Contender, report: dict[str, Any]) -> tuple[str, ...]:
    rate, limit = report["rows_per_s"][one.name], report["rows_per_s"].get("limit")
    low, high = report["spread"][one.name]
    peak = median(run["peak_mb"]["python"] for run in report["runs"][one.name])
    return (
        *(one.label, f"{rate:,.1f}", f"{low:,.1f}-{high:,.1f}"),
        *(f"{rate / limit:.2f}" if limit else "", f"{peak:,.0f}"),
        *("yes" if guarantee in one.gives else "no" for guarantee in GUARANTEES),
    )


def plot(regime: Regime, report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    shown = [one for one in regime.contenders[::-1] if regime.name == "heavy" or one.name != "limit"]
    rate = [report["rows_per_s"][one.name] for one in shown]
    low, high = zip(*(report["spread"][one.name] for one in shown), strict=True)
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(shown) + 1.4), layout="constrained")
    ends = [[r - x for r, x in zip(rate, low, strict=True)], [x - r for r, x in zip(rate, high, strict=True)]]
    colors = ["#d9822b" if one.name.startswith("daybreak") else "#8a9ba8" for one in shown]
    axes.barh([one.label for one in shown], rate, xerr=ends, color=colors, capsize=3)
    axes.bar_label(axes.containers[-1], [f" {value:,.0f}" for value in rate], padding=6)
    about = f"{regime.unit} per second, end to end\n{report['rows']:,}: {regime.about}, {CORES} cores"
    figure.supxlabel(about, fontsize="medium")  # as wide as the figure: the axes leave no room beside the labels
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.15)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
