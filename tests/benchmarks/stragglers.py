"""One block of very long documents in a table, cut by its files and cut by cost: how long scoring takes either way.

    python tests/benchmarks/stragglers.py [--slots 4]

The model only sleeps, for as long as its texts are long, so that the slots may be more than the cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cloudpickle
import mlflow
import pandas as pd
import session
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from pyspark.sql import functions as F

from daybreak import score

FILES, ROWS = 12, 100  # and rows of a file; the last file holds the block
SHORT, LONG = 200, 8000  # bytes of a text
BYTES_PER_SECOND = 40_000


class Reads(mlflow.pyfunc.PythonModel):
    """Takes a second for 40,000 bytes."""

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        length = model_input["text"].str.len()
        time.sleep(int(length.sum()) / BYTES_PER_SECOND)
        return length.astype("int64").rename("length").to_frame()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests/benchmarks/stragglers.py")
    parser.add_argument("--slots", type=int, default=4)
    slots = parser.parse_args().slots
    with tempfile.TemporaryDirectory(prefix="daybreak-stragglers-") as name:
        folder = Path(name)
        spark = session.spark({"spark.master": f"local[{slots},4]"})
        write(spark, folder)
        save(folder)
        score(job(folder, "warm-up", "key"), spark=spark, show=False)
        work = ROWS * (SHORT * (FILES - 1) + LONG) / BYTES_PER_SECOND
        print(f"{work:.0f} s of work for {slots} slots: {work / slots:.1f} s at best")
        for by in ("files", "auto"):
            told = score(job(folder, f"cut-{by}", by), spark=spark, show=False)
            print(f"shards.by {by}: {told.shards} shards scored in {told.timing['score']:.1f} s", flush=True)


def write(spark: Any, folder: Path) -> None:
    for file in range(FILES):
        text = F.repeat(F.lit("x"), LONG if file == FILES - 1 else SHORT).alias("text")
        rows = spark.range(file * ROWS, (file + 1) * ROWS, 1, 1).select("id", text)
        rows.write.format("delta").mode("append").save(str(folder / "input"))


def save(folder: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    inputs, outputs = Schema([ColSpec(DataType.string, "text")]), Schema([ColSpec(DataType.long, "length")])
    signature = ModelSignature(inputs=inputs, outputs=outputs)
    mlflow.pyfunc.save_model(str(folder / "model"), python_model=Reads(), signature=signature, pip_requirements=[])


def job(folder: Path, name: str, by: str) -> dict[str, Any]:
    return {
        "name": name,
        "input": {"table": str(folder / "input"), "key": ["id"], "where": "id < 100" if name == "warm-up" else None},
        "model": {"uri": str(folder / "model"), "precision": "fp32"},
        "batch": {"tokens": 20},
        "shards": {"rows": ROWS, "by": by},
        "output": {"table": str(folder / f"scores-{name}")},
        "mlflow": {"tracking_uri": f"sqlite:///{folder}/mlflow.db"},
    }


if __name__ == "__main__":
    main()
