"""How the tests are shared out when they run in several processes, and what each file took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest
from xdist.scheduler import LoadFileScheduling


class Parts(LoadFileScheduling):
    """What one process takes at a time: a file, as a rule, since its tests share what is dear to set up."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/cluster/"):
            return "tests/cluster"  # two clusters at once are too much for two cores
        if nodeid.startswith("tests/spark/test_run.py"):
            return nodeid  # the longest file, whose tests share nothing
        return super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Parts:
    return Parts(config, log)


# -- what each file took ---------------------------------------------------------------------------------------------

_SECONDS: Counter[str] = Counter()  # by file: all of its tests, with what they set up and took down


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _SECONDS[report.nodeid.partition("::")[0]] += report.duration


def shares(seconds: Mapping[str, float]) -> Iterator[str]:
    """A line a file, the longest first: its seconds and its share of all; then all of them."""
    total = sum(seconds.values())
    for file, took in sorted(seconds.items(), key=lambda one: -one[1]):
        yield f"{took:8.1f} s {100 * took / total:5.1f} %  {file}"
    yield f"{total:8.1f} s 100.0 %  in {len(seconds)} files, over all processes"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the share of each file before pytest's last line."""
    if len(_SECONDS) > 1:
        terminalreporter.section("share by file")
        for line in shares(_SECONDS):
            terminalreporter.write_line(line)
