"""The file system of the state, through Hadoop's client: Spark's own credentials, on any store, and no Spark job.

What a driver must do while all executors are busy (a heartbeat, progress) may not wait for a task slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Stored:
    path: str
    name: str
    size: int


class Storage:
    """Files below one folder. Paths are absolute, or URIs that Hadoop knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = root.rstrip("/")
        self._jvm: Any = spark._jvm
        self._path = self._class("org.apache.hadoop.fs.Path")
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()
        self._fs = self._path(self.at()).getFileSystem(self._conf)

    def _class(self, name: str) -> Any:
        """By the whole name at once: each part that is asked for alone is looked for in all jars of the class path."""
        return getattr(self._jvm, name)

    def at(self, *parts: str) -> str:
        return "/".join((self.root, *(parts or ("",))))  # a bucket's root needs its slash: it has no other name

    def exists(self, *parts: str) -> bool:
        return bool(self._fs.exists(self._path(self.at(*parts))))

    def holds_anything(self) -> bool:
        """Whether the folder is there and not empty."""
        return bool(self._listed())

    def files(self, *parts: str) -> list[Stored]:
        """The files directly in a folder, without hidden ones; empty where there is no such folder."""
        return [_stored(status) for status in self._listed(*parts) if _is_data(status)]

    def folders(self, *parts: str) -> list[Stored]:
        """The folders directly in a folder; empty where there is no such folder."""
        return [_stored(status) for status in self._listed(*parts) if status.isDirectory()]

    def _listed(self, *parts: str) -> list[Any]:
        folder = self._path(self.at(*parts))
        return list(self._fs.listStatus(folder)) if self._fs.exists(folder) else []

    def read_text(self, *parts: str) -> str | None:
        """A small file's text, or None where there is no such file."""
        path = self._path(self.at(*parts))
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            return str(self._class("org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, text: str, *parts: str) -> None:
        stream = self._fs.create(self._path(self.at(*parts)), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self, *parts: str) -> None:
        self._fs.delete(self._path(self.at(*parts)), True)

    def largest(self, path: str, columns: Iterable[str]) -> dict[str, int]:
        """The largest value of some integer columns of a Parquet file, from its footer alone."""
        input_file = self._class("org.apache.parquet.hadoop.util.HadoopInputFile")
        reader_class = self._class("org.apache.parquet.hadoop.ParquetFileReader")
        reader = reader_class.open(input_file.fromPath(self._path(path), self._conf))
        try:
            wanted = set(columns)
            return {name: value for name, value in _maxima(reader.getFooter()) if name in wanted}
        finally:
            reader.close()


def _maxima(footer: Any) -> Iterator[tuple[str, int]]:
    for block in footer.getBlocks():
        for column in block.getColumns():
            statistics = column.getStatistics()
            if statistics.hasNonNullValue():
                yield column.getPath().toDotString(), statistics.genericGetMax()


def _stored(status: Any) -> Stored:
    path = status.getPath()
    return Stored(path.toString(), path.getName(), status.getLen())


def _is_data(status: Any) -> bool:
    return status.isFile() and not status.getPath().getName().startswith(("_", "."))
