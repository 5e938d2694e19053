"""The fixtures of this folder, which tests/cluster uses too."""

from local_spark import job, save_model, spark, table, tracking

__all__ = ["job", "save_model", "spark", "table", "tracking"]
