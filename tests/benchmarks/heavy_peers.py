"""What people embed text with today: the same weights and documents, in the way that each one's documentation shows.

Those of Spark write the same Delta table; the others Parquet, since they have no keyed MERGE. Where a peer loads its
model anew for each run, a load, measured on the driver, is taken off: that is start-up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench import CORES, MAX_LENGTH, Ground, Measured, timed
from prepare import PEER

STREAMING = ("resume", "idempotent publish")
WAVES = ("resume", "dead letters")


def encoder(ground: Ground, threads: int = CORES) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(ground.weights, device="cpu")
    model.max_seq_length = MAX_LENGTH
    return model


def load_seconds(load: Callable[[], Any]) -> float:
    """Of a model whose libraries are imported and whose files are in memory: of the second load."""
    load()
    with timed() as watch:
        load()
    return watch.seconds


def run_alone(ground: Ground) -> Measured:
    """`encode`, which sorts by length, without Spark and with nothing written."""
    model, texts = encoder(ground), ground.texts()
    model.encode(texts[:64])
    with timed() as watch:
        model.encode(texts)
    return Measured(len(texts), watch.seconds)


# -- on Spark


def udf(ground: Ground, spark: Any) -> Any:
    """MLflow's documented way, at its best here: this environment, and large Arrow batches, so that `encode` sorts as
    many rows by length as it can."""
    import mlflow

    mlflow.set_tracking_uri(ground.tracking_uri)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")  # Spark's default
    uri = f"models:/{PEER}@champion"
    return mlflow.pyfunc.spark_udf(spark, uri, result_type="array<float>", env_manager="local")


def udf_load_seconds() -> float:
    """In local mode MLflow loads the model again in every task; here one task a core runs."""
    import mlflow

    path = mlflow.artifacts.download_artifacts(f"models:/{PEER}@champion")
    return load_seconds(lambda: mlflow.pyfunc.load_model(path))


def run_spark_udf(ground: Ground) -> Measured:
    import session

    spark = session.spark()
    return written(ground, spark, "spark_udf", udf(ground, spark), udf_load_seconds)


def written(ground: Ground, spark: Any, name: str, embed: Any, load_seconds: Callable[[], float]) -> Measured:
    """A user-defined function over the table, one partition a core, into a Delta table."""
    import session

    docs = spark.read.format("delta").load(ground.docs)

    def score(name: str, rows: Any) -> float:
        scored = rows.repartition(CORES).select("doc_id", embed("text").alias("embedding"))
        target = ground.empty(name)
        with timed() as watch:
            scored.write.format("delta").save(target)
        return watch.seconds

    score(f"{name}-warm-up", docs.where(session.A_FEW))
    load = load_seconds()
    return Measured(docs.count(), score(name, docs) - load, {"load_seconds_taken_off": load})


def run_streaming(ground: Ground) -> Measured:
    """Structured Streaming over the table, each micro-batch scored by the same udf and merged by key."""
    import session
    from delta.tables import DeltaTable

    spark = session.spark()
    embed = udf(ground, spark)

    def score(name: str, where: str) -> float:
        target, checkpoint = ground.empty(name), ground.empty(f"{name}-checkpoint")
        spark.sql(f"CREATE TABLE delta.`{target}` (doc_id STRING, embedding ARRAY<FLOAT>) USING delta")

        def merge(rows: Any, _: int) -> None:
            scored = rows.repartition(CORES).select("doc_id", embed("text").alias("embedding"))
            clauses = DeltaTable.forPath(spark, target).alias("t").merge(scored.alias("s"), "t.doc_id = s.doc_id")
            clauses.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

        writer = spark.readStream.format("delta").load(ground.docs).where(where).writeStream.foreachBatch(merge)
        with timed() as watch:
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
        return watch.seconds

    score("streaming-warm-up", session.A_FEW)
    rows, load = spark.read.format("delta").load(ground.docs).count(), udf_load_seconds()
    return Measured(rows, score("streaming", "true") - load, {"load_seconds_taken_off": load})


def run_predict_batch_udf(ground: Ground) -> Measured:
    """Spark's own function for deep learning: it cuts batches of a fixed size, and they are padded."""
    import session
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql import types as T

    def make() -> Any:
        model = encoder(ground, threads=1)
        return lambda texts: model.encode(list(texts))

    spark = session.spark()
    embed = predict_batch_udf(make, return_type=T.ArrayType(T.FloatType()), batch_size=32)
    return written(ground, spark, "predict_batch_udf", embed, lambda: load_seconds(lambda: encoder(ground)))


def run_distribatch(ground: Ground) -> Measured:
    """Waves of `mapInArrow`, each written to a checkpoint; then to Parquet. Its engine is cached in the workers."""
    import distribatch
    import session

    spark = session.spark()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    options = {"device": "cpu", "dtype": "float32", "micro_batch_size": 32, "max_input_tokens": MAX_LENGTH}
    model = distribatch.models.path(ground.weights)
    work = distribatch.EmbedJob(
        model=model, text="{text}", normalize=True, engine="transformers", engine_options=options
    )
    docs = spark.read.format("delta").load(ground.docs).select("doc_id", "text").where("trim(text) <> ''")

    def score(name: str, rows: Any) -> float:
        target, checkpoint = ground.empty(name), ground.empty(f"{name}-checkpoint")
        with timed() as watch:
            found = work.run(
                rows, backend="spark", output_col="embedding", batch_size=1024, partitions=CORES,
                checkpoint=checkpoint, id_col="doc_id",
            )  # fmt: skip
            found.select("doc_id", "embedding").write.parquet(target)
        return watch.seconds

    score("distribatch-warm-up", docs.where(session.A_FEW))
    return Measured(docs.count(), score("distribatch", docs))


# -- elsewhere


def run_ray(ground: Ground) -> Measured:
    """Ray Data with one actor: two on two cores leave nothing to its readers, which then never finish."""
    import ray

    ray.init(num_cpus=CORES, include_dashboard=False, logging_level="error")

    class Embed:
        def __init__(self) -> None:
            self.model = encoder(ground)

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {"doc_id": batch["doc_id"], "embedding": self.model.encode(list(batch["text"]))}

    target = ground.empty("ray")
    docs = ray.data.read_parquet(str(ground.folder / "docs.parquet"))
    scored = docs.map_batches(Embed, batch_size=1024, num_cpus=1, compute=ray.data.ActorPoolStrategy(size=1))
    rows, load = docs.count(), load_seconds(lambda: encoder(ground))
    with timed() as watch:
        scored.write_parquet(target)
    ray.shutdown()
    return Measured(rows, watch.seconds - load, {"load_seconds_taken_off": load})


def run_daft(ground: Ground) -> Measured:
    """Daft with a process of sentence-transformers on each core."""
    import daft

    class Embed:
        def __init__(self) -> None:
            self.model = encoder(ground, threads=1)

        @daft.method.batch(return_dtype=daft.DataType.list(daft.DataType.float32()), batch_size=1024)
        def embed(self, text: daft.Series) -> Any:
            return [vector.tolist() for vector in self.model.encode(text.to_pylist())]

    embedding = daft.cls(Embed, max_concurrency=CORES, use_process=True)()
    docs = daft.read_parquet(str(ground.folder / "docs.parquet"))
    rows, load = docs.count_rows(), load_seconds(lambda: encoder(ground))
    scored = docs.into_batches(1024).select(docs["doc_id"], embedding.embed(docs["text"]).alias("embedding"))
    with timed() as watch:
        scored.write_parquet(ground.empty("daft"))
    return Measured(rows, watch.seconds - load, {"load_seconds_taken_off": load})
