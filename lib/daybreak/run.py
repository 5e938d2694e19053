"""One run, top to bottom: score, audit, publish, log. How a run begins is in :mod:`daybreak.launch`."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from daybreak import config as configuration
from daybreak import errors, schema
from daybreak.config import JobConfig
from daybreak.errors import ConfigError, DaybreakError, GateError, ShardError, WorkerEndedError
from daybreak.launch import Run, launch, marked, resume
from daybreak.ops import alerts, progress, retention, runlog, scaling, session, tracking
from daybreak.ops.report import Summary
from daybreak.ops.runlog import RunLog
from daybreak.score.artifacts import home
from daybreak.score.worker import Scorer
from daybreak.sink import audit, dead_letters, publish
from daybreak.sink.audit import Counts
from daybreak.sink.staging import Receipt, Staging, Watch
from daybreak.source import condition, selection, shards, snapshot

log = logging.getLogger(__name__)


def score(
    job: JobConfig | dict[str, Any] | str | Path,
    *,
    spark: SparkSession | None = None,
    fresh: bool = False,
    show: bool = True,
) -> Summary:
    """Score a job's table and publish the result: every row once, accounted for.

    An unfinished run of the same job and configuration is resumed with the versions that it pinned; only its shards
    without a receipt are scored. ``fresh`` starts a new run instead. ``show`` draws progress on stderr.

    Raises a :class:`daybreak.errors.DaybreakError`, whose class says what was wrong; nothing is visible then.
    """
    config = _as_config(job)
    with session.restored(), runlog.alone(config.state_path(), config.name):
        with _alerting(config):
            run = launch(config, spark, fresh=fresh)
        with _closing(run), runlog.Heartbeat(run.log, run.run_id):
            with run.stage("score"):
                _score(run, show=show)
            summary = _finish(run)
        _sweep(run)
        return summary


def _finish(run: Run) -> Summary:
    with run.stage("audit"):
        receipts, counts = _audit(run)
    with run.stage("publish"):
        version = _publish(run, receipts)
    return _close(run, receipts, counts, version)


# -- score, audit, publish ----------------------------------------------------------------------------------------


def _score(run: Run, *, show: bool) -> None:
    """Score the shards without a receipt, in one Spark job. Spark tries a shard that fails again, and then it is
    isolated; where Spark tries each task only once (``local[*]``), a second job does."""
    done = {receipt.shard_id for receipt in run.staged_before}
    try:
        _score_job(run, done, show=show)
    except WorkerEndedError as error:
        log.warning("run %s: %s; what is left is scored in processes of its own", run.run_id, error.problem)
        _score_job(run, {receipt.shard_id for receipt in run.staging.receipts()}, show=show, isolated=True)


def _score_job(run: Run, done: set[int], *, show: bool, isolated: bool = False) -> None:
    outstanding = [shard for shard in run.to_score if shard.shard_id not in done]
    if not outstanding:
        return
    with _worker_errors():
        _pin_precision(run)
    one_split = shards.one_split_a_partition(run.spark, run.plan.split_bytes)
    whole = condition.blamed(snapshot.read(run.spark, run.input), run.config.input)
    with one_split, run.compiled(), _display(run, done, show), _worker_errors(), whole:
        placed = shards.assign(marked(run), run.plan, run.binding.keys, outstanding)
        wire = selection.on_the_wire(placed, run.binding)
        columns = schema.staging([key.type for key in run.binding.keys], [one.ddl for one in run.spec.outputs])
        scorer, profile = _scorer(run, isolated=isolated), scaling.profile(run.spark)
        run.staging.write(wire.mapInPandas(scorer, schema.ddl(columns), profile=profile))


def _pin_precision(run: Run) -> None:
    """Settle what ``auto`` means, once a run: one worker tries it, and each receipt tells it to a resume
    (docs/decisions/0005)."""
    if run.precision["precision"] != "auto":
        return
    decide, profile = _scorer(run, isolated=False).decide, scaling.profile(run.spark)
    # not first(): it would end the worker before its time, with the model that this has loaded
    [answer] = run.spark.range(1).coalesce(1).mapInPandas(decide, "choice STRING", profile=profile).collect()
    run.precision = json.loads(answer.choice)
    log.info("run %s: precision %s: %s", run.run_id, run.precision["precision"], run.precision["reason"])


def _scorer(run: Run, *, isolated: bool) -> Scorer:
    config = run.config
    return Scorer(
        pin=run.model,
        spec=run.spec,
        features=tuple(feature.field for feature in run.binding.features),
        keys=len(run.binding.keys),
        tokens=None if config.batch.tokens == "auto" else config.batch.tokens,
        precision=run.precision["precision"],
        params=config.model.params,
        cache_dir=str(home()),
        redact=config.redact,
        window_rows=config.batch.window_rows,
        gpu_share=scaling.gpu_share(run.spark),
        row_timeout=config.batch.row_timeout.total_seconds() if config.batch.row_timeout else None,
        isolated=isolated,
        max_failures=int(run.spark.sparkContext.getConf().get("spark.task.maxFailures", "4") or 4),
    )


def _display(run: Run, done: set[int], show: bool) -> Any:
    if not show:
        return nullcontext()
    shards_total = run.to_score
    rows_done = sum(shard.rows - shard.skipped for shard in shards_total if shard.shard_id in done)
    watch, began = Watch(run.staging), time.monotonic()

    def poll() -> progress.Progress:
        seen = watch.poll()
        return progress.Progress(
            rows=rows_done + seen["rows_in"],
            rows_total=sum(shard.rows - shard.skipped for shard in shards_total),
            shards=len(done) + seen["shards"],
            shards_total=len(shards_total),
            rows_here=seen["rows_in"],
            seconds=time.monotonic() - began,
        )

    return progress.Display(poll)


@contextmanager
def _worker_errors() -> Iterator[None]:
    """Turn what Spark says of a failed task into what a person can act on."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        found = re.findall(r"daybreak\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\tat |\Z)", text, re.DOTALL)
        if found and issubclass(kind := getattr(errors, found[-1][0], DaybreakError), DaybreakError):
            raise kind(found[-1][1].strip()) from error
        if "Python worker exited unexpectedly" in text:
            raise WorkerEndedError(
                "a shard ended its Python worker at every attempt, and the job was ended",
                fix="the finished shards are staged; the executors' log says what ended it (memory, as a rule)",
            ) from error
        raise ShardError(
            f"a shard failed every attempt, and the job was ended: {errors.root_cause(error)}",
            fix="the finished shards are staged; mend the cause and run the same command to go on from there",
        ) from error


