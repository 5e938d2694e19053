"""Sentence embeddings from any local Hugging Face encoder: mean pooling under the mask, scaled to length
1."""

from __future__ import annotations

import itertools
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.pyfunc.model import PythonModel

from daybreak.score.batches import plan_batches

__all__ = ["Encoded", "TextEmbedder", "log_text_embedder"]

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

DEFAULT_MAX_LENGTH = 256
_PREDICT_TOKENS = 2_048
_PRECISIONS = ("fp32", "bf16", "auto")


@dataclass(frozen=True)
class Encoded:
    """Tokenised rows: row i has ``ids[starts[i] : starts[i] + sizes[i]]``, special tokens included.

    ``truncated`` counts the rows that were longer than the model reads.
    """

    ids: Array
    starts: Array
    sizes: Array
    truncated: int


class TextEmbedder(PythonModel):
    """One text column in, one ``array<float>`` column out; staged, and a plain pyfunc as well.

    Beside the four stages it has ``encode`` and ``collate``, which the pipeline prefers: rows are tokenised
    once, to size them, and batches are then only padded. Empty and blank texts are scored like any other. A
    null text is no input for it: the pipeline refuses the row, and ``predict`` raises ValueError.

    Args:
        text: the input column.
        output: the output column.
        max_length: tokens read of each text, the rest is cut off; None takes the model's own limit.
    """

    def __init__(self, *, text: str = "text", output: str = "embedding", max_length: int | None = None) -> None:
        self.text = text
        self.output = output
        self.max_length = max_length
        self.device: str | None = None
        self._model: Any = None
        self._tokenizer: Any = None
        self._pad = 0

    # -- loading

    def load_context(self, context: Any) -> None:
        """Read tokenizer and weights from the artifact ``model``; the device is chosen at first use."""
        folder = Path(context.artifacts["model"])
        self.max_length = self.max_length or own_max_length(folder)
        self._tokenizer, self._pad = _tokenizer(folder, self.max_length)
        self._model = _encoder(folder)

    def place(self, *, device: str | None = None, precision: str = "fp32") -> None:
        """Move the model to ``device`` (None: a GPU if there is one) in ``precision`` (fp32, bf16 or auto).

        Raises:
            ValueError: the precision is unknown.
        """
        import torch

        if precision not in _PRECISIONS:
            raise ValueError(f"precision is {precision!r}; allowed are {', '.join(_PRECISIONS)}")
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        halved = precision == "bf16" or (precision == "auto" and _has_bf16(self.device))
        self._model = self._model.to(self.device, torch.bfloat16 if halved else torch.float32)
        # On a GPU the processor's cores are free to tokenise; on a CPU the model has them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", str(self.device != "cpu").lower())

    # -- stages

    def encode(self, rows: pd.DataFrame) -> Encoded:
        """Tokenise each row once. ``sizes`` are exact, int64[n], at most ``max_length``."""
        texts = _texts(rows[self.text], self.text)
        encodings = self._tokenizer.encode_batch_fast(texts)
        sizes = np.fromiter((len(one) for one in encodings), dtype=np.int64, count=len(encodings))
        flat = itertools.chain.from_iterable(one.ids for one in encodings)
        ids = np.fromiter(flat, dtype=np.int32, count=int(sizes.sum()))
        truncated = sum(1 for one in encodings if one.overflowing)
        return Encoded(ids, np.cumsum(sizes) - sizes, sizes, truncated)

    def collate(self, encoded: Encoded, rows: Array) -> tuple[Any, Any]:
        """Those rows (int64) padded to the longest: token ids and mask, int64[n, longest] tensors."""
        import torch

        sizes = encoded.sizes[rows]
        mask = np.arange(sizes.max(initial=0)) < sizes[:, None]
        spots = np.concatenate([np.arange(s, s + k) for s, k in zip(encoded.starts[rows], sizes, strict=True)])
        ids = np.full(mask.shape, self._pad, dtype=np.int64)
        ids[mask] = encoded.ids[spots]
        return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))

    def size(self, rows: pd.DataFrame) -> Array:
        """Tokens of each row, int64[n]."""
        return self.encode(rows).sizes

    def preprocess(self, rows: pd.DataFrame) -> tuple[Any, Any]:
        """Token ids and mask, int64[n, longest] tensors."""
        return self.collate(self.encode(rows), np.arange(len(rows)))

    def forward(self, batch: tuple[Any, Any]) -> Array:
        """Unit vectors, float32[n, width], on the host: it returns when the device is done."""
        import torch

        ids, mask = (part.to(self._placed()) for part in batch)
        with torch.inference_mode():
            states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            weights = mask.unsqueeze(-1).float()
            pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            vectors: Array = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
        return vectors

    def postprocess(self, output: Array) -> pd.DataFrame:
        """One float32[width] a row, under the output column's name."""
        return pd.DataFrame({self.output: list(output)})

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """The same vectors through plain ``mlflow.pyfunc``: sorted, batched, and put back in order."""
        encoded = self.encode(model_input)
        batches = plan_batches(encoded.sizes, tokens=_PREDICT_TOKENS, max_rows=_PREDICT_TOKENS)
        vectors: list[Any] = [None] * len(model_input)
        for rows in batches:
            for row, vector in zip(rows, self.forward(self.collate(encoded, rows)), strict=True):
                vectors[row] = vector
        return pd.DataFrame({self.output: vectors}, index=model_input.index)

    def _placed(self) -> str:
        if self.device is None:
            self.place()
        return str(self.device)


