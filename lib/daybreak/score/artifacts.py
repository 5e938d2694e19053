"""The files behind a model's address: listed, digested, and what went wrong with them in plain words."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlparse

from daybreak.errors import ModelLoadError, first_line

__all__ = [
    "contents",
    "digest_of",
    "explained",
    "home",
    "local_contents",
    "local_path",
    "locked",
    "plain",
    "repository",
]

Contents = tuple[bytes, list[tuple[str, str]]]
_STAMPS = {"registered_model_meta"}  # MLflow adds it on download
_NOTED = 2**20  # bytes from which on a file's digest is noted: a smaller one is read faster than its note
_FRESH = 2 * 10**9  # nanoseconds: within them a file may be written again under the same times


def home() -> Path:
    """The folder of this user on this host for copies of models and what is noted of them."""
    return Path(tempfile.gettempdir()) / f"daybreak-models-{os.getuid()}"


def local_path(uri: str) -> Path | None:
    """The path that an address means on this machine; None if it means no path. A path is taken letter for letter; a
    ``file:`` URI is decoded.

    Raises:
        ModelLoadError: a ``file:`` URI with a host, or with a ``?`` or ``#`` that is not encoded.
    """
    parsed = urlparse(uri)
    if parsed.scheme != "file":
        return Path(uri).expanduser().absolute() if not parsed.scheme else None
    if parsed.netloc not in ("", "localhost") or "?" in uri or "#" in uri:
        raise ModelLoadError(
            f"{uri!r} is no file URI of this machine: it names a host, or holds a '?' or '#' as it stands",
            fix="give the plain path, in which every character means itself, or write %3F for '?' and %23 for '#'",
        )
    return Path(unquote(parsed.path)).absolute()


def plain(path: str | os.PathLike[str]) -> Path:
    """The folder under a name that MLflow, which decodes a local path as if it were a URL, reads as it stands: the
    path itself, or a link to it."""
    target = Path(path).absolute()
    if quote(str(target)) == str(target):
        return target
    link = home() / "links" / hashlib.sha256(str(target).encode()).hexdigest()[:32]
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        with contextlib.suppress(FileExistsError):  # another process was first
            link.symlink_to(target)
    return link


def repository(artifact_uri: str, tracking_uri: str | None, registry_uri: str | None) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(artifact_uri, tracking_uri=tracking_uri, registry_uri=registry_uri)


def contents(
    artifact_uri: str, tracking_uri: str | None, registry_uri: str | None, *, copy: Path | None = None
) -> Contents:
    """The MLmodel file, and (path, mark) of every file, where the mark changes with the content.

    The mark is the content's sha256; S3's etag; and for a model version that only a registry hands out, which no one
    can write to, its size. A store that tells no etags is read through, file by file, unless there is a ``copy``.
    """
    if (path := local_path(artifact_uri)) is not None:
        return local_contents(path)
    repo = repository(artifact_uri, tracking_uri, registry_uri)
    marks = _marks(repo, artifact_uri)
    if marks is None and copy is not None:
        return local_contents(copy)
    with tempfile.TemporaryDirectory(prefix="daybreak-mlmodel-") as scratch:
        meta = Path(repo.download_artifacts("MLmodel", scratch)).read_bytes()
        return meta, sorted(_read_through(repo, scratch) if marks is None else marks)


def _marks(repo: Any, artifact_uri: str) -> list[tuple[str, str]] | None:
    if hasattr(repo, "parse_s3_compliant_uri"):
        return list(_etags(repo))
    if artifact_uri.startswith("models:/"):
        return [(info.path, str(info.file_size or 0)) for info in _remote_files(repo, "")]
    return None


def _etags(repo: Any) -> Iterator[tuple[str, str]]:
    bucket, folder = repo.parse_s3_compliant_uri(repo.artifact_uri)
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    for page in repo._get_s3_client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for found in page.get("Contents", []):
            if not found["Key"].endswith("/"):
                yield found["Key"].removeprefix(prefix), f"{found['Size']} {found['ETag']}"


def _read_through(repo: Any, scratch: str) -> Iterator[tuple[str, str]]:
    """One file at a time, so that the disk need not hold the model."""
    for info in _remote_files(repo, ""):
        file = Path(repo.download_artifacts(info.path, scratch))
        yield info.path, _sha256(file)
        file.unlink()


def _remote_files(repo: Any, folder: str) -> Iterator[Any]:
    for info in repo.list_artifacts(folder or None):
        if info.is_dir:
            yield from _remote_files(repo, info.path)
        elif "__pycache__" not in Path(info.path).parts:
            yield info


def local_contents(path: Path) -> Contents:
    """The MLmodel file, and (path, sha256) of every file. A large file is read once a host, and again when its size,
    its times or its inode have changed."""
    meta = path / "MLmodel"
    if not meta.is_file():
        raise ModelLoadError(
            f"the model's files are registered at {path}, which this machine cannot see",
            fix="keep the model store on storage that the driver and every worker can read",
        )
    noted = _Notes(path)
    files = sorted((file.relative_to(path).as_posix(), noted.digest(file)) for file in _files(path))
    noted.save()
    return meta.read_bytes(), files


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder, through links too."""
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (file for file in (Path(place, name) for name in names) if file.is_file())


class _Notes:
    """The digests of a model's large files, by path, size, times and inode: in this process, and in a file of the
    host that its processes share."""

    def __init__(self, folder: Path) -> None:
        self._file = home() / "contents" / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:32]}.json"
        self._known: dict[str, list[Any]] = dict(_REMEMBERED.get(str(self._file), {}))
        with contextlib.suppress(OSError, ValueError):
            self._known |= json.loads(self._file.read_text())
        self._new: dict[str, list[Any]] = {}

    def digest(self, file: Path) -> str:
        """The sha256 of a file. What was written a moment ago is not noted: it may be written again under the same
        times."""
        seen = file.stat()
        if seen.st_size < _NOTED:
            return _sha256(file)
        stamp = [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]
        if (known := self._known.get(str(file))) is not None and known[0] == stamp:
            return str(known[1])
        found = _sha256(file)
        if time.time_ns() - max(seen.st_mtime_ns, seen.st_ctime_ns) > _FRESH:
            self._new[str(file)] = [stamp, found]
        return found

    def save(self) -> None:
        """Note what was read. A file system that refuses costs the next process its reading, and nothing else."""
        if not self._new:
            return
        known = _REMEMBERED[str(self._file)] = self._known | self._new
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_suffix(f".part-{os.getpid()}")
            part.write_text(json.dumps(known))
            part.rename(self._file)


_REMEMBERED: dict[str, dict[str, list[Any]]] = {}


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def digest_of(meta: bytes, files: list[tuple[str, str]]) -> str:
    """sha256 (hex) over the MLmodel file and every file's path and mark."""
    seen = hashlib.sha256(meta)
    for path, mark in files:
        if path not in _STAMPS:
            seen.update(f"\0{path}\0{mark}".encode())
    return seen.hexdigest()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Any]:
    """Hold an exclusive lock; the kernel releases it if this process dies. Gives the open lock file."""
    with path.open("a+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle


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
