"""What a person sees while shards are scored: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from daybreak import errors

log = logging.getLogger(__name__)

_PATIENCE = 10  # seconds for the last look at the run, or for a reader


@dataclass(frozen=True)
class Progress:
    """Rows and shards of the run that are done, and those that this invocation did."""

    rows: int
    rows_total: int
    shards: int
    shards_total: int
    rows_here: int
    seconds: float

    @property
    def rate(self) -> float:
        """Rows per second of this invocation."""
        return self.rows_here / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        return (self.rows_total - self.rows) / self.rate if self.rate else None


def line(progress: Progress) -> str:
    """One line of text, such as ``1,250 of 3,000 rows, 5 of 12 shards, 96.1 rows/s, 18s left``."""
    left = "" if progress.seconds_left is None else f", {clock(progress.seconds_left)} left"
    return (
        f"{progress.rows:,} of {progress.rows_total:,} rows, {progress.shards:,} of {progress.shards_total:,} shards,"
        f" {progress.rate:,.1f} rows/s{left}"
    )


def bar(progress: Progress, width: int = 24) -> str:
    """The line behind a bar of ``width`` characters."""
    share = progress.rows / progress.rows_total if progress.rows_total else 1.0
    full = int(share * width)
    return f"[{'#' * full}{'.' * (width - full)}] {share:4.0%}  {line(progress)}"


def clock(seconds: float) -> str:
    """A duration as a person says it: 42s, 5m 03s, 2h 07m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


class Display:
    """Draws progress until the ``with`` block ends. ``poll`` says how far the run is.

    A stream that takes no text, as a pipe that nobody reads or a terminal that was closed, is given up, with a word in
    the log: no run ends for it.
    """

    def __init__(self, poll: Callable[[], Progress], *, stream: TextIO | None = None, every: float = 1.0) -> None:
        self._poll, self._stream, self._every = poll, sys.stderr if stream is None else stream, every
        self._live = self._stream is not None and not self._stream.closed and self._stream.isatty()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._said: tuple[int, float] = (-1, 0.0)

    def _run(self) -> None:
        while not self._done.wait(self._every):
            self._draw()

    def _draw(self, *, last: bool = False) -> None:
        try:
            progress = self._poll()
        except Exception:
            log.debug("progress could not be read", exc_info=True)
            return
        if self._live:
            self._write("\r\x1b[K" + bar(progress) + ("\n" if last else ""))
        elif last or self._is_news(progress):
            self._write(line(progress) + "\n")

    def _write(self, text: str) -> None:
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except Exception as error:  # closed, without a reader, of an encoding without these letters, a notebook's own
            self._stream = None
            with contextlib.suppress(Exception):
                log.warning("progress is shown no more, and the run goes on: %s", errors.first_line(error))

    def _is_news(self, progress: Progress) -> bool:
        """A plain line when shards were finished, at most one in ten seconds."""
        shards, at = self._said
        if progress.shards == shards or time.monotonic() - at < 10:
            return False
        self._said = (progress.shards, time.monotonic())
        return True

    def __enter__(self) -> Display:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=_PATIENCE)
        if not self._thread.is_alive():  # else it waits for a reader that does not read
            self._draw(last=True)
