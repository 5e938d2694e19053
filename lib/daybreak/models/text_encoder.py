"""What text models have in common: a local Hugging Face encoder, tokenised once a row, padded, on any device."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.pyfunc.model import PythonModel

from daybreak.score import device as devices
from daybreak.score.batches import plan_batches

__all__ = ["EXAMPLE", "Encoded", "TextEncoder", "log_encoder", "own_max_length"]

Array = np.ndarray[Any, Any]

DEFAULT_MAX_LENGTH = 256
_UNLIMITED = 1_000_000  # and more, up to 1e30, is what tokenizers write who know no limit
# Of several lengths: bf16 is compared with fp32 on them.
EXAMPLE = (
    "Every row has its score by daybreak.",
    "",
    "Batches are cut by tokens, not by rows, over a window of rows that are sorted by their length. " * 3,
    "A shard that has its receipt is done; the others are scored when the same command runs again. " * 12,
)
_PREDICT_TOKENS = 2_048
_CHUNK = 256  # rows that are tokenised together: an encoding is some fifty times as large as its ids
_CHARS_A_TOKEN = 16  # read of a long text at first; twice what languages without spaces need


@dataclass(frozen=True)
class Encoded:
    """Tokenised rows: row i has ``ids[starts[i] : starts[i] + sizes[i]]``, special tokens included.

    ``truncated`` counts the rows that were longer than the model reads.
    """

    ids: Array
    starts: Array
    sizes: Array
    truncated: int


class TextEncoder(PythonModel):
    """One text column in; what comes out is the subclass's, in ``_network``, ``_head`` and ``postprocess``.

    Beside the four stages it has ``encode`` and ``collate``, which the pipeline prefers: rows are tokenised
    once, to size them, and batches are then only padded. Empty and blank texts are scored like any other. A
    null text is no input for it: the pipeline refuses the row, and ``predict`` raises ValueError.

    Args:
        text: the input column.
        max_length: tokens read of each text, the rest is cut off; None takes the model's own limit, or 256 if it has
            none.
    """

    tolerance: Mapping[str, float] = MappingProxyType({"cosine": 0.995, "difference": 0.1})

    def __init__(self, *, text: str = "text", max_length: int | None = None) -> None:
        self.text = text
        self.max_length = max_length
        self.device: str | None = None
        self._model: Any = None
        self._tokenizer: Any = None
        self._pad = 0

    # -- loading

    def load_context(self, context: Any) -> None:
        """Read tokenizer and weights from the artifact ``model``; the device is chosen at first use."""
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        folder = Path(context.artifacts["model"])
        self.max_length = self.max_length or own_max_length(folder)
        self._tokenizer, self._pad = _tokenizer(folder, self.max_length)
        self._model = self._network(folder)

    def place(self, *, device: str | None = None, precision: str = "fp32") -> None:
        """Move the model to ``device`` (None: a GPU if there is one) in ``precision`` (fp32, bf16 or fp16).

        Raises:
            ModelLoadError: the precision is unknown, or not for this device.
        """
        self.device = device or devices.choose()
        self._model = self._model.to(self.device, devices.dtype(precision, self.device))
        # On a GPU the processor's cores are free to tokenise; on a CPU the model has them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", str(self.device != "cpu").lower())

    # -- stages

    def encode(self, rows: pd.DataFrame) -> Encoded:
        """Tokenise each row once. ``sizes`` are exact, int64[n], at most ``max_length``."""
        texts = _texts(rows[self.text], self.text)
        chunks = [self._tokenised(texts[start : start + _CHUNK]) for start in range(0, len(texts), _CHUNK)]
        ids = [one for chunk, _ in chunks for one in chunk]
        sizes = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        flat = np.concatenate(ids) if ids else np.empty(0, dtype=np.int32)
        return Encoded(flat, np.cumsum(sizes) - sizes, sizes, sum(cut for _, cut in chunks))

    def _tokenised(self, texts: list[str]) -> tuple[list[Array], int]:
        """The ids of each text, int32, and how many texts were cut off.

        Of a long text the beginning is read first: nearly always it has all the tokens that the model reads. It ends
        at a space, where words and so tokens end, too.
        """
        heads = [_head(text, _CHARS_A_TOKEN * int(self.max_length or 0)) for text in texts]
        found = self._tokenizer.encode_batch_fast(heads)
        for i, (text, head) in enumerate(zip(texts, heads, strict=True)):
            if len(head) < len(text) and not found[i].overflowing:
                found[i] = self._tokenizer.encode_batch_fast([text])[0]
        cut = sum(1 for one in found if one.overflowing)
        return [np.asarray(one.ids, dtype=np.int32) for one in found], cut

    def collate(self, encoded: Encoded, rows: Array) -> Any:
        """Those rows (int64) padded to the longest, token ids and mask, int64[n, longest], on their way to the
        device."""
        import torch

        sizes = encoded.sizes[rows]
        mask = np.arange(sizes.max(initial=0)) < sizes[:, None]
        spots = np.concatenate([np.arange(s, s + k) for s, k in zip(encoded.starts[rows], sizes, strict=True)])
        ids = np.full(mask.shape, self._pad, dtype=np.int64)
        ids[mask] = encoded.ids[spots]
        parts = (torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64)))
        return devices.upload(parts, self._placed())

    def size(self, rows: pd.DataFrame) -> Array:
        """Tokens of each row, int64[n]."""
        return self.encode(rows).sizes

    def preprocess(self, rows: pd.DataFrame) -> Any:
        """As ``collate``."""
        return self.collate(self.encode(rows), np.arange(len(rows)))

    def forward(self, batch: Any) -> Any:
        """The head's result, float32[n, width], a tensor; from a GPU on its way to the host."""
        import torch

        ids, mask = batch()
        with torch.inference_mode():
            return devices.download(self._head(self._model(input_ids=ids, attention_mask=mask), mask).float())

    def postprocess(self, output: Any) -> pd.DataFrame:
        """n rows with the signature's outputs."""
        raise NotImplementedError

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """The same scores through plain ``mlflow.pyfunc``: sorted, batched, and put back in order."""
        import torch

        encoded = self.encode(model_input)
        batches = plan_batches(encoded.sizes, tokens=_PREDICT_TOKENS, max_rows=_PREDICT_TOKENS)
        if not batches:
            return self.postprocess(torch.empty(0, 0)).set_index(model_input.index)
        outputs = torch.cat([devices.on_host(self.forward(self.collate(encoded, rows))) for rows in batches])
        return self.postprocess(outputs[np.argsort(np.concatenate(batches))]).set_index(model_input.index)

    # -- the subclass's

    def _network(self, folder: Path) -> Any:
        """The torch module with its weights, in float32, on the CPU."""
        raise NotImplementedError

    def _head(self, output: Any, mask: Any) -> Any:
        """[n, width] of what the network gives for [n, longest] tokens under a mask."""
        raise NotImplementedError

    def _placed(self) -> str:
        if self.device is None:
            self.place()
        return str(self.device)


