"""Frames off the wire gathered into windows, whose rows are sorted by length together."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["MAX_BYTES", "gather"]

MAX_BYTES = 64 * 2**20  # of a window; the pipeline has a few in memory at a time


def gather(frames: Iterable[pd.DataFrame], *, max_rows: int, max_bytes: int = MAX_BYTES) -> Iterator[pd.DataFrame]:
    """Windows of several frames each, in order, as long as they stay within both bounds; a frame beyond them is a
    window by itself. Frames without rows are left out.

    Arrow batches of long rows are short, since Spark bounds their bytes; sorted one by one they would pad badly.
    """
    held: list[pd.DataFrame] = []
    size = passed = 0
    for frame in frames:
        if not len(frame):
            continue
        weight = _bytes(frame)
        if held and (_rows(held) + len(frame) > max_rows or size + weight > max_bytes):
            yield _joined(held)
            held, size = [], 0
        held.append(frame)
        size, passed = size + weight, passed + weight
        if _rows(held) >= max_rows or size >= max_bytes:
            yield _joined(held)
            held, size = [], 0
        if passed >= max_bytes:
            # A model that says rows["text"].str ties the column into a cycle, which Python's collector frees late:
            # it counts objects, and these are few and large.
            gc.collect()
            passed = 0
    if held:
        yield _joined(held)


def _bytes(frame: pd.DataFrame) -> int:
    """Bytes of a frame, of what its arrays, structs and maps hold too, which pandas does not count."""
    return sum(
        int(column.memory_usage(index=False, deep=column.dtype != object))
        + (sum(map(_size, column)) if column.dtype == object else 0)
        for _, column in frame.items()
    )


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return sum(map(_size, value.tolist())) if value.dtype == object else value.nbytes
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else sys.getsizeof(value)


def _rows(frames: list[pd.DataFrame]) -> int:
    return sum(map(len, frames))


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
