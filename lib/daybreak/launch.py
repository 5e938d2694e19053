"""Begin a run or resume one: pin the input and the model, check that they fit, cut the shards, take the lease."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from daybreak import config as configuration
from daybreak import schema
from daybreak.config import JobConfig
from daybreak.ops import runlog, scaling, session
from daybreak.ops.runlog import Holder, RunLog
from daybreak.score import params, registry
from daybreak.score.signature import ModelSpec
from daybreak.sink import publish
from daybreak.sink.audit import Counts
from daybreak.sink.staging import Receipt, Staging
from daybreak.source import condition, freshness, preflight, selection, shards, snapshot
from daybreak.source.preflight import Binding
from daybreak.source.shards import Plan, Shard

log = logging.getLogger(__name__)


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
    model: registry.ModelPin
    spec: ModelSpec
    binding: Binding
    plan: Plan
    shards: list[Shard]
    precision: dict[str, Any]
    held: dict[str, Any] = field(default_factory=dict)
    staged_before: tuple[Receipt, ...] = ()
    timing: dict[str, float] = field(default_factory=dict)
    counts: Counts | None = None

    @cached_property
    def staging(self) -> Staging:
        return Staging(self.spark, self.config.state_path(), self.run_id)

    @property
    def target(self) -> publish.Target:
        return _target(self.config, self.binding, self.spec)

    @property
    def to_score(self) -> list[Shard]:
        return [shard for shard in self.shards if shard.rows > shard.skipped]

    def compiled(self) -> AbstractContextManager[None]:
        """For the queries over the rows of the run."""
        return session.compiled(self.spark, rows=sum(shard.rows for shard in self.shards))

    @property
    def pinned(self) -> dict[str, Any]:
        """What the run scores, by which version, and where it goes: for the run log and for MLflow."""
        return {
            "job": self.config.name,
            "window": self.window,
            "config_digest": self.config.digest(),
            "input_table": self.input.table,
            "input_version": self.input.version,
            "model_uri": self.model.uri,
            "model_name": self.model.name,
            "model_version": self.model.version,
            "output_table": self.target.location,
            "precision": self.precision["precision"],
            "shards": len(self.to_score),
        }

    def pins(self) -> str:
        """All that a resume needs, as JSON."""
        kept = {"input": self.input.as_dict(), "model": asdict(self.model), "plan": asdict(self.plan)}
        return json.dumps({**kept, "held": self.held, "precision": self.precision})

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage of the run; the sum over repeats counts."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.timing[name] = round(self.timing.get(name, 0) + time.monotonic() - began, 3)


def launch(config: JobConfig, spark: SparkSession | None, *, fresh: bool) -> Run:
    """Resume the job's unfinished run, or pin and plan a new one. Raises DaybreakError when something does not fit."""
    began, now = time.monotonic(), datetime.now(UTC)
    with ThreadPoolExecutor(1) as pool:
        resolving = pool.submit(_resolve, config)  # imports MLflow while the JVM starts
        own = session.own(spark or session.current(f"daybreak {config.name}"), batch_rows=config.batch.window_rows)
        log.info("scoring: %s", scaling.request(own).reason)
        logbook = RunLog(own, config.state_path())
        runs = logbook.of_job(config.name)
        logbook.refuse_if_held(runs, now)
        unfinished = runlog.unfinished(
            runs, lambda row: _same_run(config, row, resolving), since=now - config.resume_within
        )
        if unfinished is not None and not fresh and not _outdated(config, own, unfinished, resolving, now):
            run = resume(config, own, logbook, unfinished, epoch=runlog.next_epoch(runs))
        else:
            run = _new(config, own, logbook, now, resolving=resolving, runs=runs)
    run.timing = {"prepare": round(time.monotonic() - began - run.timing.get("plan", 0), 3), **run.timing}
    return run


def _same_run(config: JobConfig, row: Row, resolving: Future[tuple[registry.ModelPin, ModelSpec]]) -> bool:
    """Whether an unfinished run scores what the job does by now, whichever Daybreak began it. How a run is executed may
    differ. A model of another name must be the pinned one by its content; under the old name the pinned one counts."""
    pins = json.loads(row.pins)
    document = json.loads(row.config)
    if _scoring(config.identity()) != _scoring(_identity(document, pins["input"]["location"], row.output_table)):
        return False
    if config.select != document.get("select", "all"):
        return False
    if config.model.uri == document["model"]["uri"]:
        return True
    model, _ = resolving.result()
    return bool(model.digest == pins["model"]["digest"])


