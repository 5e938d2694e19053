"""From a model's address to a model that scores: resolve (driver), fetch (once a host), load (once a
process)."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable
from urllib.parse import unquote, urlparse

import numpy as np
import pandas as pd

from daybreak.errors import ModelLoadError
from daybreak.score.signature import ModelSpec, model_spec

__all__ = ["ModelPin", "PredictModel", "StagedModel", "fetch", "load", "load_cached", "resolve"]

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Download = Callable[["ModelPin", Path], None]

_STAGES = ("size", "preprocess", "forward", "postprocess")
_STAMPS = {"registered_model_meta"}  # MLflow adds it on download
_NAMES_SHOWN = 20


# ---------------------------------------------------------------------------------------------- resolve


@dataclass(frozen=True)
class ModelPin:
    """One model version, fixed: what the user wrote, what it meant when the run began, and where its files
    are.

    ``digest`` (sha256, hex) covers the MLmodel file and every file's path and size.
    """

    uri: str
    resolved: str
    name: str
    version: str
    artifact_uri: str
    digest: str
    tracking_uri: str | None = None
    registry_uri: str | None = None


@dataclass(frozen=True)
class _Address:
    """A pin before its files were looked at; an empty ``version`` is filled from the digest."""

    resolved: str
    name: str
    version: str
    artifact_uri: str


def resolve(
    uri: str, *, tracking_uri: str | None = None, registry_uri: str | None = None
) -> tuple[ModelPin, ModelSpec]:
    """What ``uri`` means now, with the model's signature. Reads the MLmodel file, never the weights.

    Takes ``models:/name@alias`` (resolved to a version exactly once), ``models:/name/version``,
    ``models:/name/latest``, ``models:/m-<id>``, ``runs:/<id>/<name>``, any artifact URI and any path.

    Raises:
        ModelLoadError: the model, version, alias, run or path does not exist, or the registry does not
        answer. PreflightError: the model has no usable signature.
    """
    with _patient_for(seconds=10):
        client = _client(tracking_uri, registry_uri)
        with _explained(uri):
            address = _address(client, uri)
            meta, files = _contents(address.artifact_uri, tracking_uri, registry_uri)
    digest = _digest(meta, files)
    pin = ModelPin(
        uri=uri,
        resolved=address.resolved,
        name=address.name,
        version=address.version or f"sha256:{digest[:12]}",
        artifact_uri=address.artifact_uri,
        digest=digest,
        tracking_uri=tracking_uri,
        registry_uri=registry_uri,
    )
    return pin, model_spec(_signature(meta, uri))


def _client(tracking_uri: str | None, registry_uri: str | None) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri, registry_uri=registry_uri)


def _repository(artifact_uri: str, tracking_uri: str | None, registry_uri: str | None) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(artifact_uri, tracking_uri=tracking_uri, registry_uri=registry_uri)


@contextlib.contextmanager
def _patient_for(seconds: int) -> Iterator[None]:
    """MLflow by default retries an unreachable server for minutes; a pre-flight check should not, unless told
    to."""
    defaults = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(seconds)}
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Anything that MLflow or a store raises, as one message that names the model."""
    try:
        yield
    except ModelLoadError:
        raise
    except ImportError as error:
        raise ModelLoadError(
            f"reading the model {uri!r} needs the module {error.name!r}: {_first_line(error)}",
            fix="install it on the driver and on every worker",
        ) from error
    except Exception as error:
        raise ModelLoadError(
            f"the model {uri!r} cannot be read: {type(error).__name__}: {_first_line(error)}",
            fix="check model.uri, that the tracking server and registry answer (MLFLOW_TRACKING_URI, "
            "MLFLOW_REGISTRY_URI), and that this user may read the model",
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:500] if lines else "no message"


def _address(client: Any, uri: str) -> _Address:
    parsed = urlparse(uri)
    if parsed.scheme == "models":
        return _model_address(client, uri, parsed.path.strip("/"))
    if parsed.scheme == "runs":
        return _run_address(client, uri, parsed.path.strip("/"))
    if (path := _local_path(uri)) is not None:
        return _path_address(uri, path)
    return _Address(uri, uri.rstrip("/").rsplit("/", 1)[-1], "", uri)


