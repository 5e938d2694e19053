"""A worker's memory does not grow with its shard. Each measurement is a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import daybreak

CODE = """if True:
    import sys, tracemalloc
    import numpy as np, pandas as pd
    from daybreak.score.pipeline import Pipeline
    from daybreak.score.signature import Field, ModelSpec
    from daybreak.score.windows import gather

    class Lengths:
        def size(self, rows):  # .str is what ties a column into a cycle
            return rows["text"].str.len().clip(upper=256).to_numpy(dtype=np.int64)

        def preprocess(self, rows):
            return rows["text"].to_list()

        def forward(self, batch):
            return batch

        def postprocess(self, output):
            return pd.DataFrame({"length": [len(text) for text in output]})

    def frames(rows, longest):
        for start in range(0, rows, 1000):
            texts = [f"{i:08}" * 512 for i in range(start, start + 1000)]
            if start == 0 and longest:
                texts[7] = "y" * longest
            yield pd.DataFrame({"text": texts})

    tracemalloc.start()
    rows, longest = map(int, sys.argv[1:])
    spec = ModelSpec((Field("text", "string"),), (Field("length", "long"),))
    windows = gather(frames(rows, longest), max_rows=8192, max_bytes=8 * 2**20)
    scored = sum(len(result.positions) for result in Pipeline(Lengths(), spec, tokens=65536).run(windows))
    assert scored == rows
    print(tracemalloc.get_traced_memory()[1])
"""


def peak_mb(rows: int, longest: int = 0) -> float:
    """Peak memory, of Python and numpy, of scoring texts of 4 kB, one of them ``longest`` characters."""
    command = [sys.executable, "-c", CODE, str(rows), str(longest)]
    environment = {"PYTHONPATH": str(Path(daybreak.__file__).parents[1])}
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return int(told.stdout) / 2**20


def test_peak_memory_is_flat_from_a_thousand_rows_to_a_hundred_thousand_and_with_one_of_ten_megabytes() -> None:
    assert peak_mb(1_000) < 100
    assert peak_mb(100_000, 10_000_000) < 100  # the texts are 410 MB
