"""The command line where nobody reads what it says, or its terminal is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import daybreak

COMMAND = """
    import logging, os, signal, sys, types
    from daybreak import cli, config
    from daybreak.errors import GateError
    from daybreak.ops.report import Summary

    summary = Summary(
        *("20261130T010203Z-abc", "published", 1000, 995, 5, 0, 1010, 4, 1, 61.0, "7", "3", 12),
        job="churn", window="w", model="models:/ch\u00fcrn/3", output="/out", dead_letters="/dead", timing={},
    )
    config.load = lambda *_: None

    def score(job, fresh):
        logging.getLogger("daybreak").info("under way")
        DURING
        logging.getLogger("daybreak").info("still under way")
        return summary

    sys.modules["daybreak.run"] = types.SimpleNamespace(score=score, republish=None)
    sys.exit(cli.main(["score", "--config", "x", "--json"]))
"""
REFUSED = "raise GateError('a gate refuses')"
NOT_INSTALLED = "import daybreak_of_tomorrow"


def daybreak_score(during: str = "pass", **how: Any) -> subprocess.CompletedProcess[str]:
    """The command, with a score that does what ``during`` says."""
    code = textwrap.dedent(COMMAND).replace("DURING", during)
    environment = {**os.environ, "PYTHONPATH": str(Path(daybreak.__file__).parents[1]), **how.pop("env", {})}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, text=True, timeout=120, check=False, **streams)


@contextmanager
def taking_no_text(stream: str, kind: str) -> Iterator[dict[str, Any]]:
    """``stream`` of a command: closed before it starts, a full disk, or a pipe whose reader has ended."""
    if kind == "closed":
        yield {"preexec_fn": lambda: os.close({"stdout": 1, "stderr": 2}[stream])}
        return
    reader, writer = os.pipe() if kind == "no reader" else (None, os.open("/dev/full", os.O_WRONLY))
    if reader is not None:
        os.close(reader)
    yield {stream: writer}
    os.close(writer)


KINDS = ["closed", "full", "no reader"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_published_ends_with_0_and_says_so_where_stdout_takes_no_text(kind: str) -> None:
    with taking_no_text("stdout", kind) as streams:
        done = daybreak_score(**streams)
    assert done.returncode == 0, done.stderr
    assert "run 20261130T010203Z-abc is published, and stdout takes no text" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "during", "code"),
    [*((kind, "pass", 0) for kind in KINDS), ("full", REFUSED, 3), ("no reader", "1 / 0", 1)],
)
def test_the_exit_code_is_the_same_where_stderr_takes_no_text(kind: str, during: str, code: int) -> None:
    with taking_no_text("stderr", kind) as streams:
        done = daybreak_score(during, **streams)
    assert done.returncode == code
    assert ('"status": "published"' in done.stdout) is (code == 0)


def test_a_closed_terminal_ends_no_run_and_nothing_that_it_started() -> None:
    ignored = "os.kill(os.getpid(), signal.SIGHUP); os.system('kill -HUP $$; echo the child lives')"
    done = daybreak_score(ignored)
    assert (done.returncode, "the child lives" in done.stdout) == (0, True)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
def test_a_signal_that_means_the_run_ends_it(how: str) -> None:
    assert daybreak_score(f"os.kill(os.getpid(), signal.{how})").returncode != 0


def test_a_name_that_the_terminal_lacks_is_shown_escaped() -> None:
    done = daybreak_score(env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, "models:/ch\\xfcrn/3" in done.stdout) == (0, True), done.stderr


def test_what_is_not_installed_is_told_as_that() -> None:
    done = daybreak_score(NOT_INSTALLED)
    assert done.returncode == 2
    assert "No module named 'daybreak_of_tomorrow'" in done.stderr
    assert "to mend it: install it here" in done.stderr
