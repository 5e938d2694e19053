"""Ends a process that hangs: a row that never returns must not hold its executor, and cannot be interrupted."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Watchdog"]


class Watchdog:
    """Ends this process, with every thread's stack on stderr, when a watched section takes longer than ``seconds``.

    The timer is faulthandler's own thread, which needs no interpreter lock: a section that holds the lock, as a
    regular expression that backtracks, is ended too. Sections may overlap, on any threads; the oldest counts.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._since: dict[object, float] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Watch a section."""
        section = object()
        self._change(section, time.monotonic())
        try:
            yield
        finally:
            self._change(section, None)

    def _change(self, section: object, since: float | None) -> None:
        with self._lock:
            if since is None:
                del self._since[section]
            else:
                self._since[section] = since
            if not self._since:
                faulthandler.cancel_dump_traceback_later()
                return
            left = min(self._since.values()) + self._seconds - time.monotonic()
            # by its number, since the model may have closed the file
            faulthandler.dump_traceback_later(max(left, 0.001), exit=True, file=2)
