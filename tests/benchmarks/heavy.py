"""The heavy regime: text embedding, MiniLM in fp32. A contender is a function and a line in HEAVY."""

from __future__ import annotations

import json
import os
from typing import Any

import heavy_peers as peers
import prepare
from bench import CORES, GUARANTEES, MAX_LENGTH, TOKENS, Contender, Ground, Measured, Regime, timed


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

    os.environ["TOKENIZERS_PARALLELISM"] = "true"  # one process: on both cores, like the forward passes
    texts = ground.texts()
    with torch.inference_mode():
        embed(texts[:64])
        with timed() as watch:
            computed, useful = embed(texts)
    return Measured(len(texts), watch.seconds, {"padding": 1 - useful / computed})


def batches(order: list[int], length: list[int], *, budget: int) -> list[list[int]]:
    """Cut rows, shortest first, so that rows x longest stays within the budget."""
    cut: list[list[int]] = [[]]
    for row in order:
        if cut[-1] and (len(cut[-1]) + 1) * length[row] > budget:
            cut.append([])
        cut[-1].append(row)
    return cut


def run_daybreak(ground: Ground, *, precision: str = "fp32") -> Measured:
    """The real job with everything on. What it says of itself is read here and nowhere else."""
    import session

    import daybreak

    spark = session.spark()
    daybreak.score(job(ground, "warm-up", precision, where=session.A_FEW), spark=spark, show=False)
    with timed() as watch:
        summary = daybreak.score(job(ground, "daybreak", precision), spark=spark, show=False)
    if summary.rows_scored != summary.rows_in:
        raise SystemExit(f"daybreak scored {summary.rows_scored} of {summary.rows_in} rows")
    facts = receipts(spark, f"{ground.folder}/out/daybreak_daybreak/shards")
    return Measured(summary.rows_scored, watch.seconds, {"timing": summary.timing, **facts})


def run_daybreak_auto(ground: Ground) -> Measured:
    """bf16 where the device computes it and the model's scores stay near, else fp32: the run says which."""
    return run_daybreak(ground, precision="auto")


def job(ground: Ground, name: str, precision: str, *, where: str | None = None) -> dict[str, Any]:
    return {
        "name": f"bench-{name}",
        "input": {"table": ground.docs, "key": ["doc_id"], "where": where},
        "model": {"uri": "models:/minilm@champion", "precision": precision},
        "batch": {"tokens": TOKENS, "window_rows": 4096},
        "shards": {"by": "key", "rows": 125 if where else 1000},
        "output": {"table": ground.empty(name), "mode": "history"},
        "mlflow": {"tracking_uri": ground.tracking_uri},
    }


def receipts(spark: Any, path: str) -> dict[str, Any]:
    """What the workers say of themselves: device busy, padding, precision."""
    from daybreak.ops import tracking
    from daybreak.sink.staging import Receipt

    rows = spark.read.format("delta").load(path).collect()
    told = [Receipt(r.shard_id, r.attempt, r.rows_in, r.rows_scored, r.rows_dead, json.loads(r.receipt)) for r in rows]
    totals = tracking.summed(told)
    return {
        "device_busy": totals["forward"] / totals["wall"],
        "padding": tracking.padding(totals),
        "precision": told[0].facts["precision"],
    }


HEAVY = Regime(
    name="heavy",
    unit="docs",
    about="docstrings, MiniLM fp32",
    rows=12_000,
    fill=prepare.fill,
    contenders=(
        Contender("limit", "limit: bare sorted loop, no Spark, nothing written", run_limit),
        Contender("daybreak", "daybreak: the real job", run_daybreak, gives=GUARANTEES),
        Contender("daybreak_auto", "daybreak, precision: auto", run_daybreak_auto, gives=GUARANTEES),
        Contender("spark_udf", "mlflow spark_udf, sentence-transformers", peers.run_spark_udf),
        Contender("predict_batch_udf", "pyspark predict_batch_udf, batches of 32", peers.run_predict_batch_udf),
        Contender(
            "streaming", "availableNow + foreachBatch MERGE, spark_udf", peers.run_streaming, gives=peers.STREAMING
        ),
        Contender("sentence_transformers", "sentence-transformers alone, nothing written", peers.run_alone),
        Contender("distribatch", "distribatch on Spark, with its checkpoint", peers.run_distribatch, gives=peers.WAVES),
        Contender("ray", "Ray Data, one actor, to Parquet", peers.run_ray),
        Contender("daft", "Daft, two processes, to Parquet", peers.run_daft),
    ),
)

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
