"""Counts the scores of the churn demo: after two runs of one night, each customer has one.

./spark-submit.sh jobs/count_demo.py [--out build/demo]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main() -> None:
    parser = argparse.ArgumentParser(prog="count_demo.py")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder of tables and registry")
    scores = parser.parse_args().out.absolute() / "churn_scores"
    if not (scores / "_delta_log").exists():
        sys.exit(f"{scores} is not there: score it first, with conf/jobs/churn.yaml")
    table = SparkSession.builder.getOrCreate().read.format("delta").load(str(scores))
    counts = table.groupBy("window").agg(F.count("*").alias("rows"), F.countDistinct("customer_id").alias("customers"))
    for row in counts.orderBy("window").collect():
        print(f"window {row.window}: {row.rows:,} scores of {row.customers:,} customers")


if __name__ == "__main__":
    main()
