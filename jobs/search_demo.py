"""Answers a question from the scored table: the five documents that are nearest to it in meaning.

    ./spark-submit.sh jobs/search_demo.py ["parse a date from a string"] [--out build/demo]

All of it fits in memory here; a large table belongs into a vector index.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession

NEAREST = 5
WIDTH = 90


def main() -> None:
    asked = arguments()
    if not (asked.out / "doc_embeddings" / "_delta_log").exists():
        sys.exit(f"{asked.out}/doc_embeddings is not there: score it first, with conf/jobs/demo.yaml")
    question = " ".join(asked.words) or "parse a date from a string"
    rows = embedded(SparkSession.builder.getOrCreate(), asked.out)
    found = nearest(rows, embed(question, asked.out))
    print(f'Nearest to "{question}" of {len(rows):,} documents:')
    for row in found.itertuples():
        print(f"  {row.cosine:.3f}  {row.doc_id}\n         {first_line(row.text)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="search_demo.py")
    parser.add_argument("words", nargs="*", help="the question")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder of tables and registry")
    return parser.parse_args()


def embedded(spark: SparkSession, out: Path) -> pd.DataFrame:
    """The output table beside the documents it was made from: doc_id, text, embedding."""
    docs = spark.read.format("delta").load(str((out / "docs").absolute()))
    embeddings = spark.read.format("delta").load(str((out / "doc_embeddings").absolute()))
    return docs.join(embeddings, on="doc_id", how="inner").select("doc_id", "text", "embedding").toPandas()


def embed(question: str, out: Path) -> np.ndarray:
    """The question through the same registered model as the documents."""
    import mlflow
    from demo import registry

    os.environ["HF_HUB_OFFLINE"] = "1"
    registry.use(out)
    model = mlflow.pyfunc.load_model(f"models:/minilm@{registry.CHAMPION}")
    return np.asarray(model.predict(pd.DataFrame({"text": [question]}))["embedding"].iloc[0])


def nearest(rows: pd.DataFrame, vector: np.ndarray) -> pd.DataFrame:
    """The best rows by cosine; the model's vectors have length one."""
    cosine = np.stack(rows["embedding"].to_list()) @ vector
    return rows.assign(cosine=cosine).nlargest(NEAREST, "cosine")


def first_line(text: str) -> str:
    line = text.splitlines()[0]
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


if __name__ == "__main__":
    main()
