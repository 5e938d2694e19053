"""One MLflow run per run: the pins as parameters, the counts and times as metrics, the job file as an artifact."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from daybreak.config import JobConfig
from daybreak.sink.staging import Receipt

log = logging.getLogger(__name__)

_TAG = "daybreak.run_id"
_NO_SUMS = ("began", "ended", "pid", "device_busy", "padding")  # moments, names and ratios


def summed(receipts: Iterable[Receipt]) -> dict[str, float]:
    """The receipts' numbers, added up over all shards: seconds by stage, rows and tokens."""
    totals: dict[str, float] = {}
    for receipt in receipts:
        for name, value in receipt.facts.items():
            if isinstance(value, int | float) and name not in _NO_SUMS:
                totals[name] = totals.get(name, 0) + value
    return totals


def padding(totals: Mapping[str, float]) -> float:
    """Share of the computed tokens that were padding, 0 to 1."""
    computed = totals.get("tokens_computed", 0)
    return 1 - totals.get("tokens_useful", 0) / computed if computed else 0.0


def log_run(config: JobConfig, run_id: str, *, params: Mapping[str, Any], metrics: Mapping[str, float]) -> str | None:
    """Log to MLflow and return the MLflow run's id. A second call for the same run writes to the same MLflow run.

    The scores are published by now, so a tracking server that cannot be reached is a warning and returns None.
    """
    try:
        return _log_run(config, run_id, params, metrics)
    except Exception as error:
        log.warning("run %s is not in MLflow: %s: %s", run_id, type(error).__name__, error)
        return None


def _log_run(config: JobConfig, run_id: str, params: Mapping[str, Any], metrics: Mapping[str, float]) -> str:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=config.mlflow.tracking_uri, registry_uri=config.mlflow.registry_uri)
    name = config.mlflow.experiment or f"daybreak/{config.name}"
    experiment = client.get_experiment_by_name(name)
    experiment_id = (
        experiment.experiment_id
        if experiment
        else client.create_experiment(name, artifact_location=_beside(config.mlflow.tracking_uri))
    )
    found = client.search_runs([experiment_id], f"tags.`{_TAG}` = '{run_id}'", max_results=1)
    run = found[0] if found else client.create_run(experiment_id, run_name=run_id, tags={_TAG: run_id})
    mlflow_run_id = str(run.info.run_id)
    now = int(time.time() * 1000)
    client.log_batch(  # one request, where one a number would be dozens
        mlflow_run_id,
        params=[Param(key, str(value)[:500]) for key, value in params.items()],
        metrics=[Metric(key, float(value), now, 0) for key, value in metrics.items()],
    )
    client.log_text(mlflow_run_id, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), "job.yaml")
    client.set_terminated(mlflow_run_id)
    return mlflow_run_id


def _beside(tracking_uri: str | None) -> str | None:
    """Where an SQLite registry's artifacts go: into its own folder, since MLflow's default is the working directory."""
    prefix = "sqlite:///"
    if not tracking_uri or not tracking_uri.startswith(prefix):
        return None
    return str(Path(tracking_uri.removeprefix(prefix)).absolute().parent / "mlartifacts")
