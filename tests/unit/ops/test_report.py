"""What a person reads while a run lasts and when it is over."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from daybreak.ops import report
from daybreak.ops.progress import Display, Progress, bar, clock, line

HALF = Progress(rows=1500, rows_total=3000, shards=6, shards_total=12, rows_here=1000, seconds=10)
DONE = Progress(rows=3000, rows_total=3000, shards=12, shards_total=12, rows_here=2500, seconds=25)
SUMMARY = report.Summary(
    *("20261130T010203Z-abc", "published", 1000, 995, 5, 0, 1010, 4, 1, 61.0, "7", "3", 12),
    job="churn",
    window="2026-11-30",
    model="models:/churn/3",
    output="/out",
    dead_letters="/dead",
    timing={"prepare": 5.0, "score": 50.0, "publish": 6.0},
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.4, "59s"), (59.6, "1m 00s"), (303, "5m 03s"), (7620, "2h 07m"), (86400, "24h 00m")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_progress_in_a_line_and_a_bar() -> None:
    assert line(HALF) == "1,500 of 3,000 rows, 6 of 12 shards, 100.0 rows/s, 15s left"
    assert bar(HALF) == f"[############............]  50%  {line(HALF)}"
    nothing = Progress(0, 0, 0, 0, 0, 0)
    assert line(nothing) == "0 of 0 rows, 0 of 0 shards, 0.0 rows/s"
    assert bar(nothing).startswith("[########################] 100%")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_the_display_ends_with_the_end(stream: io.StringIO) -> None:
    with Display(lambda: DONE, stream=stream, every=0.001):
        pass
    last = stream.getvalue().splitlines()[-1]
    assert last.endswith("3,000 of 3,000 rows, 12 of 12 shards, 100.0 rows/s, 0s left")
    assert stream.getvalue().endswith("\n")


def test_a_display_that_cannot_read_ends_no_run() -> None:
    def broken() -> Progress:
        raise OSError("the store is away")

    with Display(broken, stream=io.StringIO(), every=0.001):
        pass


def test_the_summary_as_text_json_and_html() -> None:
    text = str(SUMMARY)
    assert "rows  1,000 in = 995 scored + 5 dead letters + 0 skipped" in text
    assert "dead letters  /dead" in text
    assert "1m 01s (prepare 5.0s, score 50.0s, publish 6.0s)" in text
    assert json.loads(SUMMARY.as_json())["rows_forward"] == 1010
    assert "\n" not in SUMMARY.as_json()
    html = report.Summary(**{**SUMMARY.__dict__, "job": "<b>"})._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_the_run_log_as_a_table() -> None:
    row = SimpleNamespace(
        run_id="r1", job="churn", status="scoring", window="w", rows_in=1000, rows_scored=None, rows_dead=None,
        rows_skipped=0, model_name="m", model_version="3", started_at=datetime(2026, 11, 30, 1, 2, 3, tzinfo=UTC),
    )  # fmt: skip
    head, body = report.runs_table([row], dead={"r1"}).splitlines()
    assert head.split()[:2] == ["run", "job"]
    assert body.split() == ["r1", "churn", "dead", "w", "1,000", "0", "m", "3", "2026-11-30", "01:02:03"]
    assert head.index("model") == body.index("m 3")


class Taken(io.StringIO):
    """A stream that takes no text, from a certain time on."""

    def __init__(self, error: Exception, *, terminal: bool) -> None:
        super().__init__()
        self.error, self.terminal, self.tried = error, terminal, 0

    def isatty(self) -> bool:
        return self.terminal

    def write(self, _: str) -> int:
        self.tried += 1
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(32, "Broken pipe"),
        OSError(5, "Input/output error"),
        OSError(28, "No space left on device"),
        ValueError("I/O operation on closed file"),
        UnicodeEncodeError("ascii", "\u2588", 0, 1, "ordinal not in range"),
        RuntimeError("a notebook's own stream"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("terminal", [True, False])
def test_progress_that_cannot_be_drawn_is_given_up(error: Exception, terminal: bool) -> None:
    stream = Taken(error, terminal=terminal)
    with Display(lambda: HALF, stream=stream, every=60) as display:
        display._draw(last=True)
    assert stream.tried == 1


def test_progress_is_drawn_nowhere_where_there_is_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    with Display(lambda: HALF, stream=closed, every=60):
        pass
    monkeypatch.setattr("sys.stderr", None)
    with Display(lambda: HALF, every=60):
        pass
