from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.entities import FileInfo

from daybreak.errors import ModelLoadError
from daybreak.score import artifacts, cache
from daybreak.score.cache import fetch
from daybreak.score.registry import ModelPin, resolve


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


def test_case_11_tasks_race_for_the_download_and_one_is_killed_half_way(tmp_path: Path) -> None:
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


def test_case_11_a_failed_download_leaves_nothing_and_names_the_model(tmp_path: Path) -> None:
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
    cache._download(replace(pin, artifact_uri=f"file://{saved}"), tmp_path)
    assert {p.name for p in saved.iterdir()} <= {p.name for p in tmp_path.rglob("*")}


def test_what_is_downloaded_is_what_was_pinned(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is not of this machine, by a folder that stands in for it."""
    store = tmp_path / "store"
    shutil.copytree(saved, store)
    pin, _ = resolve(str(store))
    monkeypatch.setattr(cache, "local_path", lambda _: None)
    assert (fetch(pin, tmp_path / "cache") / "MLmodel").is_file()
    (store / "python_model.pkl").write_bytes(b"trained again")
    with pytest.raises(ModelLoadError, match="has changed since it was pinned"):
        fetch(pin, tmp_path / "another host's")
    assert not list((tmp_path / "another host's").glob(f"{pin.digest}*/"))


def test_a_local_model_is_used_in_place_and_must_not_have_changed(saved: Path, tmp_path: Path) -> None:
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


def test_weights_of_the_same_size_and_time_are_another_model(saved: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(saved, copy)
    weights = copy / "artifacts" / "weights"
    weights.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (copy / "linked").symlink_to(tmp_path / "elsewhere")
    digests = []
    for file in (weights, tmp_path / "elsewhere" / "weights"):  # a folder that is a link belongs to the model too
        for content in (b"2", b"3"):
            file.write_bytes(content * 2**20)
            os.utime(file, (1, 1))
            digests.append(resolve(str(copy))[0].digest)
    assert len(set(digests)) == 4


def test_a_large_file_is_read_once_a_host_until_it_changes(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, read = tmp_path / "model", list[str]()
    shutil.copytree(saved, copy)
    (copy / "weights").write_bytes(b"2" * 2**20)
    reads = artifacts._sha256
    monkeypatch.setattr(artifacts, "_sha256", lambda file: (read.append(file.name), reads(file))[1])
    monkeypatch.setattr(artifacts, "home", lambda: tmp_path / "home")

    def times_read(*, by_another_process: bool = False) -> int:
        read.clear()
        if by_another_process:
            artifacts._REMEMBERED.clear()
        artifacts.local_contents(copy)
        return read.count("weights")

    assert (times_read(), times_read()) == (1, 1)  # it was written a moment ago
    monkeypatch.setattr(artifacts, "_FRESH", 0)
    assert (times_read(), times_read(), times_read(by_another_process=True)) == (1, 0, 0)
    (copy / "weights").write_bytes(b"3" * 2**20)
    assert times_read() == 1


def test_a_copy_that_a_cleaner_has_taken_files_from_is_downloaded_again(saved: Path, tmp_path: Path) -> None:
    def download(pin: ModelPin, target: Path) -> None:
        shutil.copytree(saved, target / "model")

    copy = fetch(remote_pin(), tmp_path, download=download)
    (copy / "python_model.pkl").unlink()
    fetch(remote_pin(), tmp_path, download=download)
    assert (copy / "python_model.pkl").is_file()


class Store:
    """An artifact repository of MLflow that tells no more than paths and sizes, as most do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list_artifacts(self, path: str | None) -> list[FileInfo]:
        entries = (self.folder / (path or "")).iterdir()
        return [
            FileInfo(entry.relative_to(self.folder).as_posix(), entry.is_dir(), entry.stat().st_size)
            for entry in entries
        ]

    def download_artifacts(self, path: str, target: str) -> str:
        source, there = self.folder / path, Path(target) / path
        shutil.copytree(source, there, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, there)
        return str(there)


def test_a_store_that_tells_no_etags_is_read_through(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(saved, tmp_path / "store")
    monkeypatch.setattr(artifacts, "repository", lambda *_: Store(tmp_path / "store"))
    monkeypatch.setattr(cache, "repository", lambda *_: Store(tmp_path / "store"))
    pin, _ = resolve("mlflow-artifacts:/m")
    assert pin.digest == resolve(str(saved))[0].digest  # the content counts, not the place
    fetch(pin, tmp_path / "a host")
    weights = tmp_path / "store" / "python_model.pkl"
    weights.write_bytes(weights.read_bytes()[::-1])
    assert resolve("mlflow-artifacts:/m")[0].digest != pin.digest
    with pytest.raises(ModelLoadError, match="has changed since it was pinned"):
        fetch(pin, tmp_path / "another host")


def test_in_s3_the_etag_tells(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moto")
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="lake")
        for file in (file for file in saved.iterdir() if file.is_file()):
            client.put_object(Bucket="lake", Key=f"models/m/{file.name}", Body=file.read_bytes())
        digests = [resolve("s3://lake/models/m")[0].digest for _ in range(2)]
        weights = (saved / "python_model.pkl").read_bytes()[::-1]
        client.put_object(Bucket="lake", Key="models/m/python_model.pkl", Body=weights)
        digests.append(resolve("s3://lake/models/m")[0].digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_pin_by_sizes_is_refused_with_its_reason(saved: Path) -> None:
    pin, _ = resolve(str(saved))
    with pytest.raises(ModelLoadError, match=r"by the sizes of its files.*\n.*--fresh"):
        replace(pin, digest="0" * 64, covers="sizes").require(pin.digest)
