"""The light regime: a row's numbers through a small torch network, where moving the rows is nearly all of the work.

Every contender but the limit writes the same Delta table, which an earlier run of as many rows has filled: in history
mode this run's rows are new, a window of their own; in latest mode each replaces an older one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import CORES, GUARANTEES, Contender, Ground, Measured, Regime, timed
from light_tables import CUSTOMERS, FLIGHTS, Table

MODEL = "scorer"
OLD, NEW = "before", "now"  # the windows
KEYED = ("idempotent publish",)  # by key and window, or a window as a whole: a repetition doubles nothing


# -- models, and the tables to write to


def fill(ground: Ground, rows: int, *, table: Table, modes: tuple[str, ...] = ("history", "latest")) -> None:
    """The table, its model, and for each mode an output table that an earlier window is in."""
    import session

    import daybreak

    filled = ground.folder / f"{table.name}-rows"
    if filled.exists() and filled.read_text() == str(rows):
        return
    spark = session.spark()
    register(ground, table)
    table.write(ground, spark, rows)
    for mode in modes:
        for old in (start(table, mode), f"{start(table, mode)}_daybreak"):
            shutil.rmtree(ground.folder / old, ignore_errors=True)
        target = str(ground.folder / start(table, mode))
        daybreak.score(job(ground, table, mode, OLD, target, rows), spark=spark, show=False)
    filled.write_text(str(rows))


def start(table: Table, mode: str) -> str:
    return f"scored-{table.name}-{mode}"


def register(ground: Ground, table: Table) -> None:
    import mlflow
    import pandas as pd
    import torch

    from daybreak.models.torch_tabular import TorchTabular, log_torch_tabular

    mlflow.set_tracking_uri(ground.tracking_uri)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(len(table.columns), 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
    example = pd.DataFrame([[0.5] * len(table.columns)], columns=table.columns)
    name = f"{MODEL}-{table.name}"
    log_torch_tabular(TorchTabular(network, table.columns), example, name=name, registered_model_name=name)


def model_uri(ground: Ground, table: Table) -> str:
    import mlflow

    mlflow.set_tracking_uri(ground.tracking_uri)
    name = f"{MODEL}-{table.name}"
    newest = mlflow.MlflowClient().search_model_versions(f"name = '{name}'", order_by=["version_number DESC"])[0]
    return f"models:/{name}/{newest.version}"


def job(ground: Ground, table: Table, mode: str, window: str, output: str, rows: int) -> dict[str, Any]:
    return {
        "name": "bench-light",
        "input": {"table": str(table.path(ground)), "key": list(table.key)},
        "window": window,
        "model": {"uri": model_uri(ground, table), "precision": "fp32"},
        "batch": {"window_rows": 65_536},
        "shards": {"rows": max(1, rows // 8)},
        "output": {"table": output, "mode": mode},
        "mlflow": {"tracking_uri": ground.tracking_uri},
    }


# -- contenders


def run_limit(ground: Ground, *, table: Table) -> Measured:
    """pyarrow and the network in one process: no Spark, nothing written."""
    import numpy as np
    import pyarrow.parquet as pq
    import torch

    torch.set_num_threads(CORES)
    network = loaded(ground, table)
    rows = 0
    with timed() as watch, torch.inference_mode():
        for file in sorted(table.path(ground).glob("*.parquet")):
            held = pq.read_table(file, columns=[*table.key, *table.columns])
            numbers = np.nan_to_num(held.select(table.columns).to_pandas().to_numpy("float32"))
            rows += len(network(torch.from_numpy(numbers)).numpy())
    return Measured(rows, watch.seconds)


def loaded(ground: Ground, table: Table) -> Any:
    import mlflow

    return mlflow.pyfunc.load_model(model_uri(ground, table)).unwrap_python_model().network


def run_daybreak(ground: Ground, *, table: Table, mode: str, onto_earlier: bool = True) -> Measured:
    """The real job with everything on."""
    import session

    import daybreak

    spark = session.spark()
    rows = table.read(ground, spark).count()
    few = job(ground, table, mode, NEW, ground.empty("warm-up"), rows)
    few["input"]["where"] = table.a_tenth
    few["shards"] = {"by": "key", "rows": max(1, rows // 80)}  # so that every worker has loaded the model
    daybreak.score(few, spark=spark, show=False)
    target = ground.copied("daybreak", start=start(table, mode)) if onto_earlier else ground.empty("daybreak")
    with timed() as watch:
        summary = daybreak.score(job(ground, table, mode, NEW, target, rows), spark=spark, show=False)
    if summary.rows_scored != rows:
        raise SystemExit(f"daybreak scored {summary.rows_scored} of {rows} rows")
    return Measured(rows, watch.seconds, {"timing": summary.timing})


def run_udf(
    ground: Ground,
    *,
    table: Table,
    mode: str,
    name: str,
    scorer: Callable[..., Any],
    write: Callable[..., None],
) -> Measured:
    """A user-defined function, and what it returns written to the table."""
    import session

    spark = session.spark()
    score, source = scorer(ground, table, spark), table.read(ground, spark)
    rows = source.count()

    def once(rows: Any, name: str) -> float:
        target = ground.copied(name, start=start(table, mode))
        with timed() as watch:
            write(spark, scored(table, rows, score, mode), table, target, mode)
        return watch.seconds

    once(source.where(table.a_tenth), f"{name}-warm-up")
    return Measured(rows, once(source, name))


def run_streaming(ground: Ground, *, table: Table, mode: str) -> Measured:
    """Structured Streaming, availableNow, and a MERGE for each micro-batch."""
    import session

    spark = session.spark()
    score, source = spark_udf(ground, table, spark), str(table.path(ground))
    rows = table.read(ground, spark).count()

    def once(where: str, name: str) -> float:
        target, checkpoint = ground.copied(name, start=start(table, mode)), ground.empty(f"{name}-checkpoint")
        stream = spark.readStream.format("delta").load(source).where(where).writeStream
        each = stream.foreachBatch(
            lambda batch, _: merge(spark, scored(table, batch, score, mode), table, target, mode)
        )
        with timed() as watch:
            query = each.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
        return watch.seconds

    once(table.a_tenth, "streaming-warm-up")
    return Measured(rows, once("true", "streaming"))


def spark_udf(ground: Ground, table: Table, spark: Any) -> Any:
    import mlflow
    from pyspark.sql import functions as F

    uri = model_uri(ground, table)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")  # Spark's default
    predict = mlflow.pyfunc.spark_udf(spark, uri, result_type="float", env_manager="local")
    return predict(*map(F.col, table.columns))


def predict_batch_udf(ground: Ground, table: Table, spark: Any) -> Any:
    from pyspark.ml import functions as ML
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    def make() -> Any:
        import numpy as np
        import torch

        torch.set_num_threads(1)
        network = loaded(ground, table)

        def predict(numbers: Any) -> Any:
            with torch.inference_mode():
                return network(torch.from_numpy(np.nan_to_num(numbers.astype("float32")))).numpy()[:, 0]

        return predict

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    shape = [[len(table.columns)]]
    predict = ML.predict_batch_udf(make, return_type=T.FloatType(), batch_size=10_000, input_tensor_shapes=shape)
    return predict(F.array(*map(F.col, table.columns)))


def scored(table: Table, rows: Any, score: Any, mode: str) -> Any:
    """The columns of the table that we write, but for the hash of the inputs."""
    from pyspark.sql import functions as F

    told = {"model_name": MODEL, "model_version": "1", "run_id": "bench", "input_version": "0"}
    told |= {"window": NEW} if mode == "history" else {}
    literals = [F.lit(value).alias(name) for name, value in told.items()]
    told_by_us = F.lit(None).cast("bigint").alias("input_hash"), F.current_timestamp().alias("scored_at")
    return rows.select(*table.key, score.alias("prediction"), *literals, *told_by_us)


def replace(_: Any, rows: Any, table: Table, target: str, mode: str) -> None:
    """As a window is a partition: overwrite it, with no MERGE and no look at keys."""
    rows.write.format("delta").mode("overwrite").option("replaceWhere", f"window = '{NEW}'").save(target)


def merge(spark: Any, rows: Any, table: Table, target: str, mode: str) -> None:
    """By key, and in history mode by window."""
    from delta.tables import DeltaTable

    on = [*(f"t.{name} = s.{name}" for name in table.key), *([f"t.window = '{NEW}'"] if mode == "history" else [])]
    clauses = DeltaTable.forPath(spark, target).alias("t").merge(rows.alias("s"), " AND ".join(on))
    clauses.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def contenders(table: Table, mode: str) -> tuple[Contender, ...]:
    at: dict[str, Any] = {"table": table, "mode": mode}
    by_merge = partial(run_udf, **at, write=merge)
    by_replace = partial(run_udf, **at, name="spark_udf_replace", scorer=spark_udf, write=replace)
    replaced = Contender("spark_udf_replace", "mlflow spark_udf, replaceWhere", by_replace, gives=KEYED)
    return (
        Contender("limit", "limit: pyarrow and the network, nothing written", partial(run_limit, table=table)),
        Contender("daybreak", "daybreak: the real job", partial(run_daybreak, **at), gives=GUARANTEES),
        Contender(
            "spark_udf", "mlflow spark_udf, MERGE", partial(by_merge, name="spark_udf", scorer=spark_udf), gives=KEYED
        ),
        Contender(
            "predict_batch_udf",
            "pyspark predict_batch_udf, MERGE",
            partial(by_merge, name="predict_batch_udf", scorer=predict_batch_udf),
            gives=KEYED,
        ),
        Contender(
            "streaming",
            "availableNow + foreachBatch MERGE, spark_udf",
            partial(run_streaming, **at),
            gives=("resume", *KEYED),
        ),
        *([replaced] if mode == "history" else []),
    )


def regime(name: str, table: Table, mode: str) -> Regime:
    about = f"{len(table.columns)} numbers of {table.name}, a small network, {mode} mode"
    return Regime(name, "rows", about, table.rows, partial(fill, table=table), contenders(table, mode))


LIGHT = {
    one.name: one
    for one in (
        regime("history", CUSTOMERS, "history"),
        regime("latest", CUSTOMERS, "latest"),
        regime("flights", FLIGHTS, "history"),
    )
}

GROWTH = Regime(
    "growth",
    "rows",
    "20 numbers of customers, a small network, into a new table",
    CUSTOMERS.rows,
    partial(fill, table=CUSTOMERS, modes=()),
    (Contender("daybreak", "daybreak", partial(run_daybreak, table=CUSTOMERS, mode="history", onto_earlier=False)),),
)
