from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel
from mlflow.types.schema import ColSpec, DataType, Schema

from daybreak.errors import ModelLoadError, PreflightError
from daybreak.score import model as models
from daybreak.score.model import ModelPin, PredictModel, fetch, load, load_cached, resolve

SIGNATURE = ModelSignature(inputs=Schema([ColSpec(DataType.long, "x")]), outputs=Schema([ColSpec(DataType.long)]))


class Double(PythonModel):
    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return model_input["x"] * 2


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registry with the model ``double``: versions 1 and 2, alias ``champion`` on 1."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.create_experiment("daybreak", artifact_location=f"file://{folder}/artifacts")
    with mlflow.start_run(experiment_id=experiment):
        for _ in range(2):
            mlflow.pyfunc.log_model(
                name="double",
                python_model=Double(),
                signature=SIGNATURE,
                pip_requirements=[],
                registered_model_name="double",
            )
    mlflow.MlflowClient().set_registered_model_alias("double", "champion", "1")
    return uri


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    mlflow.pyfunc.save_model(str(path), python_model=Double(), signature=SIGNATURE, pip_requirements=[])
    return path


# -- resolve


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


def test_a_model_without_a_signature_is_refused(tmp_path: Path) -> None:
    mlflow.pyfunc.save_model(str(tmp_path / "m"), python_model=Double(), pip_requirements=[])
    with pytest.raises(PreflightError, match="no signature"):
        resolve(str(tmp_path / "m"))


# -- fetch


def remote_pin(digest: str = "d" * 64) -> ModelPin:
    return ModelPin("models:/m/1", "models:/m/1", "m", "1", "s3://bucket/m", digest)


class SlowDownload:
    """Writes a model in many small steps, and a line in ``log`` for each call and its end."""

    def __init__(self, log: Path, steps: int = 20) -> None:
        self.log, self.steps = log, steps

    def __call__(self, pin: ModelPin, target: Path) -> None:
        self._note("began")
        (target / "model").mkdir()
        for i in range(self.steps):
            (target / "model" / f"weights-{i}").write_text("w" * 100)
            time.sleep(0.01)
        (target / "model" / "MLmodel").write_text("flavors: {}")
        self._note("ended")

    def _note(self, what: str) -> None:
        with self.log.open("a") as handle:
            handle.write(f"{what} {os.getpid()}\n")


def _fetch(cache: Path, download: SlowDownload) -> None:
    path = fetch(remote_pin(), cache, download=download)
    if len(list(path.iterdir())) != download.steps + 1:
        os._exit(3)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_11_tasks_race_for_the_download_and_one_is_killed_half_way(tmp_path: Path) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log"
    spawn = multiprocessing.get_context("fork")
    killed = spawn.Process(target=_fetch, args=(cache, SlowDownload(log, steps=1_000)))
    killed.start()
    _wait_for(lambda: len(list(cache.glob("*.part-*/model/weights-*"))) > 3)
    tasks = [spawn.Process(target=_fetch, args=(cache, SlowDownload(log))) for _ in range(4)]
    for task in tasks:
        task.start()
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    for task in tasks:
        task.join(60)
    killed.join(60)
    assert [task.exitcode for task in tasks] == [0, 0, 0, 0]
    assert killed.exitcode == -signal.SIGKILL
    assert log.read_text().count("began") == 2
    assert log.read_text().count("ended") == 1
    assert sorted(path.name for path in cache.iterdir()) == ["d" * 64, "d" * 64 + ".lock"]


def test_11_a_failed_download_leaves_nothing_and_names_the_model(tmp_path: Path) -> None:
    def download(pin: ModelPin, target: Path) -> None:
        (target / "half").write_text("")
        raise OSError("connection reset")

    with pytest.raises(ModelLoadError, match=r"models:/m/1.*connection reset"):
        fetch(remote_pin(), tmp_path, download=download)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_missing_storage_library_is_named(tmp_path: Path) -> None:
    def download(pin: ModelPin, target: Path) -> None:
        raise ModuleNotFoundError("No module named 'boto3'", name="boto3")

    with pytest.raises(ModelLoadError, match="'boto3'"):
        fetch(remote_pin(), tmp_path, download=download)


def test_a_download_without_a_model_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no MLmodel"):
        fetch(remote_pin(), tmp_path, download=lambda pin, target: None)


def test_the_default_download_takes_every_file(saved: Path, tmp_path: Path) -> None:
    pin, _ = resolve(str(saved))
    models._download(replace(pin, artifact_uri=f"file://{saved}"), tmp_path)
    assert {p.name for p in saved.iterdir()} <= {p.name for p in tmp_path.rglob("*")}


def test_a_local_model_is_used_in_place_and_must_not_have_changed(saved: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(saved, copy)
    pin, _ = resolve(str(copy))
    assert fetch(pin, tmp_path / "cache") == copy
    assert not (tmp_path / "cache").exists()
    (copy / "extra").write_text("x")
    with pytest.raises(ModelLoadError, match="has changed since it was pinned"):
        fetch(pin, tmp_path / "cache")
    shutil.rmtree(copy)
    with pytest.raises(ModelLoadError, match="cannot see"):
        fetch(pin, tmp_path / "cache")


# -- load


def test_a_model_is_loaded_once_a_process(saved: Path, tmp_path: Path) -> None:
    pin, spec = resolve(str(saved))
    first = load_cached(pin, spec, cache_dir=tmp_path)
    assert load_cached(pin, spec, cache_dir=tmp_path) is first
    assert load_cached(pin, spec, cache_dir=tmp_path, precision="bf16") is not first


def test_10_a_missing_module_is_one_fatal_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        "import absent_module\nimport mlflow\n"
        "class M(mlflow.pyfunc.PythonModel):\n"
        "    def predict(self, context, model_input, params=None):\n        return model_input['x']\n"
        "mlflow.models.set_model(M())\n"
    )
    absent = tmp_path / "absent_module.py"
    absent.write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        mlflow.pyfunc.save_model(
            str(tmp_path / "m"),
            python_model=str(tmp_path / "code.py"),
            signature=SIGNATURE,
            pip_requirements=[],
        )
    absent.unlink()
    import sys

    sys.modules.pop("absent_module", None)
    _, spec = resolve(str(tmp_path / "m"))
    with pytest.raises(ModelLoadError, match="'absent_module'"):
        load(tmp_path / "m", spec)


def test_any_other_failure_to_load_is_told_with_its_cause(saved: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(saved, tmp_path / "m")
    (tmp_path / "m" / "python_model.pkl").write_bytes(b"not a pickle")
    _, spec = resolve(str(tmp_path / "m"))
    with pytest.raises(ModelLoadError, match="does not load"):
        load(tmp_path / "m", spec)


def test_an_unknown_parameter_is_refused(saved: Path) -> None:
    _, spec = resolve(str(saved))
    with pytest.raises(ModelLoadError, match=r"'temperature'.*none"):
        load(saved, spec, params={"temperature": 1})


def test_a_pyfunc_becomes_a_staged_model(saved: Path) -> None:
    _, spec = resolve(str(saved))
    model = load(saved, spec)
    assert isinstance(model, PredictModel)
    rows = pd.DataFrame({"x": [1, 2]})
    assert model.size(rows).tolist() == [1, 1]
    assert model.postprocess(model.forward(model.preprocess(rows))).tolist() == [2, 4]
