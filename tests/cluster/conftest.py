"""One cluster for all tests of this folder that break none of it; a local session to write and read tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from local_spark import job, save_model, spark, table, tracking

__all__ = ["job", "save_model", "spark", "table", "tracking"]


@pytest.fixture(scope="session", autouse=True)
def _linux() -> None:
    if sys.platform != "linux":
        pytest.skip("needs /proc and the addresses 127.0.0.2 and up")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """For tests that leave its workers as they were."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """For a test that takes workers away."""
    (tmp_path / "cluster").mkdir()
    with Cluster(tmp_path / "cluster") as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """A failed test shows what its cluster said last, and where the rest is."""
    report = yield
    used: dict[str, Any] = getattr(item, "funcargs", {})
    if report.failed:
        report.sections += [("cluster", one.tails()) for one in used.values() if isinstance(one, Cluster)]
    return report
