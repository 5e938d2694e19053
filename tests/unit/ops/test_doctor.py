"""What doctor makes of texts that others write, and of checks that break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkValueError

from daybreak.errors import PreflightError
from daybreak.ops import doctor
from daybreak.ops.doctor import Finding


class MuteError(Exception):
    def __str__(self) -> str:
        raise TypeError


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.9+9", 17), ("17-ea", 17), ("21", 21), ("21.0.1+12-LTS", 21), ("1.8.0_392", 8), ("9-internal", 9),
     ("25.0.1.fx-zulu", 25), ("", None), ("None", None), ("next", None)],
)  # fmt: skip
def test_the_major_version_of_java(version: str, major: int | None) -> None:
    assert doctor.java_major(version) == major


@pytest.mark.parametrize(
    ("memory", "ok"), [("4g", True), ("2048MB", True), ("1p", True), ("512m", False), ("1.5g", False), ("lots", False)]
)
def test_what_is_no_memory_size_is_a_finding_that_quotes_it(memory: str, ok: bool) -> None:
    found = doctor._driver_memory(memory)
    assert found.ok is ok
    assert memory in found.told
    assert "spark.driver.memory" in found.mend


@pytest.mark.parametrize(
    "error",
    [ValueError("no number"), KeyError("spark.app.id"), AttributeError(), Py4JError("the JVM is gone"), MuteError(),
     PySparkValueError("of Spark's own kind"), PermissionError(13, "denied"), SystemExit(3), RecursionError()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_check_that_breaks_is_a_finding_after_those_that_it_made(error: BaseException) -> None:
    def check() -> Iterator[Finding]:
        yield Finding(True, "Java", "17")
        raise error

    good, bad = doctor._guarded("memory", check)
    assert (good.told, bad.ok, bad.what) == ("17", False, "memory")
    assert type(error).__name__ in bad.told
    assert bad.mend


def test_what_the_project_says_is_told_with_its_own_advice() -> None:
    def check() -> Iterator[Finding]:
        raise PreflightError("there is no table", fix="make one")
        yield

    assert doctor._guarded("input", check) == [Finding(False, "job", "there is no table", "make one")]


@pytest.mark.parametrize("error", [ValueError("a bad URL"), MuteError(), SystemExit(1)])
def test_without_a_session_the_rest_is_still_told(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> Any:
        raise error

    monkeypatch.setattr(doctor.session, "current", none)
    packages, spark = doctor.examine(None)
    assert (packages.what, spark.what, spark.ok) == ("packages", "Spark", False)
    assert spark.told
