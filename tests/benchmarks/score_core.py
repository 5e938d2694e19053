"""The scoring core alone on whatever device is here: no Spark, no JVM, nothing written, a few minutes at most.

    python tests/benchmarks/score_core.py [--rows N] [--repeats 3] [--precision fp32] [--json FILE]

MiniLM on docstrings in windows of 8,192 rows, by turns with the limit: the same model, rows and budget in a bare loop.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from bench import Ground

os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).parents[2]
WINDOW = 8192
WARM_UP = 256


def main() -> None:
    asked = arguments()
    with tempfile.TemporaryDirectory() as folder:
        pin, spec = logged(Path(folder))
        precision, reason = asked.precision, "as asked for"
        if precision == "auto":
            from daybreak.score.precision import decide

            choice = decide(pin, spec, cache_dir=folder)
            precision, reason = choice.precision, choice.reason
        report = measured(pin, spec, precision, asked, cache_dir=folder)
    report = {"precision": f"{precision}: {reason}", **report}
    print("\n".join(f"{name:>22}  {value}" for name, value in report.items()))
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/benchmarks/score_core.py")
    parser.add_argument("--rows", type=int, help="documents; by default what the device does in about half a minute")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16", "fp16"))
    parser.add_argument("--json", type=Path, help="a file for the report")
    return parser.parse_args()


def logged(folder: Path) -> Any:
    """MiniLM as a TextEmbedder, through MLflow as any other."""
    import mlflow

    from daybreak.models.text_embedder import log_text_embedder
    from daybreak.score.registry import resolve

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("bench", artifact_location=f"file://{folder}/models"))
    return resolve(log_text_embedder(Ground(folder).weights).model_uri)


def measured(pin: Any, spec: Any, precision: str, asked: argparse.Namespace, *, cache_dir: str) -> dict[str, Any]:
    from daybreak.score import device
    from daybreak.score.model import load_cached

    model: Any = load_cached(pin, spec, cache_dir=cache_dir, precision=precision)
    texts = documents(asked.rows or (40_000 if model.device.startswith("cuda") else 1_500))
    learned = pipelined(model, spec, texts[:WARM_UP] * 4, None).learned  # the first tokens are the slowest
    runs: dict[str, list[float]] = {"core": [], "limit": []}
    for _ in range(asked.repeats):  # interleaved: what else the machine does meets them both
        runs["limit"].append(timed(lambda: bare(model, texts, learned.tokens)))
        runs["core"].append(timed(lambda: pipelined(model, spec, texts, learned)))
    stats = pipelined(model, spec, texts, learned).stats
    seconds, limit = median(runs["core"]), median(runs["limit"])
    peak = matmul_rate(model)
    return {
        "device": device.label(model.device),
        "documents": len(texts),
        "docs/s": round(len(texts) / seconds, 1),
        "docs/s of the limit": round(len(texts) / limit, 1),
        "of the limit": round(limit / seconds, 3),
        "spread of docs/s": [round(len(texts) / one, 1) for one in sorted(runs["core"], reverse=True)],
        "tokens/s": round(stats.tokens_useful / seconds),
        "budget": f"{learned.tokens} tokens{'' if learned.settled else ', still growing'}",
        "of the device's peak": round(flops(model, stats) / seconds / peak, 3),
        "peak, TFLOP/s": round(peak / 1e12, 3),
        "padding": round(stats.padding, 4),
        "device busy": round(stats.device_busy, 3),
        "truncated": stats.truncated,
    }


def documents(rows: int) -> list[str]:
    sys.path.insert(0, str(ROOT / "jobs"))
    from demo import corpus

    texts = [str(text) for text in pd.DataFrame(corpus.docs(rows, sources=corpus.installed_sources()))["text"]]
    return (texts * (rows // len(texts) + 1))[:rows]


def pipelined(model: Any, spec: Any, texts: list[str], learned: Any) -> Any:
    from daybreak.score.pipeline import Pipeline

    pipeline = Pipeline(model, spec, learned=learned)
    windows = (pd.DataFrame({"text": texts[i : i + WINDOW]}) for i in range(0, len(texts), WINDOW))
    if sum(len(result.positions) for result in pipeline.run(windows)) != len(texts):
        raise SystemExit("not every document was scored")
    return pipeline


def bare(model: Any, texts: list[str], tokens: int) -> None:
    """All documents in memory, sorted as one; the same tokenizer, network and budget."""
    from daybreak.score.batches import plan_batches
    from daybreak.score.device import on_host

    encoded = model.encode(pd.DataFrame({"text": texts}))
    for rows in plan_batches(encoded.sizes, tokens=tokens, max_rows=4096):
        on_host(model.forward(model.collate(encoded, rows))).numpy()


def timed(step: Callable[[], Any]) -> float:
    began = perf_counter()
    step()
    return perf_counter() - began


def matmul_rate(model: Any) -> float:
    """Floating point operations a second of the device's own matrix product, in the model's precision."""
    import torch

    size = 8192 if model.device.startswith("cuda") else 1024
    weight = next(model._model.parameters())
    a = torch.randn(size, size, device=weight.device, dtype=weight.dtype)
    best = 0.0
    for _ in range(12):
        began = perf_counter()
        (a @ a)[0, 0].item()  # which waits for the device
        best = max(best, 2 * size**3 / (perf_counter() - began))
    return best


def flops(model: Any, stats: Any) -> float:
    """What the tokens that were computed cost, padding included: each weight of the layers once a token, times two.
    Attention's own products are left out: for texts of some hundred tokens they are a few per cent."""
    weights = sum(one.numel() for one in model._model.encoder.parameters())
    return float(np.float64(2 * weights) * stats.tokens_computed)


if __name__ == "__main__":
    main()