def _local_path(uri: str) -> Path | None:
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path)).absolute()
    return Path(uri).expanduser().absolute() if not parsed.scheme else None


def _path_address(uri: str, path: Path) -> _Address:
    if not (path / "MLmodel").is_file():
        what = "has no MLmodel file in it" if path.is_dir() else "is not a folder" if path.exists() else "is absent"
        raise ModelLoadError(
            f"the model {uri!r}: {path} {what}",
            fix="give the folder that mlflow's save_model wrote, or models:/<name>@<alias>",
        )
    return _Address(str(path), path.name, "", str(path))


def _model_address(client: Any, uri: str, path: str) -> _Address:
    if "@" in path and "/" not in path:
        name, alias = path.rsplit("@", 1)
        return _version_address(client, uri, name, _aliased(client, uri, name, alias))
    if "/" not in path:
        return _logged_address(client, uri, path)
    name, version = path.rsplit("/", 1)
    if version.lower() == "latest":
        version = max(_versions(client, uri, name), key=int)
    if not version.isdigit():
        raise ModelLoadError(
            f"the model {uri!r}: {version!r} is not a version; registry stages are not supported",
            fix=f"use models:/{name}/<number> or models:/{name}@<alias>",
        )
    return _version_address(client, uri, name, version)


def _aliased(client: Any, uri: str, name: str, alias: str) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_model_version_by_alias(name, alias).version)
    except MlflowException as error:
        if not _absent(error):
            raise
    aliases = dict(_registered(client, uri, name).aliases or {})
    known = ", ".join(f"{known} (version {version})" for known, version in sorted(aliases.items())) or "none"
    raise ModelLoadError(
        f"the model {name!r} has no alias {alias!r}; its aliases: {known}",
        fix="use one of these in model.uri, or set the alias in the registry",
    )


def _absent(error: Any) -> bool:
    return getattr(error, "error_code", "") in (
        "RESOURCE_DOES_NOT_EXIST",
        "NOT_FOUND",
        "INVALID_PARAMETER_VALUE",
    )


def _registered(client: Any, uri: str, name: str) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if not _absent(error):
            raise
    names = sorted(model.name for model in client.search_registered_models(max_results=_NAMES_SHOWN))
    raise ModelLoadError(
        f"the model {uri!r}: no model {name!r} is registered; there are: {', '.join(names) or 'none'}",
        fix="correct the name in model.uri, or check which registry MLFLOW_REGISTRY_URI points to",
    )


def _versions(client: Any, uri: str, name: str) -> list[str]:
    _registered(client, uri, name)
    versions = [str(found.version) for found in client.search_model_versions(f"name = '{name}'")]
    if not versions:
        raise ModelLoadError(f"the model {name!r} is registered but has no versions", fix="register a version of it")
    return sorted(versions, key=int)


def _version_address(client: Any, uri: str, name: str, version: str) -> _Address:
    from mlflow.exceptions import MlflowException

    resolved = f"models:/{name}/{version}"
    try:
        source = client.get_model_version_download_uri(name, version)
    except NotImplementedError:  # Unity Catalog hands out files by model version only
        source = resolved
    except MlflowException as error:
        if not _absent(error):
            raise
        known = _versions(client, uri, name)
        raise ModelLoadError(
            f"the model {name!r} has no version {version}; it has {', '.join(known[-_NAMES_SHOWN:])}",
            fix="use one of these, or an alias, in model.uri",
        ) from None
    return _Address(resolved, name, version, _storage(client, source, resolved))


def _storage(client: Any, source: str, resolved: str) -> str:
    """The place of the files behind a source, which since MLflow 3 may be a logged model."""
    if source.startswith("models:/") and source != resolved:
        return str(client.get_logged_model(source.removeprefix("models:/")).artifact_location)
    return source


