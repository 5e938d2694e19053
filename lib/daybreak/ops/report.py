"""What a person reads when the run is over, on a terminal, in a notebook or as JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC
from typing import Any

from daybreak.ops.progress import clock


@dataclass(frozen=True)
class Summary:
    """The outcome of one invocation. ``rows_forward`` and ``seconds`` are of this invocation alone."""

    run_id: str
    status: str
    rows_in: int
    rows_scored: int
    rows_dead: int
    rows_skipped: int
    rows_forward: int
    shards: int
    shards_resumed: int
    seconds: float
    input_version: str
    model_version: str
    output_version: int | None
    job: str
    window: str
    model: str
    output: str
    dead_letters: str
    timing: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    def lines(self) -> list[tuple[str, str]]:
        """The summary as pairs of a label and its text."""
        resumed = f", {self.shards_resumed:,} of them already staged" if self.shards_resumed else ""
        return [
            ("run", f"{self.run_id} of job {self.job}, window {self.window}"),
            ("status", self.status),
            (
                "rows",
                f"{self.rows_in:,} in = {self.rows_scored:,} scored + {self.rows_dead:,} dead letters"
                f" + {self.rows_skipped:,} skipped",
            ),
            ("shards", f"{self.shards:,}{resumed}; {self.rows_forward:,} rows through the forward pass"),
            ("input", f"version {self.input_version}"),
            ("model", f"{self.model}, version {self.model_version}"),
            ("output", self.output + ("" if self.output_version is None else f", version {self.output_version}")),
            *([("dead letters", self.dead_letters)] if self.rows_dead else []),
            ("time", f"{clock(self.seconds)} ({_stages(self.timing)})"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{label:>12}  {text}" for label, text in self.lines())

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for label, text in self.lines()
        )
        return f"<table>{rows}</table>"


def _stages(timing: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f}s" for name, seconds in timing.items() if name in STAGES)


STAGES = ("prepare", "plan", "score", "audit", "publish")


def runs_table(rows: Iterable[Any], *, dead: Collection[str] = ()) -> str:
    """The run log as aligned text. ``dead`` names the runs whose driver was killed: they wait to be resumed."""
    head = ("run", "job", "status", "window", "rows in", "scored", "dead", "skipped", "model", "started (UTC)")
    body = [
        (
            *(row.run_id, row.job, "dead" if row.run_id in dead else row.status, row.window),
            *("" if n is None else f"{n:,}" for n in (row.rows_in, row.rows_scored, row.rows_dead, row.rows_skipped)),
            f"{row.model_name} {row.model_version}",
            f"{row.started_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *body)
    )
