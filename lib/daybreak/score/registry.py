"""From what the user calls a model to the version that it means now. On the driver."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlparse

from daybreak.errors import ModelLoadError, first_line
from daybreak.score.artifacts import contents, digest_of, explained, local_path
from daybreak.score.signature import ModelSpec, model_spec

__all__ = ["ModelPin", "resolve"]

_NAMES_SHOWN = 20


@dataclass(frozen=True)
class ModelPin:
    """One model version, fixed: what the user wrote, what it meant when the run began, and where its files
    are.

    ``digest`` (sha256, hex) covers the MLmodel file and every file's path and content. A pin from before
    has no ``covers``: its digest covers the sizes of the files.
    """

    uri: str
    resolved: str
    name: str
    version: str
    artifact_uri: str
    digest: str
    tracking_uri: str | None = None
    registry_uri: str | None = None
    covers: str = "sizes"

    def require(self, found: str) -> None:
        """Raises ModelLoadError if what is there now, of that digest, is not what was pinned."""
        if found != self.digest and self.covers == "sizes":
            raise ModelLoadError(
                f"the run pinned the model {self.resolved} by the sizes of its files, as an older Daybreak did, so"
                " whether its weights are still the same cannot be told",
                fix="start a new run (--fresh)",
            )
        if found != self.digest:
            raise ModelLoadError(
                f"the model at {self.artifact_uri} has changed since it was pinned (then {self.digest[:12]}, now"
                f" {found[:12]})",
                fix="start a new run (--fresh); to keep versions apart, register the model and use"
                " models:/<name>@<alias>",
            )


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
    """What ``uri`` means now, with the model's signature.

    Reads the MLmodel file; and the other files for the digest, unless their store tells an etag or they were read
    before (``artifacts.contents``).

    Takes ``models:/name@alias`` (resolved to a version exactly once), ``models:/name/version``,
    ``models:/name/latest``, ``models:/m-<id>``, ``runs:/<id>/<name>``, any artifact URI and any path.

    Raises:
        ModelLoadError: the model, version, alias, run or path does not exist, or the registry does not
        answer. PreflightError: the model has no usable signature.
    """
    with _patient_for(seconds=10):
        client = _client(tracking_uri, registry_uri)
        with explained(uri):
            address = _address(client, uri)
            meta, files = contents(address.artifact_uri, tracking_uri, registry_uri)
    digest = digest_of(meta, files)
    pin = ModelPin(
        uri=uri,
        resolved=address.resolved,
        name=address.name,
        version=address.version or f"sha256:{digest[:12]}",
        artifact_uri=address.artifact_uri,
        digest=digest,
        tracking_uri=tracking_uri,
        registry_uri=registry_uri,
        covers="content",
    )
    return pin, model_spec(_signature(meta, uri))


def _client(tracking_uri: str | None, registry_uri: str | None) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri, registry_uri=registry_uri)


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


def _address(client: Any, uri: str) -> _Address:
    scheme = urlparse(uri).scheme
    name = re.sub(r"^\w+:(//[^/]*)?", "", uri).strip("/")  # letter for letter: a name may hold a '#', '?' or '%'
    if scheme == "models":
        return _model_address(client, uri, name)
    if scheme == "runs":
        return _run_address(client, uri, name)
    if (path := local_path(uri)) is not None:
        return _path_address(uri, path)
    return _Address(uri, uri.rstrip("/").rsplit("/", 1)[-1], "", uri)


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
    versions = [str(found.version) for found in client.search_model_versions(f"name = {_text(name)}")]
    if not versions:
        raise ModelLoadError(f"the model {name!r} is registered but has no versions", fix="register a version of it")
    return sorted(versions, key=int)


def _text(name: str) -> str:
    """A name as a text of MLflow's filters."""
    return f'"{name}"' if "'" in name else f"'{name}'"


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
    folder = str(run.info.artifact_uri)
    place = newest.artifact_location if newest else f"{folder}/{quote(name) if folder.startswith('file:') else name}"
    return _Address(f"runs:/{run_id}/{name}", name, run_id, str(place))


def _signature(meta: bytes, uri: str) -> Any:
    import yaml
    from mlflow.models import Model

    try:
        return Model.from_dict(yaml.safe_load(meta)).signature
    except Exception as error:
        raise ModelLoadError(
            f"the model {uri!r} has an MLmodel file that cannot be read: {first_line(error)}",
            fix="log the model again with this version of MLflow",
        ) from error
