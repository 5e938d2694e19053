"""Sentence embeddings from any local Hugging Face encoder: mean pooling under the mask, scaled to length 1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd

from daybreak.models.text_encoder import Encoded, TextEncoder, log_encoder, own_max_length

__all__ = ["Encoded", "TextEmbedder", "log_text_embedder", "own_max_length"]


class TextEmbedder(TextEncoder):
    """One text column in, one ``array<float>`` column out; staged, and a plain pyfunc as well.

    Args:
        text: the input column.
        output: the output column.
        max_length: tokens read of each text, the rest is cut off; None takes the model's own limit.
    """

    def __init__(self, *, text: str = "text", output: str = "embedding", max_length: int | None = None) -> None:
        super().__init__(text=text, max_length=max_length)
        self.output = output

    def _network(self, folder: Path) -> Any:
        import torch
        from transformers import AutoModel

        return AutoModel.from_pretrained(str(folder), local_files_only=True, dtype=torch.float32).eval()

    def _head(self, output: Any, mask: Any) -> Any:
        """Unit vectors, float32[n, width]."""
        import torch

        weights = mask.unsqueeze(-1).float()
        pooled = (output.last_hidden_state.float() * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(pooled, dim=1)

    def postprocess(self, output: Any) -> pd.DataFrame:
        """One float32[width] a row, under the output column's name."""
        return pd.DataFrame({self.output: list(output.numpy())})


def log_text_embedder(
    model_dir: str | os.PathLike[str],
    *,
    name: str = "text-embedder",
    registered_model_name: str | None = None,
    alias: str | None = None,
    max_length: int | None = None,
    text: str = "text",
) -> Any:
    """Log a local Hugging Face encoder as a ``TextEmbedder``; returns MLflow's ModelInfo.

    It is logged with signature, input example and requirements, and loads wherever ``daybreak`` is
    importable. With ``registered_model_name`` a version is registered, and ``alias`` is pointed at it.
    """
    from mlflow.types.schema import Array as ArrayType
    from mlflow.types.schema import ColSpec, DataType

    return log_encoder(
        TextEmbedder(text=text, max_length=max_length),
        model_dir,
        outputs=[ColSpec(ArrayType(DataType.float), "embedding")],
        name=name,
        registered_model_name=registered_model_name,
        alias=alias,
    )