def _identity(document: dict[str, Any], location: str, output_table: str) -> dict[str, Any]:
    """As ``config.identity``, of a job in the run log. A relative path there is one of the folder where it was run."""
    named = document["input"]["table"]
    where = location if configuration.is_path(named) else named
    return configuration.identity(document, input_table=where, output_table=output_table)


def _scoring(identity: dict[str, Any]) -> dict[str, Any]:
    """What decides a row's score, beside the model, which is told by its content, and not by its name."""
    model = {name: value for name, value in identity["model"].items() if name != "uri"}
    return {**identity, "model": model, "select": None}


def _outdated(
    config: JobConfig,
    spark: SparkSession,
    row: Row,
    resolving: Future[tuple[registry.ModelPin, ModelSpec]],
    now: datetime,
) -> bool:
    """Whether a refused run is past mending by a gate: the input, the model or the window has moved on."""
    if row.status != runlog.REFUSED:
        return False
    model, _ = resolving.result()
    newest = (snapshot.pin(spark, config.input).version, model.version, model.digest)
    moved = newest != (row.input_version, row.model_version, json.loads(row.pins)["model"]["digest"])
    if moved or configuration.render_window(config.window, now) != row.window:
        log.info("run %s was refused, and there is a newer input, model or window: a new run starts", row.run_id)
        return True
    return False


def _new(
    config: JobConfig,
    spark: SparkSession,
    logbook: RunLog,
    now: datetime,
    *,
    resolving: Future[tuple[registry.ModelPin, ModelSpec]],
    runs: Sequence[Row],
) -> Run:
    """Pin, check and plan a run, and write its row. Nothing is left behind by a refusal."""
    pinned = snapshot.pin(spark, config.input)
    freshness.check(pinned, config.input.freshness, now)
    model, spec = resolving.result()
    table = snapshot.read(spark, pinned)
    rows = condition.select(table, config.input)
    binding = preflight.bind(rows.schema, config.input, spec)
    window = configuration.render_window(config.window, now)
    publish.check(spark, _target(config, binding, spec), rows=rows, known=_known(window, model, pinned))
    with session.compiled(spark), condition.blamed(table, config.input):
        preflight.require_unique(rows, binding.keys)
    logbook.create()
    run_id = runlog.name(now)
    unplanned = Plan("key", 0, shards.split_bytes(spark), "")
    run = Run(
        *(config, spark, logbook, run_id, window, now),
        *(pinned, model, spec, binding, unplanned, []),
        precision=_precision(config, model, runs),
    )
    with run.stage("plan"):
        run.plan, run.shards = _plan(run)
        logbook.beat(run.run_id)  # before there is anything of the run: its row comes last
        run.staging.write_plan(run.shards)
        logbook.open({**_row(run), "epoch": runlog.next_epoch(runs)})
    log.info("run %s: %s", run.run_id, run.plan.reason)
    return run


def resume(config: JobConfig, spark: SparkSession, logbook: RunLog, row: Row, *, epoch: int) -> Run:
    """The unfinished run with its own pins, whatever table and alias say by now."""
    pins = json.loads(row.pins)
    model = registry.ModelPin(**pins["model"])
    now, spec = registry.resolve(model.resolved, tracking_uri=model.tracking_uri, registry_uri=model.registry_uri)
    model.require(now.digest)
    pinned = snapshot.Pin.from_dict(pins["input"])
    snapshot.verify(spark, pinned)
    rows = condition.select(snapshot.read(spark, pinned), config.input)
    binding = preflight.bind(rows.schema, config.input, spec)
    started = row.started_at.astimezone(UTC)
    run = Run(
        *(config, spark, logbook, row.run_id, row.window, started),
        *(pinned, model, spec, binding, Plan(**pins["plan"]), []),
        held=pins["held"],
        precision=pins.get("precision", {"precision": "fp32"}),
    )
    publish.check(spark, run.target, rows=rows, known=_known(run.window, model, pinned))
    with run.stage("plan"):
        run.shards = [Shard(**shard) for shard in run.staging.read_plan()]
        with run.compiled():
            run.staged_before = tuple(run.staging.receipts())
        run.precision = _settled(run.precision, run.staged_before)
        logbook.create()  # a newer Daybreak's columns
        logbook.take_over(row, epoch=epoch)
    log.info(
        "run %s of %s is resumed with its pins: input version %s, model version %s; %d of %d shards are staged",
        *(run.run_id, started.isoformat(), pinned.version, model.version, len(run.staged_before), len(run.to_score)),
    )
    return run