def _audit(run: Run) -> tuple[list[Receipt], Counts]:
    """Hold the counts and the gates, and write what a person needs to see why they refuse."""
    with run.compiled():
        receipts = run.staging.receipts()
        counts = audit.reconcile(run.shards, receipts, run.staging.counts(receipts) if receipts else {})
        if counts.rows_dead:
            letters = dead_letters.letters(
                _staged(run, receipts),
                run.binding.keys,
                run_id=run.run_id,
                job=run.config.name,
                window=run.window,
                redact=run.config.redact,
            )
            dead_letters.write(letters, run.log.at("dead_letters"), run_id=run.run_id)
            if run.config.redact and run.staged_before:
                dead_letters.redact(run.spark, run.log.at("dead_letters"), run_id=run.run_id)
    run.log.add_shards(run.run_id, [_shard_row(run.run_id, receipt) for receipt in receipts])
    run.counts = counts
    audit.hold_gates(counts, run.config.gates)
    return receipts, counts


def _staged(run: Run, receipts: Sequence[Receipt]) -> DataFrame:
    key_types = [key.type for key in run.binding.keys]
    return run.staging.rows(receipts, key_types, [one.ddl for one in run.spec.outputs])


def _shard_row(run_id: str, receipt: Receipt) -> tuple[Any, ...]:
    counts = (receipt.rows_in, receipt.rows_scored, receipt.rows_dead)
    return (run_id, receipt.shard_id, receipt.attempt, *counts, json.dumps(receipt.facts))


def _publish(run: Run, receipts: Sequence[Receipt]) -> int | None:
    """Publish the staged rows, unless there are none. A driver that lost its lease meanwhile may not."""
    if not receipts:
        return None
    origin = publish.Provenance(run.run_id, run.window, run.model.name, run.model.version, run.input.version)
    scores = publish.scores(_staged(run, receipts), run.target, origin)

    def allowed() -> None:
        run.log.still_held(run.run_id, run.config.name)

    of_the_window = run.target.history  # else the MERGE looks through the whole output
    with run.compiled() if of_the_window else session.compiled(run.spark):
        return publish.publish(run.spark, scores, run.target, origin, allowed=allowed)


