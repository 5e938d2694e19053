"""How the tests are shared out when they run in several processes."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling


class ByFile(LoadFileScheduling):
    """A file at a time, and all of tests/cluster to one process: two clusters at once are too much for two cores."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/cluster" if nodeid.startswith("tests/cluster/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)
