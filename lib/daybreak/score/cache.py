"""A model's files on this host: one copy, whoever asks."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from daybreak.errors import ModelLoadError
from daybreak.score.artifacts import contents, digest_of, explained, local_contents, local_path, locked, repository
from daybreak.score.registry import ModelPin

__all__ = ["Download", "fetch"]

logger = logging.getLogger(__name__)
Download = Callable[[ModelPin, Path], None]


def fetch(pin: ModelPin, cache_dir: str | os.PathLike[str], *, download: Download | None = None) -> Path:
    """The model's folder on this host. A local one is used in place; another is downloaded once a host.

    Any number of processes may call this at a time: one downloads under a file lock, into a folder of its own
    that is renamed when complete, and the others wait and use it. What a killed download left is removed by
    the next. The lock file holds the digest of the copy, which is downloaded again when files of it are missing or
    others.

    Raises:
        ModelLoadError: the download failed, or the model is absent or has changed since it was pinned.
    """
    if (path := local_path(pin.artifact_uri)) is not None:
        return _unchanged(pin, path)
    cache = Path(cache_dir)
    cache.mkdir(parents=True, exist_ok=True)
    final = cache / pin.digest
    with locked(cache / f"{pin.digest}.lock") as lock:
        lock.seek(0)
        if not _intact(final, lock.read()):
            _download_into(pin, final, download or _download)
            lock.truncate(0)
            lock.write(digest_of(*local_contents(final)))
    return final


def _unchanged(pin: ModelPin, path: Path) -> Path:
    pin.require(digest_of(*local_contents(path)))
    return path


def _intact(final: Path, noted: str) -> bool:
    """Whether a copy still holds what was downloaded: a host's cleaner takes single files out of temporary folders."""
    if not final.is_dir():
        return False
    if noted and (final / "MLmodel").is_file() and digest_of(*local_contents(final)) == noted:
        return True
    logger.warning("the copy of the model in %s is not as it was downloaded, and is downloaded again", final)
    shutil.rmtree(final)
    return False


def _download_into(pin: ModelPin, final: Path, download: Download) -> None:
    for leftover in final.parent.glob(f"{pin.digest}.part-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    part = final.with_name(f"{pin.digest}.part-{os.getpid()}")
    part.mkdir()
    try:
        with explained(pin.resolved):
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
    repo = repository(pin.artifact_uri, pin.tracking_uri, pin.registry_uri)
    repo.download_artifacts("", str(target))
    copy = _model_folder(target, pin)
    pin.require(digest_of(*contents(pin.artifact_uri, pin.tracking_uri, pin.registry_uri, copy=copy)))
