"""The files behind a model's address: listed, digested, and what went wrong with them in plain words."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from daybreak.errors import ModelLoadError, first_line

__all__ = ["contents", "digest_of", "explained", "local_contents", "local_path", "repository"]

_STAMPS = {"registered_model_meta"}  # MLflow adds it on download


def local_path(uri: str) -> Path | None:
    """The path that an address means on this machine; None if it means no path."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path)).absolute()
    return Path(uri).expanduser().absolute() if not parsed.scheme else None


def repository(artifact_uri: str, tracking_uri: str | None, registry_uri: str | None) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(artifact_uri, tracking_uri=tracking_uri, registry_uri=registry_uri)


def contents(
    artifact_uri: str, tracking_uri: str | None, registry_uri: str | None
) -> tuple[bytes, list[tuple[str, int]]]:
    """The MLmodel file, and (path, size) of every file."""
    if (path := local_path(artifact_uri)) is not None:
        return local_contents(path)
    repo = repository(artifact_uri, tracking_uri, registry_uri)
    with tempfile.TemporaryDirectory(prefix="daybreak-mlmodel-") as scratch:
        meta = Path(repo.download_artifacts("MLmodel", scratch)).read_bytes()
    return meta, sorted(_remote_files(repo, ""))


def local_contents(path: Path) -> tuple[bytes, list[tuple[str, int]]]:
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


def digest_of(meta: bytes, files: list[tuple[str, int]]) -> str:
    """sha256 (hex) over the MLmodel file and every file's path and size."""
    seen = hashlib.sha256(meta)
    for path, size in files:
        if path not in _STAMPS:
            seen.update(f"\0{path}\0{size}".encode())
    return seen.hexdigest()


@contextlib.contextmanager
def explained(uri: str) -> Iterator[None]:
    """Anything that MLflow or a store raises, as one message that names the model."""
    try:
        yield
    except ModelLoadError:
        raise
    except ImportError as error:
        raise ModelLoadError(
            f"reading the model {uri!r} needs the module {error.name!r}: {first_line(error)}",
            fix="install it on the driver and on every worker",
        ) from error
    except Exception as error:
        raise ModelLoadError(
            f"the model {uri!r} cannot be read: {type(error).__name__}: {first_line(error)}",
            fix="check model.uri, that the tracking server and registry answer (MLFLOW_TRACKING_URI, "
            "MLFLOW_REGISTRY_URI), and that this user may read the model",
        ) from error
