from __future__ import annotations

from pathlib import Path

from daybreak.score.learned import Learned, recall, remember


def test_what_is_learned_is_kept_by_model_and_device(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert recall(cache, "m1", "a GPU, bf16") is None
    remember(cache, "m1", "a GPU, bf16", Learned(4096, settled=True))
    remember(cache, "m1", "a CPU, fp32", Learned(1024, settled=False))
    remember(cache, "m1", "a GPU, bf16", Learned(8192, settled=True))
    assert recall(cache, "m1", "a GPU, bf16") == Learned(8192, settled=True)
    assert recall(cache, "m1", "a CPU, fp32") == Learned(1024, settled=False)
    assert recall(cache, "m2", "a GPU, bf16") is None


def test_a_broken_note_is_no_note_and_a_folder_that_refuses_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "m.learned.json").write_text("{")
    assert recall(tmp_path, "m", "x") is None
    remember(tmp_path / "m.learned.json", "m", "x", Learned(1, settled=True))
    remember(tmp_path, "m", "x", Learned(1, settled=True))
    assert recall(tmp_path, "m", "x") == Learned(1, settled=True)
