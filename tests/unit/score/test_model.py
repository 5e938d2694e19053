from __future__ import annotations

import gc
import shutil
import sys
import weakref
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from mlflow.models import ModelSignature

from daybreak.errors import ModelLoadError
from daybreak.score import model
from daybreak.score.model import PredictModel, load, load_cached
from daybreak.score.registry import resolve


def test_a_model_is_loaded_once_a_process(saved: Path, tmp_path: Path) -> None:
    pin, spec = resolve(str(saved))
    first = load_cached(pin, spec, cache_dir=tmp_path)
    assert load_cached(pin, spec, cache_dir=tmp_path) is first


def test_22_a_process_keeps_one_model(saved: Path, tmp_path: Path) -> None:
    pin, spec = resolve(str(saved))
    first = load_cached(pin, spec, cache_dir=tmp_path)
    assert load_cached(pin, spec, cache_dir=tmp_path, device="another") is not first
    assert len(model._LOADED) == 1


def test_a_collection_after_a_task_does_not_go_through_the_model_and_a_forgotten_model_is_collected(
    saved: Path, tmp_path: Path
) -> None:
    pin, spec = resolve(str(saved))
    loaded: Any = load_cached(pin, spec, cache_dir=tmp_path)
    loaded.itself = loaded  # as networks do, by their hooks
    alive = weakref.ref(loaded)
    assert not any(one is loaded for one in gc.get_objects())
    del loaded
    model.forget()
    gc.collect()
    assert alive() is None
    assert not gc.get_freeze_count()


def test_case_10_a_missing_module_is_one_fatal_error(double_signature: ModelSignature, tmp_path: Path) -> None:
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
            signature=double_signature,
            pip_requirements=[],
        )
    absent.unlink()
    sys.modules.pop("absent_module", None)
    _, spec = resolve(str(tmp_path / "m"))
    with pytest.raises(ModelLoadError, match="'absent_module'"):
        load(tmp_path / "m", spec)


def test_any_other_failure_to_load_is_told_with_its_cause(saved: Path, tmp_path: Path) -> None:
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
    one = load(saved, spec)
    assert isinstance(one, PredictModel)
    rows = pd.DataFrame({"x": [1, 2]})
    assert one.size(rows).tolist() == [1, 1]
    assert one.postprocess(one.forward(one.preprocess(rows))).tolist() == [2, 4]
