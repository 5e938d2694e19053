"""Columns of numbers through a torch network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.pyfunc.model import PythonModel

from daybreak.score import device as devices

__all__ = ["TorchTabular", "log_torch_tabular"]

Array = np.ndarray[Any, Any]


class TorchTabular(PythonModel):
    """Columns of numbers in, one float32 column for each of the network's outputs; staged, and a plain pyfunc as well.

    A null is NaN by the time it is here, and becomes the column's value in ``fill``, or 0.

    Args:
        network: a torch module of [n, columns] to [n, outputs] (or [n]), float32. It is logged with the model.
        columns: the input columns, in the network's order.
        outputs: the output columns.
        fill: what stands for a missing value, by column.
    """

    by_rows = True  # each row costs the same
    tolerance: Mapping[str, float] = MappingProxyType({"cosine": 0.999, "difference": 0.02})

    def __init__(
        self,
        network: Any,
        columns: Sequence[str],
        *,
        outputs: Sequence[str] = ("prediction",),
        fill: Mapping[str, float] | None = None,
    ) -> None:
        self.network = network.eval()
        self.columns, self.outputs = list(columns), list(outputs)
        self.fill = np.array([(fill or {}).get(name, 0.0) for name in columns], dtype=np.float32)
        self.device: str | None = None
        self._dtype: Any = None

    def place(self, *, device: str | None = None, precision: str = "fp32") -> None:
        """As the protocol says; None chooses a GPU if there is one.

        Raises:
            ModelLoadError: the precision is unknown, or not for this device.
        """
        self.device = device or devices.choose()
        self._dtype = devices.dtype(precision, self.device)
        self.network = self.network.to(self.device, self._dtype)

    def size(self, rows: pd.DataFrame) -> Array:
        """One a row, int64[n]."""
        return np.ones(len(rows), dtype=np.int64)

    def preprocess(self, rows: pd.DataFrame) -> Any:
        """float32[n, columns], on its way to the device."""
        import torch

        if self.device is None:
            self.place()
        numbers = rows[self.columns].to_numpy(dtype=np.float32, na_value=np.nan)
        filled = np.where(np.isnan(numbers), self.fill, numbers)
        return devices.upload([torch.from_numpy(filled)], str(self.device))

    def forward(self, batch: Any) -> Any:
        """float32[n, outputs], a tensor; from a GPU on its way to the host."""
        import torch

        (numbers,) = batch()
        with torch.inference_mode():
            return devices.download(self.network(numbers.to(self._dtype)).float())

    def postprocess(self, output: Any) -> pd.DataFrame:
        """A column for each output."""
        return pd.DataFrame(output.numpy().reshape(len(output), len(self.outputs)), columns=self.outputs)

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """The same scores through plain ``mlflow.pyfunc``."""
        output = devices.on_host(self.forward(self.preprocess(model_input)))
        return self.postprocess(output).set_index(model_input.index)


def log_torch_tabular(
    model: TorchTabular,
    example: pd.DataFrame,
    *,
    name: str = "torch-tabular",
    registered_model_name: str | None = None,
) -> Any:
    """Log a ``TorchTabular`` with its signature (doubles in, floats out) and rows as its input example; returns
    MLflow's ModelInfo."""
    from importlib.metadata import version

    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, DataType, Schema

    return mlflow.pyfunc.log_model(
        name=name,
        python_model=model,
        signature=ModelSignature(
            inputs=Schema([ColSpec(DataType.double, column) for column in model.columns]),
            outputs=Schema([ColSpec(DataType.float, column) for column in model.outputs]),
        ),
        input_example=example[model.columns].astype("float64"),
        pip_requirements=[f"torch=={version('torch').split('+')[0]}"],
        registered_model_name=registered_model_name,
    )