def _logged_address(client: Any, uri: str, model_id: str) -> _Address:
    from mlflow.exceptions import MlflowException

    try:
        logged = client.get_logged_model(model_id)
    except MlflowException as error:
        if not _absent(error):
            raise
        raise ModelLoadError(
            f"the model {uri!r}: there is no logged model {model_id!r}",
            fix=f"a registered model needs a version or an alias: models:/{model_id}/<version> or "
            f"models:/{model_id}@<alias>; a logged model's id begins with m-",
        ) from None
    return _Address(f"models:/{model_id}", str(logged.name), model_id, str(logged.artifact_location))


def _run_address(client: Any, uri: str, path: str) -> _Address:
    from mlflow.exceptions import MlflowException

    run_id, _, name = path.partition("/")
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if not _absent(error):
            raise
        raise ModelLoadError(f"the model {uri!r}: there is no run {run_id!r}", fix="check the run's id") from None
    outputs = getattr(run.outputs, "model_outputs", None) or []
    logged = [model for model in (client.get_logged_model(o.model_id) for o in outputs) if model.name == name]
    newest = max(logged, key=lambda model: int(model.creation_timestamp), default=None)
    place = newest.artifact_location if newest else f"{run.info.artifact_uri}/{name}"
    return _Address(f"runs:/{run_id}/{name}", name, run_id, str(place))


# ---------------------------------------------------------------------------------------------- contents


def _contents(
    artifact_uri: str, tracking_uri: str | None, registry_uri: str | None
) -> tuple[bytes, list[tuple[str, int]]]:
    """The MLmodel file, and (path, size) of every file."""
    if (path := _local_path(artifact_uri)) is not None:
        return _local_contents(path)
    repo = _repository(artifact_uri, tracking_uri, registry_uri)
    with tempfile.TemporaryDirectory(prefix="daybreak-mlmodel-") as scratch:
        meta = Path(repo.download_artifacts("MLmodel", scratch)).read_bytes()
    return meta, sorted(_remote_files(repo, ""))


