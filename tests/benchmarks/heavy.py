"""The heavy regime: text embedding, MiniLM in fp32. A contender is a function and a line in CONTENDERS."""

from __future__ import annotations

import os
from typing import Any

from bench import CORES, GUARANTEES, MAX_LENGTH, TOKENS, Contender, Ground, Measured, timed
from prepare import PEER

A_FEW = "pmod(hash(doc_id), 16) = 0"  # for the warm-up: every worker has loaded its model afterwards


def run_limit(ground: Ground) -> Measured:
    """As fast as these weights go here: no Spark, all documents in memory and sorted, nothing written."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(CORES)
    tokenizer = AutoTokenizer.from_pretrained(ground.weights)
    model = AutoModel.from_pretrained(ground.weights).eval()

    def embed(texts: list[str]) -> tuple[int, int]:
        tokens = tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
        order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
        computed = 0
        for rows in batches(order, [len(ids) for ids in tokens], budget=TOKENS):
            padded = tokenizer.pad({"input_ids": [tokens[row] for row in rows]}, return_tensors="pt")
            mask = padded["attention_mask"].unsqueeze(-1)
            states = model(**padded).last_hidden_state
            pooled = (states * mask).sum(1) / mask.sum(1)
            torch.nn.functional.normalize(pooled, dim=1).numpy()
            computed += mask.numel()
        return computed, sum(map(len, tokens))

    texts = ground.texts()
    with torch.inference_mode():
        embed(texts[:64])
        with timed() as watch:
            computed, useful = embed(texts)
    return Measured(len(texts), watch.seconds, facts={"padding": 1 - useful / computed})


def batches(order: list[int], length: list[int], *, budget: int) -> list[list[int]]:
    """Cut rows, shortest first, so that rows x longest stays within the budget."""
    cut: list[list[int]] = [[]]
    for row in order:
        if cut[-1] and (len(cut[-1]) + 1) * length[row] > budget:
            cut.append([])
        cut[-1].append(row)
    return cut


def run_daybreak(ground: Ground) -> Measured:
    """The real job with everything on. What it says of itself is read here and nowhere else."""
    import session

    import daybreak

    spark = session.spark()
    daybreak.score(daybreak_job(ground, "warm-up", where=A_FEW), spark=spark, show=False)
    with timed() as watch:
        summary = daybreak.score(daybreak_job(ground, "daybreak"), spark=spark, show=False)
    if summary.rows_scored != summary.rows_in:
        raise SystemExit(f"daybreak scored {summary.rows_scored} of {summary.rows_in} rows")
    return Measured(summary.rows_scored, summary.timing["score"], watch.seconds, {"timing": summary.timing})


def daybreak_job(ground: Ground, name: str, *, where: str | None = None) -> dict[str, Any]:
    return {
        "name": f"bench-{name}",
        "input": {"table": ground.docs, "key": ["doc_id"], "where": where},
        "model": {"uri": "models:/minilm@champion"},
        "batch": {"tokens": TOKENS, "window_rows": 4096},
        "shards": {"by": "key", "rows": 125 if where else 1000},
        "output": {"table": ground.empty(name), "mode": "history"},
        "mlflow": {"tracking_uri": ground.tracking_uri},
    }


def run_spark_udf(ground: Ground) -> Measured:
    """MLflow's documented way, at its best here: this environment, and one partition a core in one Arrow batch,
    so that `encode` sorts as many rows by length as it can. In local mode MLflow loads the model again in every task
    (one a core here); that is start-up, so a load, measured on the driver, is taken off."""
    import mlflow
    import session

    mlflow.set_tracking_uri(ground.tracking_uri)
    uri = f"models:/{PEER}@champion"
    spark = session.spark()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")  # Spark's default
    docs = spark.read.format("delta").load(ground.docs)
    embed = mlflow.pyfunc.spark_udf(spark, uri, result_type="array<float>", env_manager="local")

    def score(name: str, rows: Any) -> float:
        scored = rows.repartition(CORES).select("doc_id", embed("text").alias("embedding"))
        target = ground.empty(name)
        with timed() as watch:
            scored.write.format("delta").save(target)
        return watch.seconds

    score("spark_udf-warm-up", docs.where(A_FEW))
    path = mlflow.artifacts.download_artifacts(uri)
    mlflow.pyfunc.load_model(path)
    with timed() as load:
        mlflow.pyfunc.load_model(path)
    seconds = score("spark_udf", docs) - load.seconds
    return Measured(docs.count(), seconds, seconds, {"load_seconds_taken_off": load.seconds})


CONTENDERS = (
    Contender("limit", "limit: bare sorted loop, no Spark, nothing written", run_limit),
    Contender("daybreak", "daybreak: the real job", run_daybreak, gives=GUARANTEES),
    Contender("spark_udf", "mlflow spark_udf, sentence-transformers", run_spark_udf),
)

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
