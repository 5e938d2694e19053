"""What a person reads of an error."""

from __future__ import annotations

import pytest

from daybreak.errors import first_line, root_cause, text

FULL_DISK = """An error occurred while calling o1053.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 2 in stage 46.0 failed 4 times
\tat org.apache.spark.util.Utils$.tryWithSafeFinally(Utils.scala:97)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\t... 13 more
\t\tCaused by: java.io.IOException: suppressed
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
IN_PYTHON = """Job aborted due to stage failure: Task 0 in stage 9.0 failed 1 times
Traceback (most recent call last):
  File "model.py", line 3, in predict
ValueError: a bad weight

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException
"""

CONSTRAINT = """An error occurred while calling o552.execute.
: org.apache.spark.sql.delta.schema.DeltaInvariantViolationException: CHECK constraint short violated by row
 - told : 0123456789
\tat org.apache.spark.sql.delta.constraints.CheckDeltaInvariant.assertRule(CheckDeltaInvariant.scala:49)
"""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (FULL_DISK, "java.io.IOException: No space left on device"),
        (IN_PYTHON, "ValueError: a bad weight"),
        (CONSTRAINT, CONSTRAINT.splitlines()[1].removeprefix(": ")),
        ("no such thing\nand more", "no such thing"),
        ("", "RuntimeError"),
    ],
    ids=["JVM", "Python", "in the first line", "plain", "nothing"],
)
def test_the_root_cause_is_what_lies_at_the_bottom(said: str, cause: str) -> None:
    assert root_cause(RuntimeError(said)) == cause


@pytest.mark.parametrize(
    ("said", "line"),
    [("\n  no table  \nat line 1", "no table"), ("  \n", "RuntimeError"), ("x" * 900, "x" * 500)],
    ids=["after a blank line", "blank", "long"],
)
def test_the_first_line_says_something_and_not_all(said: str, line: str) -> None:
    assert first_line(RuntimeError(said)) == line


class MuteError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class WrongError(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


class UnshownError(Exception):
    """Its text is its argument's, which cannot be shown."""

    def __init__(self) -> None:
        super().__init__(MuteError(), WrongError())

    def __repr__(self) -> str:
        raise RuntimeError


GROUP = ExceptionGroup("two", [ValueError("a bad weight"), ExceptionGroup("more", [MuteError(), KeyError("b")])])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MuteError(), "MuteError, whose text cannot be had: its __str__ raises SystemExit"),
        (WrongError(), "WrongError, whose text cannot be had: its __str__ raises TypeError"),
        (ValueError(MuteError()), "ValueError, whose text cannot be had: its __str__ raises SystemExit"),
        (UnshownError(), None),
        (ValueError(), "ValueError"),
        (ValueError("half a pair: \ud800"), "half a pair: ?"),
        (ValueError("x" * 5_000_000), "x" * 1_000_000),
        (GROUP, None),
    ],
    ids=["raises", "no text", "its argument raises", "its own arguments", "nothing", "surrogate", "long", "group"],
)
def test_any_error_can_be_told(error: BaseException, told: str | None) -> None:
    said = text(error)
    assert said == told or told is None
    for tells in (text, first_line, root_cause):
        assert tells(error).encode().decode()
    if error is GROUP:
        assert "ValueError: a bad weight" in said
        assert "MuteError, whose text cannot be had" in said
        assert "KeyError: 'b'" in said
