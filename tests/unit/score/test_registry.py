from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import mlflow
import pandas as pd
import pytest
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel

from daybreak.errors import ModelLoadError, PreflightError
from daybreak.score.cache import fetch
from daybreak.score.model import load
from daybreak.score.registry import resolve


@pytest.fixture(scope="module")
def registry(double: PythonModel, double_signature: ModelSignature, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registry with the model ``double``: versions 1 and 2, alias ``champion`` on 1."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.create_experiment("daybreak", artifact_location=f"file://{folder}/artifacts")
    with mlflow.start_run(experiment_id=experiment):
        for _ in range(2):
            mlflow.pyfunc.log_model(
                name="double",
                python_model=double,
                signature=double_signature,
                pip_requirements=[],
                registered_model_name="double",
            )
    mlflow.MlflowClient().set_registered_model_alias("double", "champion", "1")
    return uri


def test_an_alias_a_version_and_latest_mean_a_version(registry: str) -> None:
    told = {}
    for uri in ("models:/double@champion", "models:/double/1", "models:/double/latest"):
        pin, spec = resolve(uri, tracking_uri=registry)
        told[uri] = (pin.resolved, pin.name, pin.version)
        assert pin.uri == uri
        assert spec.output_ddl == "`prediction` BIGINT"
    assert told["models:/double@champion"] == told["models:/double/1"] == ("models:/double/1", "double", "1")
    assert told["models:/double/latest"] == ("models:/double/2", "double", "2")


def test_versions_have_digests_of_their_own_which_stay(registry: str) -> None:
    first, _ = resolve("models:/double/1", tracking_uri=registry)
    again, _ = resolve("models:/double@champion", tracking_uri=registry)
    second, _ = resolve("models:/double/2", tracking_uri=registry)
    assert first.digest == again.digest != second.digest


def test_logged_models_and_runs_resolve_to_the_same_files(registry: str) -> None:
    version = mlflow.MlflowClient(registry).get_model_version("double", "2")
    by_version, _ = resolve("models:/double/2", tracking_uri=registry)
    by_id, _ = resolve(version.source, tracking_uri=registry)
    assert version.source == f"models:/{by_id.version}"
    assert (by_id.digest, by_id.name) == (by_version.digest, "double")
    by_run, _ = resolve(f"runs:/{version.run_id}/double", tracking_uri=registry)
    assert (by_run.version, by_run.digest) == (version.run_id, by_version.digest)  # the newest of that name
    assert Path(fetch(by_run, "unused") / "MLmodel").is_file()


def test_a_path_is_pinned_by_its_content(saved: Path) -> None:
    pin, _ = resolve(str(saved))
    assert (pin.resolved, pin.name) == (str(saved), "model")
    assert pin.version == f"sha256:{pin.digest[:12]}"
    assert resolve(f"file://{saved}")[0].digest == pin.digest


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("models:/double@night", ["'double'", "'night'", "champion (version 1)"]),
        ("models:/double/9", ["no version 9", "1, 2"]),
        ("models:/treble/1", ["'treble'", "there are: double"]),
        ("models:/treble@champion", ["'treble'", "there are: double"]),
        ("models:/double/Production", ["'Production'", "models:/double@<alias>"]),
        ("models:/double", ["'double'", "models:/double@<alias>"]),
        ("runs:/0123456789abcdef/double", ["'0123456789abcdef'"]),
        ("/no/such/folder", ["/no/such/folder is absent"]),
    ],
)
def test_what_does_not_exist_is_named_beside_what_does(registry: str, uri: str, told: list[str]) -> None:
    with pytest.raises(ModelLoadError) as caught:
        resolve(uri, tracking_uri=registry)
    for part in told:
        assert part in str(caught.value)


def test_a_folder_without_a_model_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no MLmodel file"):
        resolve(str(tmp_path))


def test_an_unreachable_registry_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ModelLoadError, match="models:/double@champion") as caught:
        resolve("models:/double@champion", tracking_uri="http://127.0.0.1:9")
    assert "MLFLOW_TRACKING_URI" in str(caught.value)


def test_a_model_without_a_signature_is_refused(double: PythonModel, tmp_path: Path) -> None:
    mlflow.pyfunc.save_model(str(tmp_path / "m"), python_model=double, pip_requirements=[])
    with pytest.raises(PreflightError, match="no signature"):
        resolve(str(tmp_path / "m"))


ODD = ("churn%20v2", "churn v2", "a#b", "a?b", "größe;x", "50%", "a+b&c", "a%2Fb")


@pytest.fixture(scope="module")
def marked(double_signature: ModelSignature, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers with the number in its artifact ``mark``."""

    class Marked(PythonModel):
        def load_context(self, context: Any) -> None:
            self.mark = int(Path(context.artifacts["mark"]).read_text())

        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return [self.mark] * len(model_input)

    folder = tmp_path_factory.mktemp("marked")
    (folder / "mark").write_text("1")
    options: dict[str, Any] = {"signature": double_signature, "pip_requirements": []}
    path = str(folder / "model")
    mlflow.pyfunc.save_model(path, python_model=Marked(), artifacts={"mark": str(folder / "mark")}, **options)
    return folder / "model"


@pytest.mark.parametrize("name", ODD)
def test_a_path_is_taken_letter_for_letter(name: str, marked: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in %41" / name
    shutil.copytree(marked, folder)
    (folder / "artifacts" / "mark").write_text("2")
    for decoy in {unquote(name), name.split("#")[0].split("?")[0]}:
        for parent in ("in A", "in %41"):
            if not (tmp_path / parent / decoy).exists():
                shutil.copytree(marked, tmp_path / parent / decoy)
    pin, spec = resolve(str(folder))
    assert (pin.artifact_uri, pin.name) == (str(folder), name)
    assert resolve(folder.as_uri())[0].digest == pin.digest  # encoded, as a URI is
    model = load(fetch(pin, tmp_path / "cache"), spec)
    assert model.forward(model.preprocess(pd.DataFrame({"x": [1]}))) == [2]


@pytest.mark.parametrize("tail", ["#2", "?v=2"])
def test_a_file_uri_with_a_mark_that_is_not_encoded_is_refused(tail: str, saved: Path) -> None:
    with pytest.raises(ModelLoadError, match="no file URI of this machine"):
        resolve(saved.as_uri() + tail)
    with pytest.raises(ModelLoadError, match="names a host"):
        resolve(f"file://elsewhere{saved}")


def test_a_logged_name_is_taken_letter_for_letter(registry: str) -> None:
    """Beside a run's model ``double``, ``double#2`` is another one, which there is not."""
    run_id = mlflow.MlflowClient(registry).get_model_version("double", "1").run_id
    with pytest.raises(ModelLoadError, match="double#2"):
        resolve(f"runs:/{run_id}/double#2", tracking_uri=registry)
