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
    """One text column in; ``label`` (string) and ``score`` (float) out: the likeliest class, and its probability.

    Labels are the model's own, from ``id2label`` in its config, and so is what makes a score of a logit, as in
    transformers' own pipeline: softmax over the classes; for one class, or for independent ones (``problem_type`` is
    ``multi_label_classification``), the sigmoid of each; for a regression the logit itself.
    """

    tolerance: Mapping[str, float] = MappingProxyType({"cosine": 0.999, "difference": 0.02})

    def __init__(self, *, text: str = "text", max_length: int | None = None) -> None:
        super().__init__(text=text, max_length=max_length)
        self._labels: Any = None
        self._scores: str = "softmax"

    def _network(self, folder: Path) -> Any:
        import torch
        from transformers import AutoModelForSequenceClassification

        model = AutoModelForSequenceClassification.from_pretrained(
            str(folder), local_files_only=True, dtype=torch.float32
        ).eval()
        self._scores = _function(model.config)
        names = model.config.id2label
        self._labels = np.array([names[i] for i in range(len(names))], dtype=object)
        return model

    def _head(self, output: Any, mask: Any) -> Any:
        """Scores, [n, classes]."""
        logits = output.logits.float()
        if self._scores == "softmax":
            return logits.softmax(dim=1)
        return logits.sigmoid() if self._scores == "sigmoid" else logits

    def postprocess(self, output: Any) -> pd.DataFrame:
        """``label`` and ``score`` of each row's likeliest class."""
        scores, classes = output.numpy().max(axis=1), output.numpy().argmax(axis=1)
        return pd.DataFrame({"label": self._labels[classes], "score": scores})


def _function(config: Any) -> str:
    """What transformers' pipeline applies to the logits of such a model."""
    if config.problem_type == "regression":
        return "none"
    independent = config.problem_type == "multi_label_classification" or config.num_labels == 1
    return "sigmoid" if independent else "softmax"


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
