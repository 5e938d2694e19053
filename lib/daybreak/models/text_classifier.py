"""The class of a text and how sure it is, from any local Hugging Face sequence classifier."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from daybreak.models.text_encoder import TextEncoder, log_encoder

__all__ = ["TextClassifier", "log_text_classifier"]


class TextClassifier(TextEncoder):
    """One text column in; ``label`` (string) and ``score`` (float, its probability) out.

    Labels are the model's own, from ``id2label`` in its config.
    """

    tolerance: Mapping[str, float] = MappingProxyType({"cosine": 0.999, "difference": 0.02})

    def __init__(self, *, text: str = "text", max_length: int | None = None) -> None:
        super().__init__(text=text, max_length=max_length)
        self._labels: Any = None

    def _network(self, folder: Path) -> Any:
        import torch
        from transformers import AutoModelForSequenceClassification

        model = AutoModelForSequenceClassification.from_pretrained(
            str(folder), local_files_only=True, dtype=torch.float32
        ).eval()
        names = model.config.id2label
        self._labels = np.array([names[i] for i in range(len(names))], dtype=object)
        return model

    def _head(self, output: Any, mask: Any) -> Any:
        """Probabilities, [n, classes]."""
        return output.logits.float().softmax(dim=1)

    def postprocess(self, output: Any) -> pd.DataFrame:
        """``label`` and ``score`` of each row's likeliest class."""
        scores, classes = output.numpy().max(axis=1), output.numpy().argmax(axis=1)
        return pd.DataFrame({"label": self._labels[classes], "score": scores})


def log_text_classifier(
    model_dir: str | os.PathLike[str],
    *,
    name: str = "text-classifier",
    registered_model_name: str | None = None,
    alias: str | None = None,
    max_length: int | None = None,
    text: str = "text",
) -> Any:
    """Log a local Hugging Face sequence classifier as a ``TextClassifier``; returns MLflow's ModelInfo.

    See ``log_encoder`` for what it is logged with.
    """
    from mlflow.types.schema import ColSpec, DataType

    return log_encoder(
        TextClassifier(text=text, max_length=max_length),
        model_dir,
        outputs=[ColSpec(DataType.string, "label"), ColSpec(DataType.float, "score")],
        name=name,
        registered_model_name=registered_model_name,
        alias=alias,
    )
