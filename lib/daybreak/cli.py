"""The command line: ``daybreak score | publish | runs | doctor | schema``. The exit codes are those of ``errors``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from daybreak import config as configuration
from daybreak.errors import DaybreakError, root_cause
from daybreak.ops.report import Summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. What a user did wrong ends with a message, not a stack trace."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if not options.verbose:
        for noisy in ("py4j", "mlflow", "alembic", "urllib3", "pyspark", "databricks"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        return int(options.command(options))
    except DaybreakError as error:
        print(f"daybreak: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:
        logging.getLogger(__name__).debug("unexpected", exc_info=True)
        hint = "" if options.verbose else "\n  --verbose shows the stack trace"
        print(f"daybreak: unexpected {type(error).__name__}: {root_cause(error)}{hint}", file=sys.stderr)
        return 1


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
    print(summary, flush=True)
    if options.json:
        print(summary.as_json(), flush=True)
    return 0


def _runs(options: argparse.Namespace) -> int:
    job = configuration.load(options.config, options.set)
    from daybreak.ops import report, runlog, session

    spark = session.own(session.current("daybreak runs"), batch_rows=job.batch.window_rows)
    log = runlog.RunLog(spark, job.state_path())
    if not log.exists():
        print(f"no runs yet in {log.at('runs')}")
        return 0
    rows, now = log.newest(options.last), datetime.now(UTC)
    dead = {row.run_id for row in rows if row.status == runlog.SCORING and not log.held(row, now)}
    print(report.runs_table(rows, dead=dead))
    if dead:
        print("\ndead: its driver was killed; the same daybreak score command resumes it, --fresh starts anew")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from daybreak.ops import doctor

    job = configuration.load(options.config, options.set) if options.config else None
    findings = doctor.examine(job)
    print("\n".join(str(finding) for finding in findings))
    return 0 if all(finding.ok for finding in findings) else 2


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(configuration.json_schema(), indent=2))
    return 0


def script() -> None:
    """Entry point of the console script."""
    sys.exit(main())


if __name__ == "__main__":
    script()
