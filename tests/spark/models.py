"""Small deterministic models, saved by value: what they compute can be checked in the head."""

from __future__ import annotations

from typing import Any

import mlflow
from mlflow.types import ColSpec, DataType, Schema

DOUBLE_IN = Schema([ColSpec(DataType.double, "x")])
DOUBLE_OUT = Schema([ColSpec(DataType.double, "y")])


class Double(mlflow.pyfunc.PythonModel):
    """y = 2 x; raises on a batch that holds a poisoned x."""

    def __init__(self, poison: tuple[float, ...] = ()) -> None:
        self.poison = poison

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        bad = [x for x in model_input["x"] if x in self.poison]
        if bad:
            raise ValueError(f"cannot score {bad[0]}")
        return (model_input[["x"]] * 2).rename(columns={"x": "y"})
