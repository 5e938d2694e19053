"""One run, top to bottom: pin, plan, score, audit, publish, log. Read :func:`score` first."""

from __future__ import annotations

import getpass
import json
import logging
import re
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from daybreak import config as configuration
from daybreak import errors, schema
from daybreak.config import JobConfig
from daybreak.errors import ConfigError, DaybreakError, GateError, ShardError
from daybreak.ops import progress, runlog, session, tracking
from daybreak.ops.report import Summary
from daybreak.ops.runlog import Holder, RunLog
from daybreak.score import model as models
from daybreak.score.signature import ModelSpec
from daybreak.score.worker import Scorer
from daybreak.sink import audit, dead_letters, publish
from daybreak.sink.audit import Counts
from daybreak.sink.staging import Receipt, Staging, Watch
from daybreak.source import freshness, preflight, selection, shards, snapshot
from daybreak.source.preflight import Binding
from daybreak.source.shards import Plan, Shard

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
    run = _open(_as_config(job), spark, fresh=fresh)
    with _closing(run), runlog.Heartbeat(run.log, run.run_id):
        with run.stage("score"):
            _score(run, show=show)
        return _finish(run)


def _finish(run: Run) -> Summary:
    with run.stage("audit"):
        receipts, counts = _audit(run)
    with run.stage("publish"):
        version = _publish(run, receipts)
    return _close(run, receipts, counts, version)


@dataclass
class Run:
    """One run: what it pinned, and how this invocation spends its time."""

    config: JobConfig
    spark: SparkSession
    log: RunLog
    run_id: str
    window: str
    started_at: datetime
    input: snapshot.Pin
    model: models.ModelPin
    spec: ModelSpec
    binding: Binding
    plan: Plan
    shards: list[Shard]
    held: dict[str, Any] = field(default_factory=dict)
    staged_before: frozenset[str] = frozenset()
    timing: dict[str, float] = field(default_factory=dict)

    @property
    def staging(self) -> Staging:
        return Staging(self.spark, self.config.state_path(), self.run_id)

    @property
    def target(self) -> publish.Target:
        return _target(self.config, self.binding, self.spec)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage of the run; the sum over repeats counts."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.timing[name] = round(self.timing.get(name, 0) + time.monotonic() - began, 3)


# -- open: resume what is unfinished, or pin and plan anew --------------------------------------------------------


def _open(config: JobConfig, spark: SparkSession | None, *, fresh: bool) -> Run:
    began, now = time.monotonic(), datetime.now(UTC)
    own = session.own(spark or session.current(f"daybreak {config.name}"), batch_rows=config.batch.window_rows)
    logbook = RunLog(own, config.state_path())
    unfinished = None
    if logbook.storage.exists("runs", "_delta_log"):
        logbook.refuse_if_held(config.name, now)
        unfinished = logbook.unfinished(config.name, config.digest(), since=now - config.resume_within)
    run = _new(config, own, logbook, now) if fresh or unfinished is None else _resumed(config, own, logbook, unfinished)
    run.timing = {"prepare": round(time.monotonic() - began - run.timing.get("plan", 0), 3), **run.timing}
    return run


def _new(config: JobConfig, spark: SparkSession, logbook: RunLog, now: datetime) -> Run:
    """Pin, check and plan a run, and write its row. Nothing is left behind by a refusal."""
    pinned = snapshot.pin(spark, config.input)
    freshness.check(pinned, config.input.freshness, now)
    model, spec = _resolve(config)
    rows = preflight.select(snapshot.read(spark, pinned), config.input)
    binding = preflight.bind(rows.schema, config.input, spec)
    publish.check(spark, _target(config, binding, spec))
    preflight.require_unique(rows, binding.keys)
    logbook.create()
    window = configuration.render_window(config.window, now)
    run_id = f"{now:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
    unplanned = Plan("key", 0, shards.split_bytes(spark), "")
    run = Run(config, spark, logbook, run_id, window, now, pinned, model, spec, binding, unplanned, [])
    with run.stage("plan"):
        run.plan, run.shards = _plan(run)
        run.staging.write_plan(run.shards)
        logbook.open(_row(run))
    log.info("run %s: %s", run.run_id, run.plan.reason)
    return run


