"""A model registry of one's own: MLflow in an SQLite file, its artifacts beside it. No server, no network."""

from __future__ import annotations

import logging
from pathlib import Path

import mlflow
from mlflow.exceptions import MlflowException

EXPERIMENT = "daybreak-demo"
CHAMPION = "champion"


def use(folder: Path) -> None:
    """Track and register in `folder`, which keeps its artifacts to itself."""
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)  # 60 lines on the making of an empty database
    mlflow.set_tracking_uri(f"sqlite:///{folder.absolute() / 'mlflow.db'}")
    if mlflow.get_experiment_by_name(EXPERIMENT) is None:
        mlflow.create_experiment(EXPERIMENT, artifact_location=(folder.absolute() / "mlartifacts").as_uri())
    mlflow.set_experiment(EXPERIMENT)


def champion(model: str) -> str | None:
    """The version that the alias stands for, or None."""
    try:
        return str(mlflow.MlflowClient().get_model_version_by_alias(model, CHAMPION).version)
    except MlflowException:
        return None


def crown(model: str, version: str | int) -> str:
    mlflow.MlflowClient().set_registered_model_alias(model, CHAMPION, str(version))
    return str(version)
