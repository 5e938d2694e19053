"""The light regime: 20 numbers a row through a small torch network, where moving the rows is nearly all of the work.

Every contender but the limit writes the same Delta table, which an earlier run of as many rows has filled: in history
mode this run's rows are new, a window of their own; in latest mode each replaces an older one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import CORES, GUARANTEES, Contender, Ground, Measured, Regime, timed

COLUMNS = [f"x{i:02}" for i in range(20)]
MODEL = "scorer"
OLD, NEW = "before", "now"  # the windows


# -- rows, model, and the tables to write to


def fill(ground: Ground, rows: int) -> None:
    import session

    import daybreak

    filled = ground.folder / "light-rows"
    if filled.exists() and filled.read_text() == str(rows):
        return
    spark = session.spark()
    register(ground)
    customers(spark, ground, rows)
    for mode in ("history", "latest"):
        for old in (start(ground, mode), f"{start(ground, mode)}_daybreak"):
            shutil.rmtree(ground.folder / old, ignore_errors=True)
        daybreak.score(job(ground, mode, OLD, str(ground.folder / start(ground, mode)), rows), spark=spark, show=False)
    filled.write_text(str(rows))


def start(ground: Ground, mode: str) -> str:
    return f"scored-{mode}"


def register(ground: Ground) -> None:
    import mlflow
    import pandas as pd
    import torch

    from daybreak.models.torch_tabular import TorchTabular, log_torch_tabular

    mlflow.set_tracking_uri(ground.tracking_uri)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
    example = pd.DataFrame([[0.5] * len(COLUMNS)], columns=COLUMNS)
    log_torch_tabular(TorchTabular(network, COLUMNS), example, name=MODEL, registered_model_name=MODEL)


def customers(spark: Any, ground: Ground, rows: int) -> None:
    from pyspark.sql import functions as F

    numbers = [(F.pmod(F.xxhash64("id", F.lit(i)), F.lit(100_000)) / 100_000).alias(c) for i, c in enumerate(COLUMNS)]
    table = spark.range(0, rows, 1, 8).select("id", *numbers)
    shutil.rmtree(ground.folder / "customers", ignore_errors=True)  # so that all files are the table's
    table.write.format("delta").save(str(ground.folder / "customers"))


def model_uri(ground: Ground) -> str:
    import mlflow

    mlflow.set_tracking_uri(ground.tracking_uri)
    newest = mlflow.MlflowClient().search_model_versions(f"name = '{MODEL}'", order_by=["version_number DESC"])[0]
    return f"models:/{MODEL}/{newest.version}"


def job(ground: Ground, mode: str, window: str, output: str, rows: int) -> dict[str, Any]:
    return {
        "name": "bench-light",
        "input": {"table": str(ground.folder / "customers"), "key": ["id"]},
        "window": window,
        "model": {"uri": model_uri(ground), "precision": "fp32"},
        "batch": {"window_rows": 65_536},
        "shards": {"rows": max(1, rows // 8)},
        "output": {"table": output, "mode": mode},
        "mlflow": {"tracking_uri": ground.tracking_uri},
    }


# -- contenders


def run_limit(ground: Ground) -> Measured:
    """pyarrow and the network in one process: no Spark, nothing written."""
    import pyarrow.parquet as pq
    import torch

    torch.set_num_threads(CORES)
    network = loaded(ground)
    rows = 0
    with timed() as watch, torch.inference_mode():
        for file in sorted((ground.folder / "customers").glob("*.parquet")):
            table = pq.read_table(file, columns=["id", *COLUMNS])
            numbers = table.select(COLUMNS).to_pandas().to_numpy("float32")
            rows += len(network(torch.from_numpy(numbers)).numpy())
    return Measured(rows, watch.seconds)


def loaded(ground: Ground) -> Any:
    import mlflow

    return mlflow.pyfunc.load_model(model_uri(ground)).unwrap_python_model().network


def run_daybreak(ground: Ground, *, mode: str) -> Measured:
    """The real job with everything on."""
    import session

    import daybreak

    spark = session.spark()
    rows = spark.read.format("delta").load(str(ground.folder / "customers")).count()
    few = job(ground, mode, NEW, ground.empty("warm-up"), rows)
    few["input"]["where"] = "id % 1000 = 0"
    daybreak.score(few, spark=spark, show=False)
    target = ground.copied("daybreak", start=start(ground, mode))
    with timed() as watch:
        summary = daybreak.score(job(ground, mode, NEW, target, rows), spark=spark, show=False)
    if summary.rows_scored != rows:
        raise SystemExit(f"daybreak scored {summary.rows_scored} of {rows} rows")
    return Measured(rows, watch.seconds, {"timing": summary.timing})


def run_udf(
    ground: Ground, *, mode: str, name: str, scorer: Callable[..., Any], write: Callable[..., None]
) -> Measured:
    """A user-defined function, and what it returns written to the table."""
    import session

    spark = session.spark()
    score = scorer(ground, spark)
    table = spark.read.format("delta").load(str(ground.folder / "customers"))
    rows = table.count()
    write(spark, table.where("id % 1000 = 0"), score, ground.copied(f"{name}-warm-up", start=start(ground, mode)), mode)
    target = ground.copied(name, start=start(ground, mode))
    with timed() as watch:
        write(spark, table, score, target, mode)
    return Measured(rows, watch.seconds)


def run_streaming(ground: Ground, *, mode: str) -> Measured:
    """Structured Streaming, availableNow, and a MERGE for each micro-batch."""
    import session

    spark = session.spark()
    score, source = spark_udf(ground, spark), str(ground.folder / "customers")
    rows = spark.read.format("delta").load(source).count()

    def stream(where: str, name: str) -> float:
        target, checkpoint = ground.copied(name, start=start(ground, mode)), ground.empty(f"{name}-checkpoint")
        stream = spark.readStream.format("delta").load(source).where(where).writeStream
        each = stream.foreachBatch(lambda batch, _: merge(spark, batch, score, target, mode))
        with timed() as watch:
            query = each.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
        return watch.seconds

    stream("id % 1000 = 0", "streaming-warm-up")
    return Measured(rows, stream("true", "streaming"))


def spark_udf(ground: Ground, spark: Any) -> Any:
    import mlflow
    from pyspark.sql import functions as F

    uri = model_uri(ground)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")  # Spark's default
    predict = mlflow.pyfunc.spark_udf(spark, uri, result_type="float", env_manager="local")
    return predict(*map(F.col, COLUMNS))


def predict_batch_udf(ground: Ground, spark: Any) -> Any:
    from pyspark.ml import functions as ML
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    def make() -> Any:
        import torch

        torch.set_num_threads(1)
        network = loaded(ground)

        def predict(numbers: Any) -> Any:
            with torch.inference_mode():
                return network(torch.from_numpy(numbers.astype("float32"))).numpy()[:, 0]

        return predict

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    shape = [[len(COLUMNS)]]
    predict = ML.predict_batch_udf(make, return_type=T.FloatType(), batch_size=10_000, input_tensor_shapes=shape)
    return predict(F.array(*map(F.col, COLUMNS)))


def scored(rows: Any, score: Any, mode: str) -> Any:
    """The columns of the table that we write, but for the hash of the inputs."""
    from pyspark.sql import functions as F

    told = {"model_name": MODEL, "model_version": "1", "run_id": "bench", "input_version": "0"}
    told |= {"window": NEW} if mode == "history" else {}
    literals = [F.lit(value).alias(name) for name, value in told.items()]
    hashed = F.lit(None).cast("bigint").alias("input_hash")
    return rows.select("id", score.alias("prediction"), *literals, hashed, F.current_timestamp().alias("scored_at"))


def replace(_: Any, rows: Any, score: Any, target: str, mode: str) -> None:
    """As a window is a partition: overwrite it, with no MERGE and no look at keys."""
    writer = scored(rows, score, mode).write.format("delta").mode("overwrite")
    writer.option("replaceWhere", f"window = '{NEW}'").save(target)


def merge(spark: Any, rows: Any, score: Any, target: str, mode: str) -> None:
    """By key, and in history mode by window."""
    from delta.tables import DeltaTable

    window = f" AND t.window = '{NEW}'" if mode == "history" else ""
    clauses = (
        DeltaTable.forPath(spark, target).alias("t").merge(scored(rows, score, mode).alias("s"), f"t.id = s.id{window}")
    )
    clauses.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def contenders(mode: str) -> tuple[Contender, ...]:
    by_merge = partial(run_udf, mode=mode, write=merge)
    by_replace = partial(run_udf, mode=mode, name="spark_udf_replace", scorer=spark_udf, write=replace)
    return (
        Contender("limit", "limit: pyarrow and the network, nothing written", run_limit),
        Contender("daybreak", "daybreak: the real job", partial(run_daybreak, mode=mode), gives=GUARANTEES),
        Contender("spark_udf", "mlflow spark_udf, MERGE", partial(by_merge, name="spark_udf", scorer=spark_udf)),
        Contender(
            "predict_batch_udf",
            "pyspark predict_batch_udf, MERGE",
            partial(by_merge, name="predict_batch_udf", scorer=predict_batch_udf),
        ),
        Contender("streaming", "availableNow + foreachBatch MERGE, spark_udf", partial(run_streaming, mode=mode)),
        *([Contender("spark_udf_replace", "mlflow spark_udf, replaceWhere", by_replace)] if mode == "history" else []),
    )


LIGHT = {
    mode: Regime(mode, "rows", f"20 features, a small network, {mode} mode", 2_000_000, fill, contenders(mode))
    for mode in ("history", "latest")
}