def _resumed(config: JobConfig, spark: SparkSession, logbook: RunLog, row: Row) -> Run:
    """The unfinished run with its own pins, whatever table and alias say by now."""
    pins = json.loads(row.pins)
    model = models.ModelPin(**pins["model"])
    _, spec = models.resolve(model.resolved, tracking_uri=model.tracking_uri, registry_uri=model.registry_uri)
    pinned = snapshot.Pin.from_dict(pins["input"])
    binding = preflight.bind(preflight.select(snapshot.read(spark, pinned), config.input).schema, config.input, spec)
    started = row.started_at.astimezone(UTC)
    run = Run(
        *(config, spark, logbook, row.run_id, row.window, started),
        *(pinned, model, spec, binding, Plan(**pins["plan"]), []),
        held=pins["held"],
    )
    publish.check(spark, run.target)
    with run.stage("plan"):
        run.shards = [Shard(**shard) for shard in run.staging.read_plan()]
        run.staged_before = frozenset(receipt.attempt for receipt in run.staging.receipts())
        logbook.take_over(run.run_id, config.name)
    log.info(
        "run %s of %s is resumed with its pins: input version %s, model version %s; %d of %d shards are staged",
        *(run.run_id, started.isoformat(), pinned.version, model.version, len(run.staged_before), len(_to_score(run))),
    )
    return run


def _resolve(config: JobConfig) -> tuple[models.ModelPin, ModelSpec]:
    tracking_uri = config.mlflow.tracking_uri
    pin, spec = models.resolve(
        config.model.uri, tracking_uri=tracking_uri, registry_uri=config.mlflow.registry_uri or tracking_uri
    )
    unknown = sorted(set(config.model.params) - set(spec.params))
    if unknown:
        known = ", ".join(spec.params) or "none"
        raise ConfigError(f"model.params {unknown} are not in the model's signature; it knows: {known}")
    return pin, spec


def _target(config: JobConfig, binding: Binding, spec: ModelSpec) -> publish.Target:
    predictions = tuple(schema.Column(one.name, one.ddl, "predicted by the model") for one in spec.outputs)
    return publish.Target(config.output.table, binding.keys, predictions, config.output.mode == "history")


def _plan(run: Run) -> tuple[Plan, list[Shard]]:
    """Cut the pinned rows into shards, and count each from the input itself."""
    selective = run.config.select == "changed"
    if selective:
        run.held = _held(run)
    with shards.one_split_a_partition(run.spark, run.plan.split_bytes):
        marked = _marked(run)
        splits = shards.layout(marked)
        plan = shards.choose(splits, run.config.shards, split_bytes=run.plan.split_bytes, selective=selective)
        return plan, shards.cut(marked, plan, run.binding.keys, splits)


def _held(run: Run) -> dict[str, Any]:
    """Which scores still hold: those of this model and configuration, in the output as it is now. Pinned too."""
    if not run.target.exists(run.spark):
        return {}
    same = (F.col("config_digest") == run.config.digest()) & (F.col("model_version") == run.model.version)
    alike = run.log.runs().where(same & (F.col("model_name") == run.model.name) & F.col("output_version").isNotNull())
    newest = run.target.delta(run.spark).history(1).select("version").first()
    runs = sorted(row.run_id for row in alike.select("run_id").collect())
    return {"version": newest[0] if newest else 0, "runs": runs}


def _marked(run: Run) -> DataFrame:
    """The pinned rows with their file split, and whether they need a score."""
    rows = shards.with_split(snapshot.read(run.spark, run.input))
    chosen = preflight.select(rows, run.config.input)
    return selection.mark_scored(chosen, run.binding, _scores_that_hold(run))


