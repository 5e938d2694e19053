"""The Spark session of the contenders that use one: two cores, Delta, and conf/spark/local.conf."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench import CORES
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
A_FEW = "pmod(hash(doc_id), 16) = 0"  # for the warm-up: every worker has loaded its model afterwards
EXCLUDES = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"


def spark(more: dict[str, str] | None = None) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else the workers are whatever python3 is on PATH
    builder = SparkSession.builder.appName("benchmark")
    for key, value in {**local_conf(), **ours(), **(more or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def local_conf() -> dict[str, str]:
    lines = (ROOT / "conf/spark/local.conf").read_text().splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {key: value.strip() for key, value in pairs}


def ours() -> dict[str, str]:
    return {
        "spark.driver.extraJavaOptions": "-XX:ReservedCodeCacheSize=256m",  # hot loops pay for the optimising compiler
        "spark.master": f"local[{CORES},4]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.jars.packages": PACKAGE,
        "spark.jars.excludes": EXCLUDES,
    }