def own_max_length(folder: Path) -> int:
    """The limit that sentence-transformers stored beside the model, else 256 tokens."""
    config = folder / "sentence_bert_config.json"
    if not config.is_file():
        return DEFAULT_MAX_LENGTH
    return int(json.loads(config.read_text()).get("max_seq_length") or DEFAULT_MAX_LENGTH)


def _tokenizer(folder: Path, max_length: int) -> tuple[Any, int]:
    """The Rust tokenizer, set to truncate and not to pad, and its padding id."""
    from transformers import AutoTokenizer

    wrapper = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    fast = getattr(wrapper, "backend_tokenizer", None)
    if fast is None:
        raise ValueError(f"the model in {folder} has no fast tokenizer (tokenizer.json)")
    fast.enable_truncation(max_length)
    fast.no_padding()
    return fast, int(wrapper.pad_token_id or 0)


def _encoder(folder: Path) -> Any:
    import torch
    from transformers import AutoModel
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return AutoModel.from_pretrained(str(folder), local_files_only=True, dtype=torch.float32).eval()


def _has_bf16(device: str) -> bool:
    """Whether bfloat16 is faster here than float32."""
    import torch

    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, probe, bool)()) for probe in probes)


def _texts(column: pd.Series[Any], name: str) -> list[str]:
    texts = column.to_list()
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"column {name!r} holds {text!r} in row {i}, and the model embeds text only")
    return texts


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
    info = mlflow.pyfunc.log_model(
        name=name,
        python_model=TextEmbedder(text=text, max_length=max_length),
        artifacts={"model": str(Path(model_dir).absolute())},
        signature=_signature(text),
        input_example=pd.DataFrame({text: ["Every row has its vector by daybreak."]}),
        pip_requirements=_requirements(),
        registered_model_name=registered_model_name,
    )
    if registered_model_name and alias:
        client = mlflow.MlflowClient()
        client.set_registered_model_alias(registered_model_name, alias, info.registered_model_version)
    return info


def _signature(text: str) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types.schema import Array as ArrayType
    from mlflow.types.schema import ColSpec, DataType, Schema

    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string, text)]),
        outputs=Schema([ColSpec(ArrayType(DataType.float), "embedding")]),
    )


def _requirements() -> list[str]:
    from importlib.metadata import version

    return [f"{package}=={version(package).split('+')[0]}" for package in ("torch", "transformers", "tokenizers")]
