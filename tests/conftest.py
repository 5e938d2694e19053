"""How the tests are shared out when they run in several processes."""

from __future__ import annotations

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
