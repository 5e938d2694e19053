"""The fixtures of this folder, which tests/cluster uses too."""

from local_spark import job, save_model, spark, table

__all__ = ["job", "save_model", "spark", "table"]
