"""What a person reads of an error."""

from __future__ import annotations

import pytest

from daybreak.errors import first_line, root_cause

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


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (FULL_DISK, "java.io.IOException: No space left on device"),
        (IN_PYTHON, "ValueError: a bad weight"),
        ("no such thing\nand more", "no such thing"),
        ("", "RuntimeError"),
    ],
    ids=["JVM", "Python", "plain", "nothing"],
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