# -- close --------------------------------------------------------------------------------------------------------


def _close(run: Run, receipts: Sequence[Receipt], counts: Counts, version: int | None) -> Summary:
    before = {receipt.attempt for receipt in run.staged_before}
    here = [receipt for receipt in receipts if receipt.attempt not in before]
    summary = Summary(
        run_id=run.run_id,
        status=runlog.NOTHING if version is None else runlog.PUBLISHED,
        **asdict(counts),
        rows_forward=int(tracking.summed(here).get("rows_forward", 0)),
        shards=len(run.to_score),
        shards_resumed=len(receipts) - len(here),
        seconds=round(sum(run.timing.values()), 3),
        input_version=run.input.version,
        model_version=run.model.version,
        output_version=version,
        job=run.config.name,
        window=run.window,
        model=run.model.resolved,
        output=run.target.location,
        dead_letters=f"{run.log.at('dead_letters')}, run_id {run.run_id}",
        timing=dict(run.timing),
    )
    mlflow_run_id = tracking.log_run(
        run.config, run.run_id, params=run.pinned, metrics=_metrics(run, summary, receipts)
    )
    run.log.conclude(
        run.run_id,
        status=summary.status,
        ended_at=datetime.now(UTC),
        output_version=version,
        seconds=summary.seconds,
        timing=json.dumps(summary.timing),
        pins=run.pins(),
        mlflow_run_id=mlflow_run_id,
        rows_forward=int(tracking.summed(receipts).get("rows_forward", 0)),
        **asdict(counts),
    )
    return summary


def _metrics(run: Run, summary: Summary, receipts: Sequence[Receipt]) -> dict[str, float]:
    totals = tracking.summed(receipts)
    scoring = summary.timing.get("score", 0)
    return {
        "rows_in": summary.rows_in,
        "rows_scored": summary.rows_scored,
        "rows_dead": summary.rows_dead,
        "rows_skipped": summary.rows_skipped,
        "rows_per_s": (summary.rows_forward / scoring) if scoring else 0.0,
        "padding": tracking.padding(totals),
        **{f"precision_{name}": run.precision[name] for name in ("cosine", "difference") if run.precision.get(name)},
        **{f"seconds_{name}": seconds for name, seconds in summary.timing.items()},
        **{f"shards_{name}": value for name, value in totals.items()},
    }


def _sweep(run: Run) -> None:
    kept = {"retention": run.config.retention, "resume_within": run.config.resume_within}
    retention.sweep(run.log, run.config.name, now=datetime.now(UTC), **kept)


@contextmanager
def _closing(run: Run) -> Iterator[None]:
    """Say in the run log why a run ended early. A refused or failed run is resumed by the same command."""
    try:
        yield
    except errors.LeaseError:
        raise
    except Exception as error:
        status = runlog.REFUSED if isinstance(error, GateError) else runlog.FAILED
        told = errors.text(error, most=4000)
        _conclude(run, status, told)
        if unsent := _alert(run.config, status, error, run_id=run.run_id, window=run.window):
            _conclude(run, status, f"{told}\n  the alert was not delivered: {unsent}")
        raise


def _conclude(run: Run, status: str, told: str) -> None:
    try:
        counts = asdict(run.counts) if run.counts else {}
        run.log.conclude(run.run_id, status=status, error=told, ended_at=datetime.now(UTC), **counts)
    except Exception as error:
        log.warning("run %s: the run log could not be written: %s", run.run_id, errors.root_cause(error))


@contextmanager
def _alerting(config: JobConfig) -> Iterator[None]:
    """Alert when a run does not even begin. That another run of the job is alive is no alarm."""
    try:
        yield
    except errors.LeaseError:
        raise
    except Exception as error:
        _alert(config, "not started", error)
        raise


def _alert(
    config: JobConfig, status: str, error: Exception, *, run_id: str | None = None, window: str | None = None
) -> str | None:
    told = f"{type(error).__name__}; the run log says more" if config.redact else errors.text(error, most=2000)
    exit_code, at = getattr(error, "exit_code", 1), datetime.now(UTC).isoformat()
    alert = alerts.Alert(config.name, run_id, window, status, exit_code, told, at)
    return alerts.send(config.alerts, alert)


