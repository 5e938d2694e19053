"""How long a resume takes from submit to its first forward pass, when all but ten of 10,000 shards are staged.

    python tests/benchmarks/resume.py [--shards 10000] [--left 10]

The plan and its row in the run log are a real run's, which is ended before it scores. Its staged files are written by
the scorer itself, one a shard, in this process rather than in one Spark task each. Then the real command resumes it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import cloudpickle
import mlflow
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import session
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from pyspark.sql.pandas.types import to_arrow_schema

from daybreak import local, run, schema
from daybreak.launch import Run, marked
from daybreak.source import selection, shards

ROOT = Path(__file__).parents[2]
ROWS = 10  # a shard


class Double(mlflow.pyfunc.PythonModel):
    """y = 2 x; leaves a file when it is first asked."""

    def __init__(self, asked: str) -> None:
        self.asked = asked

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        Path(self.asked).touch()
        return (model_input[["x"]] * 2).rename(columns={"x": "y"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests/benchmarks/resume.py")
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--left", type=int, default=10, help="shards that are not staged")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="daybreak-resume-") as name:
        folder = Path(name)
        first_driver = multiprocessing.get_context("spawn").Process(
            target=prepare, args=(folder, asked.shards, asked.left)
        )
        first_driver.start()  # a process of its own: it holds the run's lease until it is gone
        first_driver.join()
        first, told = resumed(folder)
    print(
        f"{told['shards_resumed']} of {told['shards']} shards staged: first forward pass {first:.1f} s after submit,"
        f" published {told['seconds']:.1f} s after the driver began; rows forward {told['rows_forward']};"
        f" {json.dumps(told['timing'])}"
    )


def prepare(folder: Path, count: int, left: int) -> None:
    """A run that was ended when all but ``left`` of its shards were staged."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    double = DataType.double
    signature = ModelSignature(inputs=Schema([ColSpec(double, "x")]), outputs=Schema([ColSpec(double, "y")]))
    model = Double(str(folder / "asked"))
    mlflow.pyfunc.save_model(path=str(folder / "model"), python_model=model, signature=signature, pip_requirements=[])
    job = {
        "name": "resume",
        "input": {"table": str(folder / "input"), "key": ["id"]},
        "window": "w",
        "model": {"uri": str(folder / "model"), "precision": "fp32"},
        "shards": {"by": "key", "rows": ROWS},
        "output": {"table": str(folder / "scores")},
        "mlflow": {"tracking_uri": f"sqlite:///{folder}/mlflow.db"},
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    spark = session.spark()
    spark.range(count * ROWS).selectExpr("id", "double(id) x").write.format("delta").save(str(folder / "input"))
    run._score = lambda current, *, show: stage(current, left)
    try:
        run.score(job, spark=spark, show=False)
    except KeyboardInterrupt:
        (folder / "asked").unlink()
    spark.stop()


def stage(current: Run, left: int) -> None:
    """What the tasks of all shards but the last ones would have written; then the driver ends."""
    done = current.to_score[:-left]
    placed = shards.assign(marked(current), current.plan, current.binding.keys, done)
    rows = selection.on_the_wire(placed, current.binding).toPandas()
    scorer = run._scorer(current, isolated=False)
    columns = schema.staging([key.type for key in current.binding.keys], [one.ddl for one in current.spec.outputs])
    types = to_arrow_schema(local.struct(columns))
    folder = Path(current.staging.storage.at("shards"))
    folder.mkdir()
    for shard_id, frame in rows.groupby("shard_id"):
        parts = [
            pa.Table.from_pandas(part, types, preserve_index=False)
            for part in scorer(iter([frame.reset_index(drop=True)]))
        ]
        pq.write_table(pa.concat_tables(parts), folder / f"part-{shard_id:05}-{uuid.uuid4()}-c000.snappy.parquet")
    raise KeyboardInterrupt


def resumed(folder: Path) -> tuple[float, dict[str, Any]]:
    """Seconds from submit to the first forward pass, and the summary."""
    command = [ROOT / "spark-submit.sh", "--env", "local", "jobs/score.py", "--config", folder / "job.yaml", "--json"]
    began, first = time.monotonic(), 0.0
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    while process.poll() is None and not first:
        first = time.monotonic() - began if (folder / "asked").exists() else 0.0
        time.sleep(0.01)
    out, _ = process.communicate()
    if process.returncode or not first:
        sys.exit(f"the resumed run ended with exit code {process.returncode}")
    return first, json.loads(out.splitlines()[-1])


if __name__ == "__main__":
    main()
