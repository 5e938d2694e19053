"""A real local Spark with Delta, one for all tests of a folder, and real models in a registry of their own."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import mlflow
import models
import pandas as pd
import pytest
from mlflow.models import ModelSignature
from pyspark.sql import DataFrame, SparkSession

cloudpickle.register_pickle_by_value(models)  # workers need not import this folder

# as in local.conf; and one thread to collect a small heap, where G1's took a tenth of the processor time
COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
REPO = Path(__file__).parents[2]
CONF = REPO / "conf" / "spark" / "local.conf"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session() as running:
        yield running


@contextmanager
def session() -> Iterator[SparkSession]:
    """conf/spark/local.conf, as spark-submit.sh reads it, with less of everything."""
    scratch = tempfile.mkdtemp(prefix="daybreak-tests-")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(REPO / "lib")  # the workers take this checkout's package, whichever one is installed
    builder = SparkSession.builder.appName("tests")
    for line in CONF.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            key, value = line.split(None, 1)
            builder = builder.config(key, value.strip())
    small = {
        "spark.master": "local[2,2]",
        "spark.driver.memory": "2g",
        "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
        "spark.jars.excludes": "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
        # compiling each of a hundred small queries costs more than running it
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.databricks.delta.writeChecksumFile.enabled": "false",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.local.dir": f"{scratch}/local",
        "spark.driver.extraJavaOptions": f"{COMPILER} -Dderby.system.home={scratch}",
    }
    for key, value in small.items():
        builder = builder.config(key, value)
    running = builder.getOrCreate()
    running.sparkContext.setLogLevel("ERROR")
    yield running
    running.stop()
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture
def save_model(tmp_path: Path) -> Callable[..., str]:
    """Save a PythonModel with a signature under a folder of the test, and return its path."""

    def save(model: Any, inputs: Any, outputs: Any, name: str = "model", **kwargs: Any) -> str:
        path = tmp_path / name
        signature = ModelSignature(inputs=inputs, outputs=outputs, **kwargs)
        mlflow.pyfunc.save_model(path=str(path), python_model=model, signature=signature, pip_requirements=[])
        return str(path)

    return save


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Callable[..., str]:
    """Write rows to a Delta (or Parquet) table under a folder of the test, and return its path."""

    def write(
        rows: DataFrame | pd.DataFrame | list[Any],
        schema: str | None = None,
        *,
        name: str = "input",
        format: str = "delta",
        mode: str = "errorifexists",
        files: int = 2,
    ) -> str:
        frame = rows if isinstance(rows, DataFrame) else spark.createDataFrame(rows, schema)
        frame.repartition(files).write.format(format).mode(mode).save(str(tmp_path / name))
        return str(tmp_path / name)

    return write


@pytest.fixture(scope="session")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """Put an empty MLflow database into a folder, and return its URI: a copy, since to make one takes MLflow dozens of
    migrations and most of a second."""
    empty = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{empty}").search_experiments()

    def copy(folder: Path) -> str:
        shutil.copy2(empty, folder / "mlflow.db")
        return f"sqlite:///{folder}/mlflow.db"

    return copy


@pytest.fixture
def job(tmp_path: Path, tracking: Callable[[Path], str]) -> Callable[..., dict[str, Any]]:
    """A job document; ``over`` is laid on it, section by section."""
    tracking_uri = tracking(tmp_path)

    def make(input_table: str, model_path: str, **over: Any) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": "test",
            "input": {"table": input_table, "key": ["id"]},
            "window": "w1",
            "model": {"uri": model_path, "precision": "fp32"},  # auto costs a run its own small job
            "shards": {"rows": 250},
            "output": {"table": str(tmp_path / "scores")},
            "mlflow": {"tracking_uri": tracking_uri},
        }
        for key, value in over.items():
            merged = {**document.get(key, {}), **value} if isinstance(value, dict) else value
            document[key] = merged
        return document

    return make
