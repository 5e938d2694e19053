"""The Spark session of a run: the user's, with settings of its own that no other query sees."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from daybreak.errors import PreflightError, first_line
from daybreak.settings import settings

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}  # Spark's defaults
MANY_ROWS = 100_000


def current(name: str) -> SparkSession:
    """The session that is there, or a new one as ``spark-submit`` configured it, with workers of this Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        return SparkSession.builder.appName(name).getOrCreate()
    except PySparkRuntimeError as error:
        raise PreflightError(
            f"Spark's JVM did not start: {first_line(error)}",
            fix="install Java 17 or newer and set JAVA_HOME to it; what the JVM said is above",
        ) from None


def own(spark: SparkSession, *, batch_rows: int) -> SparkSession:
    """A session with the same catalog and settings as ``spark``, and the run's on top.

    Raises PreflightError when the session has no Delta Lake.
    """
    missing = [key for key, value in _DELTA.items() if value not in (spark.conf.get(key, "") or "")]
    if missing:
        raise PreflightError(
            f"this Spark session is not set up for Delta Lake: {', '.join(missing)} is not set",
            fix="start it with ./spark-submit.sh, or with the settings of conf/spark/local.conf",
        )
    session = spark.newSession()
    as_new = dict(session.conf.getAll)
    for key, value in dict(spark.conf.getAll).items():
        if as_new.get(key) != value and session.conf.isModifiable(key):
            session.conf.set(key, value)
    session.catalog.setCurrentCatalog(spark.catalog.currentCatalog())
    session.catalog.setCurrentDatabase(spark.catalog.currentDatabase())
    for key, value in _settings(batch_rows).items():
        session.conf.set(key, value)
    return session


@contextmanager
def compiled(own: SparkSession, *, rows: int = MANY_ROWS) -> Iterator[None]:
    """Where that pays, let Spark write code for a run's queries over so many rows, if the application lets it."""
    application = own.sparkContext.getConf()
    as_started = {key: str(application.get(key, default)) for key, default in _COMPILED.items()}
    with settings(own, as_started if rows >= MANY_ROWS else {}):
        yield


@contextmanager
def restored() -> Iterator[None]:
    """Leave the user's active session as it was: pyspark makes each session active that creates a DataFrame."""
    before = SparkSession.getActiveSession()
    try:
        yield
    finally:
        if before is not None:
            SparkSession._activeSession = before
            jvm_class = SparkSession._get_j_spark_session_class(before._jvm)
            jvm_class.setActiveSession(before._jsparkSession)


def _settings(batch_rows: int) -> dict[str, str]:
    return {
        # a window is one Arrow batch, which is sorted by length as a whole; where its bytes would be many, several
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(batch_rows),
        "spark.sql.execution.arrow.maxBytesPerBatch": "32m",
        # integers with nulls stay integers on their way to a worker
        "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "true",
        # scores do not depend on the time zone of whoever runs the job
        "spark.sql.session.timeZone": "UTC",
        # staging never changes, so MERGE need not copy its source first
        "spark.databricks.delta.merge.materializeSource": "none",
        # of some 50 queries a run three or four go over the rows, in compiled(); for the others, on Delta's logs and
        # our own small tables, writing and compiling code was half of what the JVM did
        **_INTERPRETED,
        # in compiled() too a query looks at Delta's log, which has more columns than Spark's limit of 100: past it,
        # each task writes the code of its projections anew
        "spark.sql.codegen.maxFields": "200",
        # a window is one partition of the output, and all rows of a MERGE would go through one task
        "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    }
