"""The churn model as MLflow stores it: this file and the fitted pipeline, no pickled class.

It answers in the words of the people who call the customers: a probability, and what to do about it.
"""

from __future__ import annotations

from typing import Any

import joblib
import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

RISKS = ("low", "medium", "high")
BOUNDS = (0.3, 0.6)  # medium and high start here


class ChurnModel(PythonModel):
    def load_context(self, context: Any) -> None:
        self.pipeline = joblib.load(context.artifacts["pipeline"])

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        """One row a customer: `churn_probability` from 0 to 1, and `risk`."""
        return answer(self.pipeline.predict_proba(model_input)[:, 1])


def answer(probability: Any) -> pd.DataFrame:
    return pd.DataFrame(
        {"churn_probability": probability, "risk": [RISKS[i] for i in np.digitize(probability, BOUNDS)]}
    )


set_model(ChurnModel())
