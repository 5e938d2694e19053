from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel
from mlflow.types.schema import ColSpec, DataType, Schema


@pytest.fixture(scope="session", autouse=True)
def _tracking_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """MLflow makes its default database in the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path_factory.mktemp('tracking')}/mlflow.db")
        yield


@pytest.fixture(scope="session")
def double_signature() -> ModelSignature:
    return ModelSignature(inputs=Schema([ColSpec(DataType.long, "x")]), outputs=Schema([ColSpec(DataType.long)]))


@pytest.fixture(scope="session")
def double() -> PythonModel:
    """A model that doubles x. Its class is local, so that it is pickled by value and loads in any process."""

    class Double(PythonModel):
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return model_input["x"] * 2

    return Double()


@pytest.fixture(scope="session")
def saved(double: PythonModel, double_signature: ModelSignature, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the saved model ``double``. Copy it to change it."""
    path = tmp_path_factory.mktemp("saved") / "model"
    mlflow.pyfunc.save_model(str(path), python_model=double, signature=double_signature, pip_requirements=[])
    return path