def own_max_length(folder: Path) -> int:
    """The tokens that a model reads: what sentence-transformers stored beside it, else the smaller of the tokenizer's
    limit and the positions that the model has, else 256."""
    stored = _read(folder / "sentence_bert_config.json").get("max_seq_length")
    tokenizer = _read(folder / "tokenizer_config.json").get("model_max_length")
    positions = _read(folder / "config.json").get("max_position_embeddings")
    told = [int(limit) for limit in (tokenizer, positions) if limit and 0 < limit < _UNLIMITED]
    return int(stored or min(told, default=DEFAULT_MAX_LENGTH))


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.is_file() else {}


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


def _texts(column: pd.Series[Any], name: str) -> list[str]:
    texts = column.to_list()
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"column {name!r} holds {text!r} in row {i}, and the model reads text only")
    return texts


def _head(text: str, chars: int) -> str:
    """The text, or its beginning up to a space if it is longer; a text without one stays whole."""
    if len(text) <= chars:
        return text
    end = text.rfind(" ", 1, chars)
    return text if end < 0 else text[:end]


def log_encoder(
    model: TextEncoder,
    model_dir: str | os.PathLike[str],
    *,
    outputs: Sequence[Any],
    name: str,
    registered_model_name: str | None = None,
    alias: str | None = None,
) -> Any:
    """Log a text model with the files of ``model_dir``; returns MLflow's ModelInfo.

    It is logged with signature, input example and requirements, and loads wherever ``daybreak`` is
    importable. With ``registered_model_name`` a version is registered, and ``alias`` is pointed at it.
    """
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, DataType, Schema

    inputs = Schema([ColSpec(DataType.string, model.text)])
    info = mlflow.pyfunc.log_model(
        name=name,
        python_model=model,
        artifacts={"model": str(Path(model_dir).absolute())},
        signature=ModelSignature(inputs=inputs, outputs=Schema(list(outputs))),
        input_example=pd.DataFrame({model.text: list(EXAMPLE)}),
        pip_requirements=_requirements(),
        registered_model_name=registered_model_name,
    )
    if registered_model_name and alias:
        client = mlflow.MlflowClient()
        client.set_registered_model_alias(registered_model_name, alias, info.registered_model_version)
    return info


def _requirements() -> list[str]:
    from importlib.metadata import version

    return [f"{package}=={version(package).split('+')[0]}" for package in ("torch", "transformers", "tokenizers")]