def _scores_that_hold(run: Run) -> DataFrame | None:
    if not run.held:
        return None
    reader = run.spark.read.format("delta").option("versionAsOf", run.held["version"])
    by_path = configuration.is_path(run.target.table)
    table = reader.load(run.target.location) if by_path else reader.table(run.target.table)
    held = table.where(F.col("run_id").isin(run.held["runs"]))
    return held.where(F.col(schema.WINDOW.name) == run.window) if run.target.history else held


def _row(run: Run) -> dict[str, Any]:
    """The run's row before scoring."""
    pins = {"input": run.input.as_dict(), "model": asdict(run.model), "plan": asdict(run.plan), "held": run.held}
    return {
        "run_id": run.run_id,
        "job": run.config.name,
        "status": runlog.SCORING,
        "epoch": run.log.next_epoch(run.config.name),
        "holder": str(Holder.here()),
        "window": run.window,
        "config_digest": run.config.digest(),
        "input_table": run.input.table,
        "input_version": run.input.version,
        "model_uri": run.model.uri,
        "model_name": run.model.name,
        "model_version": run.model.version,
        "output_table": run.target.location,
        "started_at": run.started_at,
        "shards": len(_to_score(run)),
        "rows_in": sum(shard.rows for shard in run.shards),
        "rows_skipped": sum(shard.skipped for shard in run.shards),
        "pins": json.dumps(pins),
        "config": run.config.model_dump_json(),
    }


def _to_score(run: Run) -> list[Shard]:
    return [shard for shard in run.shards if shard.rows > shard.skipped]


# -- score, audit, publish ----------------------------------------------------------------------------------------


def _score(run: Run, *, show: bool) -> None:
    """Score the shards without a receipt, in one Spark job."""
    done = {receipt.shard_id for receipt in run.staging.receipts()} if run.staged_before else set()
    outstanding = [shard for shard in _to_score(run) if shard.shard_id not in done]
    if not outstanding:
        return
    with shards.one_split_a_partition(run.spark, run.plan.split_bytes), _display(run, done, show), _worker_errors():
        placed = shards.assign(_marked(run), run.plan, run.binding.keys, outstanding)
        wire = selection.on_the_wire(placed, run.binding)
        columns = schema.staging([key.type for key in run.binding.keys], [one.ddl for one in run.spec.outputs])
        run.staging.write(wire.mapInPandas(_scorer(run), schema.ddl(columns)))


def _scorer(run: Run) -> Scorer:
    config = run.config
    return Scorer(
        pin=run.model,
        spec=run.spec,
        features=tuple(feature.field for feature in run.binding.features),
        keys=len(run.binding.keys),
        tokens=None if config.batch.tokens == "auto" else config.batch.tokens,
        precision=config.model.precision,
        params=config.model.params,
        cache_dir=str(Path(tempfile.gettempdir()) / f"daybreak-models-{getpass.getuser()}"),
        redact=config.redact,
    )


def _display(run: Run, done: set[int], show: bool) -> Any:
    if not show:
        return nullcontext()
    shards_total = _to_score(run)
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
        last = [line for line in text.splitlines() if re.match(r"^[\w.]*(Error|Exception)\b", line)]
        raise ShardError(
            f"a shard failed every attempt, and the job was ended: {last[-1] if last else text.splitlines()[0]}",
            fix="the finished shards are staged; mend the cause and run the same command to go on from there",
        ) from error


def _audit(run: Run) -> tuple[list[Receipt], Counts]:
    """Hold the counts and the gates, and write what a person needs to see why they refuse."""
    receipts = run.staging.receipts()
    counts = audit.reconcile(run.shards, receipts, run.staging.counts(receipts) if receipts else {})
    if counts.rows_dead:
        letters = dead_letters.letters(
            _staged(run, receipts), run.binding.keys, run_id=run.run_id, job=run.config.name, window=run.window
        )
        dead_letters.write(letters, run.log.at("dead_letters"), run_id=run.run_id)
    run.log.add_shards(run.run_id, [_shard_row(run.run_id, receipt) for receipt in receipts])
    run.log.update(run.run_id, **asdict(counts), rows_forward=int(tracking.summed(receipts).get("rows_forward", 0)))
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
    run.log.still_held(run.run_id)
    origin = publish.Provenance(run.run_id, run.window, run.model.name, run.model.version, run.input.version)
    return publish.publish(run.spark, publish.scores(_staged(run, receipts), run.target, origin), run.target, origin)