def _resolve(config: JobConfig) -> tuple[registry.ModelPin, ModelSpec]:
    tracking_uri = config.mlflow.tracking_uri
    pin, spec = registry.resolve(
        config.model.uri, tracking_uri=tracking_uri, registry_uri=config.mlflow.registry_uri or tracking_uri
    )
    params.complete(spec, config.model.params)
    return pin, spec


def _precision(config: JobConfig, model: registry.ModelPin, runs: Sequence[Row]) -> dict[str, Any]:
    """What the job says, or what ``auto`` came to in an earlier run of the same model and configuration, so that its
    scores and this run's are alike; else still ``auto``."""
    if config.model.precision == "auto":
        for row in runs:
            pins = json.loads(row.pins)
            before = _identity(json.loads(row.config), pins["input"]["location"], row.output_table)
            same = _scoring(before) == _scoring(config.identity()) and pins["model"]["digest"] == model.digest
            if same and "precision" in pins:
                return dict(pins["precision"])
    return {"precision": config.model.precision, "reason": "the job file says so"}


def _settled(precision: dict[str, Any], receipts: Sequence[Receipt]) -> dict[str, Any]:
    """The rest of a run is scored as its staged shards were, whatever a worker of today would choose."""
    if precision["precision"] != "auto" or not receipts:
        return precision
    return {"precision": receipts[0].facts["precision"], "reason": "the staged shards were scored in it"}


def _target(config: JobConfig, binding: Binding, spec: ModelSpec) -> publish.Target:
    predictions = tuple(schema.Column(one.name, one.ddl, "predicted by the model") for one in spec.outputs)
    return publish.Target(config.output.table, binding.keys, predictions, config.output.mode == "history")


def _known(window: str, model: registry.ModelPin, pinned: snapshot.Pin) -> dict[str, str]:
    """What all rows of a run will have in the output."""
    return {
        schema.WINDOW.name: window,
        "model_name": model.name,
        "model_version": model.version,
        "input_version": pinned.version,
    }


def _plan(run: Run) -> tuple[Plan, list[Shard]]:
    """Cut the pinned rows into shards, and count each from the input itself."""
    selective = run.config.select == "changed"
    if selective:
        run.held = _held(run)
    whole = condition.blamed(snapshot.read(run.spark, run.input), run.config.input)
    with whole, shards.one_split_a_partition(run.spark, run.plan.split_bytes), session.compiled(run.spark):
        rows = marked(run)
        splits = shards.layout(rows, run.binding.features)
        plan = shards.choose(splits, run.config.shards, split_bytes=run.plan.split_bytes, selective=selective)
        return plan, shards.cut(rows, plan, run.binding, splits)


def _held(run: Run) -> dict[str, Any]:
    """Which scores still hold: those of this model and configuration, in the output as it is now. Pinned too.

    The model is told by its digest: a name that was registered anew counts its versions from one.
    """
    if not run.target.exists(run.spark):
        return {}
    published = run.log.runs().where((F.col("job") == run.config.name) & F.col("output_version").isNotNull())
    newest = run.target.delta(run.spark).history(1).select("version").first()
    location, digest = (F.get_json_object("pins", path) for path in ("$.input.location", "$.model.digest"))
    alike = published.where(digest == run.model.digest)
    told = alike.select("run_id", "config", "output_table", location.alias("location")).collect()
    wanted = _scoring(run.config.identity())
    found = ((row.run_id, _identity(json.loads(row.config), row.location, row.output_table)) for row in told)
    runs = sorted(run_id for run_id, before in found if _scoring(before) == wanted)
    return {"version": newest[0] if newest else 0, "runs": runs}


def marked(run: Run) -> DataFrame:
    """The pinned rows with their file split, and whether they need a score."""
    rows = shards.with_split(snapshot.read(run.spark, run.input))
    chosen = condition.select(rows, run.config.input)
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
    return {
        "run_id": run.run_id,
        **run.pinned,
        "status": runlog.SCORING,
        "holder": str(Holder.here()),
        "started_at": run.started_at,
        "rows_in": sum(shard.rows for shard in run.shards),
        "rows_skipped": sum(shard.skipped for shard in run.shards),
        "pins": run.pins(),
        "config": run.config.model_dump_json(),
    }