def _as_config(job: JobConfig | dict[str, Any] | str | Path) -> JobConfig:
    if isinstance(job, JobConfig):
        return job
    return configuration.parse(job) if isinstance(job, dict) else configuration.load(job)


def republish(run_id: str, job: JobConfig, *, spark: SparkSession | None = None) -> Summary:
    """Publish what a run has staged, under the job's present gates. For a published run this changes nothing.

    Raises DaybreakError when there is no such run, and GateError when counts or gates refuse.
    """
    with session.restored(), runlog.alone(job.state_path(), job.name):
        return _republish(run_id, job, spark)


def _republish(run_id: str, job: JobConfig, spark: SparkSession | None) -> Summary:
    own = session.own(spark or session.current(f"daybreak {job.name}"), batch_rows=job.batch.window_rows)
    logbook = RunLog(own, job.state_path())
    row = logbook.find(run_id)
    if row.job != job.name:
        raise ConfigError(f"run {run_id} is one of job {row.job!r}, and the job file is {job.name!r}'s: give its own")
    if row.status in (runlog.PUBLISHED, runlog.NOTHING):
        return _as_logged(row, logbook)
    runs = logbook.of_job(row.job)
    _refuse_older(row, runs)
    logbook.refuse_if_held(runs, datetime.now(UTC))
    ran = configuration.parse(json.loads(row.config))
    present = {"gates": job.gates, "alerts": job.alerts, "state": job.state_path(), "redact": ran.redact or job.redact}
    as_it_ran = ran.model_copy(update=present)
    if configuration.absolute(as_it_ran.output.table) != row.output_table:
        raise ConfigError(
            f"run {run_id} is for {row.output_table}, and output.table {as_it_ran.output.table!r} means"
            f" {configuration.absolute(as_it_ran.output.table)} from here",
            fix="run the command from the folder that the run was started in",
        )
    _refuse_half(row, runs, Staging(own, job.state_path(), run_id))
    run = resume(as_it_ran, own, logbook, row, epoch=runlog.next_epoch(runs))
    with _closing(run), runlog.Heartbeat(run.log, run.run_id):
        return _finish(run)


def _refuse_older(row: Row, runs: Sequence[Row]) -> None:
    """Raises DaybreakError where publishing a run would put its scores over those of one that began later."""
    history = json.loads(row.config)["output"]["mode"] == "history"
    over = [
        one.run_id
        for one in runs
        if one.status == runlog.PUBLISHED
        and one.started_at > row.started_at
        and one.output_table == row.output_table
        and (not history or one.window == row.window)
    ]
    if over:
        raise DaybreakError(
            f"run {row.run_id} is older than {over[0]}, whose scores it would replace in {row.output_table}",
            fix="nothing was changed; to score the table anew, run the job",
        )


def _refuse_half(row: Row, runs: Sequence[Row], staging: Staging) -> None:
    """Raises GateError where a run has shards that are not staged. Nothing is written then: it can go on as before."""
    done = {receipt.shard_id for receipt in staging.receipts()}
    to_score = [shard for shard in staging.read_plan() if shard["rows"] > shard["skipped"]]
    if missing := [shard for shard in to_score if shard["shard_id"] not in done]:
        resumed, rows = row.run_id == runs[0].run_id, sum(shard["rows"] - shard["skipped"] for shard in missing)
        raise GateError(
            f"run {row.run_id} is not scored to its end: {len(missing)} of {len(to_score)} shards ({rows} rows) are not"
            f" staged; it stays {row.status}",
            fix="run daybreak score with its job file: it goes on with this run and publishes it, within resume_within"
            if resumed
            else f"run {runs[0].run_id} began later, so this one is not resumed; run daybreak score to score the table",
        )


_AS_THEY_ARE = {one.name for one in fields(Summary)} & {column.name for column in schema.RUNS} - {"timing"}


def _as_logged(row: Row, logbook: RunLog) -> Summary:
    """The summary of a run that is over, from its row."""
    logged = {name: value for name, value in row.asDict().items() if name in _AS_THEY_ARE}
    return Summary(
        **{**logged, "rows_forward": 0, "shards_resumed": row.shards, "seconds": 0.0},
        model=row.model_name,
        output=row.output_table,
        dead_letters=f"{logbook.at('dead_letters')}, run_id {row.run_id}",
    )