# -- close --------------------------------------------------------------------------------------------------------


def _close(run: Run, receipts: Sequence[Receipt], counts: Counts, version: int | None) -> Summary:
    here = [receipt for receipt in receipts if receipt.attempt not in run.staged_before]
    summary = Summary(
        run_id=run.run_id,
        status=runlog.NOTHING if version is None else runlog.PUBLISHED,
        **asdict(counts),
        rows_forward=int(tracking.summed(here).get("rows_forward", 0)),
        shards=len(_to_score(run)),
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
    mlflow_run_id = tracking.log_run(run.config, run.run_id, params=_params(run), metrics=_metrics(summary, receipts))
    run.log.update(
        run.run_id,
        status=summary.status,
        ended_at=datetime.now(UTC),
        output_version=version,
        seconds=summary.seconds,
        timing=json.dumps(summary.timing),
        mlflow_run_id=mlflow_run_id,
    )
    return summary


def _params(run: Run) -> dict[str, Any]:
    row = _row(run)
    names = ("job", "window", "config_digest", "input_table", "input_version", "model_uri", "model_name")
    return {name: row[name] for name in (*names, "model_version", "output_table", "shards")}


def _metrics(summary: Summary, receipts: Sequence[Receipt]) -> dict[str, float]:
    totals = tracking.summed(receipts)
    scoring = summary.timing.get("score", 0)
    return {
        "rows_in": summary.rows_in,
        "rows_scored": summary.rows_scored,
        "rows_dead": summary.rows_dead,
        "rows_skipped": summary.rows_skipped,
        "rows_per_s": (summary.rows_forward / scoring) if scoring else 0.0,
        "padding": tracking.padding(totals),
        **{f"seconds_{name}": seconds for name, seconds in summary.timing.items()},
        **{f"shards_{name}": value for name, value in totals.items()},
    }


@contextmanager
def _closing(run: Run) -> Iterator[None]:
    """Say in the run log why a run ended early. A refused or failed run is resumed by the same command."""
    try:
        yield
    except errors.LeaseError:
        raise
    except Exception as error:
        status = runlog.REFUSED if isinstance(error, GateError) else runlog.FAILED
        try:
            run.log.update(run.run_id, status=status, error=str(error)[:4000], ended_at=datetime.now(UTC))
        except Exception:
            log.warning("run %s: the run log could not be written", run.run_id, exc_info=True)
        raise


def _as_config(job: JobConfig | dict[str, Any] | str | Path) -> JobConfig:
    if isinstance(job, JobConfig):
        return job
    return configuration.parse(job) if isinstance(job, dict) else configuration.load(job)


def republish(run_id: str, job: JobConfig, *, spark: SparkSession | None = None) -> Summary:
    """Publish what a run has staged, under the job's present gates. For a published run this changes nothing.

    Raises DaybreakError when there is no such run, and GateError when counts or gates refuse.
    """
    own = session.own(spark or session.current(f"daybreak {job.name}"), batch_rows=job.batch.window_rows)
    logbook = RunLog(own, job.state_path())
    row = logbook.find(run_id)
    logbook.refuse_if_held(row.job, datetime.now(UTC))
    as_it_ran = configuration.parse(json.loads(row.config)).model_copy(update={"gates": job.gates})
    run = _resumed(as_it_ran, own, logbook, row)
    with _closing(run), runlog.Heartbeat(run.log, run.run_id):
        return _finish(run)


