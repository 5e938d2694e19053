from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

from daybreak.score.windows import gather


def frame(*texts: str) -> pd.DataFrame:
    return pd.DataFrame({"text": list(texts)}, index=pd.RangeIndex(len(texts)))


@pytest.mark.parametrize(
    ("rows", "max_rows", "expected"),
    [
        ([], 4, []),
        ([0, 0], 4, []),
        ([2, 0, 2, 1], 4, [4, 1]),
        ([3, 3], 4, [3, 3]),  # frames are not cut
        ([9, 1], 4, [9, 1]),
        ([1, 1, 1], 8, [3]),
    ],
)
def test_frames_are_gathered_up_to_the_rows_of_a_window(rows: list[int], max_rows: int, expected: list[int]) -> None:
    windows = list(gather((frame(*("ab" * n)[:n]) for n in rows), max_rows=max_rows))
    assert [len(window) for window in windows] == expected
    assert all(window.index.equals(pd.RangeIndex(len(window))) for window in windows)


def test_order_and_values_are_kept_across_frames() -> None:
    (window,) = gather([frame("a", "b"), frame("c")], max_rows=10)
    assert window["text"].tolist() == ["a", "b", "c"]


def test_long_texts_close_a_window_and_the_next_frame_is_not_pulled_for_it() -> None:
    pulled: list[int] = []

    def frames() -> list[pd.DataFrame]:
        for i, one in enumerate([frame("x" * 1000), frame("y" * 1000), frame("z"), frame("z")]):
            pulled.append(i)
            yield one  # type: ignore[misc]

    windows = gather(frames(), max_rows=10, max_bytes=2 * (1000 + sys.getsizeof("") + 8))
    assert next(windows)["text"].str.len().tolist() == [1000, 1000]
    assert pulled == [0, 1]
    assert [len(window) for window in windows] == [2]


@pytest.mark.parametrize(
    "cell",
    [
        np.zeros(10_000),
        np.zeros(20_000)[::2],
        [0.5] * 3_334,
        {"a": np.zeros(10_000)},
        [{"a": "x" * 40_000}, {"a": "x" * 40_000}],
        np.array([np.zeros(5_000), np.zeros(5_000)]),
    ],
    ids=["array", "view", "list", "struct", "structs", "rows"],
)
def test_what_arrays_and_structs_hold_counts(cell: Any) -> None:
    frames = (pd.DataFrame({"v": pd.Series([cell] * 10, dtype=object)}) for _ in range(5))  # 800 kB each
    windows = gather(frames, max_rows=8_192, max_bytes=2 * 2**20)
    assert [len(window) for window in windows] == [20, 20, 10]
