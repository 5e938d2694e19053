"""The command line: ``daybreak score | publish | runs | doctor | schema``. The exit codes are those of ``errors``."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from daybreak import config as configuration
from daybreak.errors import ConfigError, DaybreakError, first_line, root_cause, text
from daybreak.ops.report import Summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. What a user did wrong ends with a message, not a stack trace."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that its encoding lacks is shown escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[_Log(sys.stderr)],
    )
    if not options.verbose:
        for noisy in ("py4j", "mlflow", "alembic", "urllib3", "pyspark", "databricks"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        with _outliving_the_terminal():
            return _code(options)
    finally:
        _let_go_of_closed_streams()


def _code(options: argparse.Namespace) -> int:
    try:
        return int(options.command(options))
    except DaybreakError as error:
        _complain(f"daybreak: {text(error)}")
        return error.exit_code
    except ImportError as error:
        logging.getLogger(__name__).debug("not installed", exc_info=True)
        _complain(f"daybreak: {first_line(error)}\n  to mend it: install it here, as make venv does")
        return 2
    except Exception as error:
        logging.getLogger(__name__).debug("unexpected", exc_info=True)
        hint = "" if options.verbose else "\n  --verbose shows the stack trace"
        _complain(f"daybreak: unexpected {type(error).__name__}: {root_cause(error)}{hint}")
        return 1


# -- what nobody reads ends no run


class _Log(logging.StreamHandler[Any]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Nothing: it would be told on the same stream."""


@contextmanager
def _outliving_the_terminal() -> Iterator[None]:
    """SIGHUP is ignored, also by the JVM and all else that is started meanwhile. Ctrl-C and SIGTERM end a run."""
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)


def _say(told: str) -> bool:
    """Print on stdout; False where it takes no text."""
    try:
        print(told, flush=True)
    except (OSError, ValueError):
        return False
    return sys.stdout is not None


def _complain(told: str) -> None:
    with suppress(OSError, ValueError):
        print(told, file=sys.stderr, flush=True)


def _let_go_of_closed_streams() -> None:
    """Python flushes them once more at its end, and a failure there is an exit code of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="daybreak", description="Score a table with a registered model, by daybreak.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    score = _command(commands, _score, "score", "score a job's table and publish; resumes what is unfinished")
    score.add_argument("--fresh", action="store_true", help="start a new run, even if one is unfinished")
    score.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    publish = _command(commands, _publish, "publish", "publish what a run has staged, under the job's present gates")
    publish.add_argument("run_id")
    publish.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    runs = _command(commands, _runs, "runs", "list the runs of a state folder, newest first")
    runs.add_argument("--last", type=int, default=20, metavar="N", help="how many (20)")
    _command(commands, _doctor, "doctor", "check this machine, and with --config a job, and say how to mend it")
    schema = commands.add_parser("schema", help="print the job file's JSON Schema")
    schema.set_defaults(command=_schema, verbose=False)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], run: object, name: str, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    command.add_argument("--config", required=name != "doctor", metavar="FILE", help="the job file, YAML")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override, as a.b=c")
    command.add_argument("--verbose", action="store_true", help="log everything")
    command.set_defaults(command=run)
    return command


def _score(options: argparse.Namespace) -> int:
    job = configuration.load(options.config, options.set)
    from daybreak.run import score

    return _tell(score(job, fresh=options.fresh), options)


def _publish(options: argparse.Namespace) -> int:
    job = configuration.load(options.config, options.set)
    from daybreak.run import republish

    return _tell(republish(options.run_id, job), options)


def _tell(summary: Summary, options: argparse.Namespace) -> int:
    told = _say(str(summary)) and (not options.json or _say(summary.as_json()))
    if not told:
        _complain(
            f"daybreak: run {summary.run_id} is {summary.status}, and stdout takes no text: daybreak runs lists it, and"
            " the table runs of the state folder has all its numbers"
        )
    return 0


def _runs(options: argparse.Namespace) -> int:
    job = configuration.load(options.config, options.set)
    from daybreak.ops import report, runlog, session

    spark = session.own(session.current("daybreak runs"), batch_rows=job.batch.window_rows)
    log = runlog.RunLog(spark, job.state_path())
    if not log.exists():
        _say(f"no runs yet in {log.at('runs')}")
        return 0
    try:
        rows, now = log.newest(options.last), datetime.now(UTC)
        dead = {row.run_id for row in rows if row.status == runlog.SCORING and not log.held(row, now)}
        table = report.runs_table(rows, dead=dead)
    except Exception as error:  # a column that is not there, a line that is no JSON
        logging.getLogger(__name__).debug("no run log", exc_info=True)
        raise ConfigError(
            f"{log.at('runs')} is no run log that this Daybreak reads: {type(error).__name__}: {root_cause(error)}",
            fix="check state and output.table in the job file; a newer Daybreak may have written it",
        ) from None
    _say(table)
    if dead:
        _say("\ndead: its driver was killed; the same daybreak score command resumes it, --fresh starts anew")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from daybreak.ops import doctor

    job = configuration.load(options.config, options.set) if options.config else None
    findings = doctor.examine(job)
    _say("\n".join(str(finding) for finding in findings))
    return 0 if all(finding.ok for finding in findings) else 2


def _schema(_: argparse.Namespace) -> int:
    _say(json.dumps(configuration.json_schema(), indent=2))
    return 0


def script() -> None:
    """Entry point of the console script."""
    sys.exit(main())


if __name__ == "__main__":
    script()
