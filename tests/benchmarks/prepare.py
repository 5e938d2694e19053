"""Fills the benchmark's folder, once: the Delta table of documents, and MiniLM as each peer wants it."""

from __future__ import annotations

import sys
from pathlib import Path

from bench import Ground

ROOT = Path(__file__).parents[2]
PEER = "minilm-sentence-transformers"


def fill(ground: Ground, rows: int) -> None:
    sys.path.insert(0, str(ROOT / "jobs"))
    import prepare_demo
    import session

    spark = session.spark()
    prepare_demo.prepare_docs(spark, ground.folder, rows=rows)
    spark.read.format("delta").load(ground.docs).toPandas().to_parquet(ground.folder / "docs.parquet")
    prepare_demo.register_once(PEER, ground.folder, lambda: register_peer(ground))


def register_peer(ground: Ground) -> str:
    """The same weights through MLflow's own flavour for sentence-transformers."""
    import mlflow
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(ground.weights, device="cpu")
    info = mlflow.sentence_transformers.log_model(
        model,
        name=PEER,
        signature=mlflow.models.infer_signature(["a text"], model.encode(["a text"])),
        pip_requirements=["sentence-transformers"],
        registered_model_name=PEER,
    )
    return str(info.registered_model_version)
