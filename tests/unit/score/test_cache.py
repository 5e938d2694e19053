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

from daybreak.errors import ModelLoadError
from daybreak.score import cache
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