def _local_contents(path: Path) -> tuple[bytes, list[tuple[str, int]]]:
    meta = path / "MLmodel"
    if not meta.is_file():
        raise ModelLoadError(
            f"the model's files are registered at {path}, which this machine cannot see",
            fix="keep the model store on storage that the driver and every worker can read",
        )
    found = [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    files = [(file.relative_to(path).as_posix(), file.stat().st_size) for file in found]
    return meta.read_bytes(), sorted(files)


def _remote_files(repo: Any, folder: str) -> Iterator[tuple[str, int]]:
    for info in repo.list_artifacts(folder or None):
        if info.is_dir:
            yield from _remote_files(repo, info.path)
        else:
            yield info.path, int(info.file_size or 0)


def _digest(meta: bytes, files: list[tuple[str, int]]) -> str:
    seen = hashlib.sha256(meta)
    for path, size in files:
        if path not in _STAMPS:
            seen.update(f"\0{path}\0{size}".encode())
    return seen.hexdigest()


def _signature(meta: bytes, uri: str) -> Any:
    import yaml
    from mlflow.models import Model

    try:
        return Model.from_dict(yaml.safe_load(meta)).signature
    except Exception as error:
        raise ModelLoadError(
            f"the model {uri!r} has an MLmodel file that cannot be read: {_first_line(error)}",
            fix="log the model again with this version of MLflow",
        ) from error


# ---------------------------------------------------------------------------------------------- fetch


def fetch(pin: ModelPin, cache_dir: str | os.PathLike[str], *, download: Download | None = None) -> Path:
    """The model's folder on this host. A local one is used in place; another is downloaded once a host.

    Any number of processes may call this at a time: one downloads under a file lock, into a folder of its own
    that is renamed when complete, and the others wait and use it. What a killed download left is removed by
    the next.

    Raises:
        ModelLoadError: the download failed, or a local folder is absent or has changed since it was pinned.
    """
    if (path := _local_path(pin.artifact_uri)) is not None:
        return _unchanged(pin, path)
    cache = Path(cache_dir)
    cache.mkdir(parents=True, exist_ok=True)
    final = cache / pin.digest
    with _locked(cache / f"{pin.digest}.lock"):
        if not final.is_dir():
            _download_into(pin, final, download or _download)
    return final


def _unchanged(pin: ModelPin, path: Path) -> Path:
    found = _digest(*_local_contents(path))
    if found != pin.digest:
        raise ModelLoadError(
            f"the model at {path} has changed since it was pinned (then {pin.digest[:12]}, now {found[:12]})",
            fix="start a new run; to keep versions apart, register the model and use models:/<name>@<alias>",
        )
    return path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel releases it if this process dies."""
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _download_into(pin: ModelPin, final: Path, download: Download) -> None:
    for leftover in final.parent.glob(f"{pin.digest}.part-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    part = final.with_name(f"{pin.digest}.part-{os.getpid()}")
    part.mkdir()
    try:
        with _explained(pin.resolved):
            download(pin, part)
        _model_folder(part, pin).rename(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    logger.info("downloaded the model %s to %s", pin.resolved, final)


def _model_folder(part: Path, pin: ModelPin) -> Path:
    found = sorted(part.rglob("MLmodel"), key=lambda file: len(file.parts))
    if not found:
        raise ModelLoadError(f"the download of {pin.resolved} holds no MLmodel file", fix="check the model store")
    return found[0].parent


def _download(pin: ModelPin, target: Path) -> None:
    repo = _repository(pin.artifact_uri, pin.tracking_uri, pin.registry_uri)
    repo.download_artifacts("", str(target))


# ---------------------------------------------------------------------------------------------- load


@runtime_checkable
class StagedModel(Protocol):
    """What the pipeline runs; see the staged model protocol in the design.

    Rows come with the signature's columns and dtypes, none of them null where the signature requires a value.
    They are the model's own: it may change them.
    """

    def size(self, rows: pd.DataFrame) -> Array:
        """The cost of each row in tokens, int64[n]. May be called from any one thread."""

    def preprocess(self, rows: pd.DataFrame) -> Any:
        """The rows as the device takes them. CPU only; may be called from several threads at a time."""

    def forward(self, batch: Any) -> Any:
        """The device's part, on the main thread. Returns when the device is done."""

    def postprocess(self, output: Any) -> Any:
        """n rows with the signature's output columns. CPU only; from one thread."""


class PredictModel:
    """Any pyfunc as a staged model: each row costs one, and ``forward`` is ``predict``.

    The model gets what its signature says: a DataFrame of its own with the declared columns, order and
    dtypes; for tensors an ndarray or a dict of ndarrays. MLflow's own enforcement stays on but for two
    kinds of signature, where it would fail a whole batch for what ``admit`` rightly let through: optional
    integers or booleans, as soon as one is missing (mlflow#25593), and arrays, where a list of floats is no
    array<float>.
    """

    by_rows = True

    def __init__(self, pyfunc: Any, spec: ModelSpec, params: dict[str, Any] | None = None) -> None:
        self._spec = spec
        self._params = dict(params or {}) or None
        self._call = pyfunc.predict if _enforceable(pyfunc, spec) else _unenforced(pyfunc)

    def size(self, rows: pd.DataFrame) -> Array:
        return np.ones(len(rows), dtype=np.int64)

    def preprocess(self, rows: pd.DataFrame) -> Any:
        if not self._spec.tensor_inputs:
            return rows
        if self._spec.by_position:
            return _matrix(rows, self._spec)
        return {f.name: _stack(rows[f.name], f.shape or (), f.dtype) for f in self._spec.inputs}

    def forward(self, batch: Any) -> Any:
        return self._call(batch, params=dict(self._params) if self._params else None)

    def postprocess(self, output: Any) -> Any:
        return output


def _enforceable(pyfunc: Any, spec: ModelSpec) -> bool:
    """Whether MLflow's enforcement takes every value that ``admit`` lets through, whatever else is in the
    batch."""
    nullable = any(not f.required and f.type in ("long", "integer", "boolean") for f in spec.inputs)
    nested = any("<" in f.type for f in spec.inputs) and not spec.tensor_inputs
    return not (nullable or nested) or bool(pyfunc.metadata._is_type_hint_from_example())


def _unenforced(pyfunc: Any) -> Callable[..., Any]:
    """The flavour's own predict, which takes ``params`` in most flavours but not in all."""
    import inspect

    predict = pyfunc._predict_fn
    if "params" in inspect.signature(predict).parameters:
        return predict  # type: ignore[no-any-return]
    return lambda batch, params=None: predict(batch)


def _matrix(rows: pd.DataFrame, spec: ModelSpec) -> Array:
    only = spec.inputs[0]
    shape = only.shape or ()
    if len(rows.columns) > 1 or (len(shape) == 1 and rows.dtypes.iloc[0].kind != "O"):
        return np.stack([rows.iloc[:, i].to_numpy() for i in range(len(rows.columns))], axis=1).astype(only.dtype)
    return _stack(rows.iloc[:, 0], shape, only.dtype)


def _stack(column: pd.Series[Any], shape: tuple[int, ...], dtype: str | None) -> Array:
    """One ndarray of n rows. Rows of unequal shape raise, and so are scored apart by the pipeline's
    bisection."""
    target = np.dtype(dtype or object)
    if shape in ((), (1,)):
        return column.to_numpy().astype(target).reshape(len(column), *shape)
    return np.stack([np.asarray(value, dtype=target) for value in column])


def load(
    path: str | os.PathLike[str],
    spec: ModelSpec,
    *,
    precision: str = "fp32",
    device: str | None = None,
    params: dict[str, Any] | None = None,
) -> StagedModel:
    """The model in ``path``, ready to score in this process.

    A PythonModel with the four stages is used as it is, and its ``place(device, precision)``, if it has one,
    is called first (device None: the model chooses); any other is wrapped by ``PredictModel``.

    Raises:
        ModelLoadError: a module is missing, or loading failed for any reason; or a parameter is unknown.
    """
    unknown = sorted(set(params or {}) - set(spec.params))
    if unknown:
        raise ModelLoadError(
            f"the model has no inference parameter {unknown[0]!r}; it has {', '.join(spec.params) or 'none'}",
            fix="correct model.params in the job file",
        )
    pyfunc = _loading(path, lambda: _load_pyfunc(path))
    staged = _staged(pyfunc)
    if staged is None:
        return PredictModel(pyfunc, spec, params)
    if hasattr(staged, "place"):
        _loading(path, lambda: staged.place(device=device, precision=precision))
    return cast(StagedModel, staged)


def _loading(path: str | os.PathLike[str], step: Callable[[], Any]) -> Any:
    try:
        return step()
    except ModelLoadError:
        raise
    except ImportError as error:
        missing = f"the module {error.name!r}" if error.name else str(error)
        raise ModelLoadError(
            f"the model in {os.fspath(path)} needs {missing}, which is absent here: {_first_line(error)}",
            fix="install it on every worker (its requirements.txt lists what it was logged with), "
            "or log the model with code_paths",
        ) from error
    except Exception as error:
        raise ModelLoadError(
            f"the model in {os.fspath(path)} does not load: {type(error).__name__}: {_first_line(error)}",
            fix="load it with mlflow.pyfunc.load_model in the workers' environment to see the whole error",
        ) from error


def _load_pyfunc(path: str | os.PathLike[str]) -> Any:
    import mlflow.pyfunc

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    return mlflow.pyfunc.load_model(os.fspath(path), suppress_warnings=True)


def _staged(pyfunc: Any) -> Any | None:
    from mlflow.exceptions import MlflowException

    try:
        model = pyfunc.unwrap_python_model()
    except MlflowException:
        return None
    return model if all(callable(getattr(model, stage, None)) for stage in _STAGES) else None


_LOADED: dict[tuple[str, ...], StagedModel] = {}


def load_cached(
    pin: ModelPin,
    spec: ModelSpec,
    *,
    cache_dir: str | os.PathLike[str],
    precision: str = "fp32",
    device: str | None = None,
    params: dict[str, Any] | None = None,
) -> StagedModel:
    """``fetch`` and ``load``, once a process for each (digest, device, precision, params)."""
    key = (pin.digest, str(device), precision, repr(sorted((params or {}).items())))
    if key not in _LOADED:
        path = fetch(pin, cache_dir)
        _LOADED[key] = load(path, spec, precision=precision, device=device, params=params)
    return _LOADED[key]
