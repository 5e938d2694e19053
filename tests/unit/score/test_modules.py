"""A process that has run one model's modules runs the next one's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from mlflow.models import ModelSignature

from daybreak.score import modules
from daybreak.score.model import load
from daybreak.score.registry import resolve

# what stands in a model's code folder, and an expression that says which model's module was run
LAYOUTS: dict[str, tuple[dict[str, str], str]] = {
    "a module": ({"brought.py": "TIMES = {0}"}, "__import__('brought').TIMES"),
    "a package's submodule": (
        {"pack/__init__.py": "", "pack/deep/__init__.py": "", "pack/deep/leaf.py": "TIMES = {0}"},
        "__import__('pack.deep.leaf').deep.leaf.TIMES",
    ),
    "a namespace package": ({"space/leaf.py": "TIMES = {0}"}, "__import__('space.leaf').leaf.TIMES"),
    "a namespace that lies elsewhere too": (
        {"shared/leaf.py": "TIMES = {0}"},
        "__import__('shared.leaf').leaf.TIMES + bool(__import__('shared.other').other.NONE)",
    ),
}


@pytest.fixture(autouse=True)
def _as_it_was(tmp_path: Path) -> Iterator[None]:
    """The search path and the modules as they were, and a place of installed packages on it."""
    path, known = list(sys.path), set(sys.modules)
    (tmp_path / "installed" / "shared").mkdir(parents=True)
    (tmp_path / "installed" / "shared" / "other.py").write_text("NONE = 0")
    (tmp_path / "installed" / "brought.py").write_text("TIMES = 100")
    sys.path.append(str(tmp_path / "installed"))
    yield
    modules._leave()
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.split(".")[0] in ("brought", "pack", "space", "shared", "loads_it"):
            del sys.modules[name]


@pytest.fixture
def logged(tmp_path: Path, double_signature: ModelSignature) -> Callable[..., Path]:
    """Save a model that multiplies by what an expression says when it predicts, with files of code or none."""

    def save(name: str, files: dict[str, str], expression: str) -> Path:
        class Times(mlflow.pyfunc.PythonModel):
            def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
                return model_input["x"] * eval(expression)

        code = tmp_path / f"code of {name}"
        for file, text in files.items():
            (code / file).parent.mkdir(parents=True, exist_ok=True)
            (code / file).write_text(text)
        options: dict[str, Any] = {"signature": double_signature, "pip_requirements": []}
        places = [str(entry) for entry in code.iterdir()] if files else None
        path = tmp_path / name
        mlflow.pyfunc.save_model(str(path), python_model=Times(), code_paths=places, **options)
        return path

    return save


def scored(path: Path) -> int:
    _, spec = resolve(str(path))
    model = load(path, spec)
    return int(model.postprocess(model.forward(model.preprocess(pd.DataFrame({"x": [1]})))).iloc[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_model_runs_its_own_module(layout: str, logged: Callable[..., Path]) -> None:
    files, expression = LAYOUTS[layout]
    versions = [logged(f"v{i}", {name: text.format(i) for name, text in files.items()}, expression) for i in (2, 3)]
    assert [scored(path) for path in (*versions, versions[0])] == [2, 3, 2]


def test_a_model_without_code_after_one_with_it_runs_what_is_installed(logged: Callable[..., Path]) -> None:
    expression = "__import__('brought').TIMES"
    without, own = logged("without", {}, expression), logged("own", {"brought.py": "TIMES = 2"}, expression)
    assert [scored(path) for path in (without, own, without, own)] == [100, 2, 100, 2]


def test_a_module_replaced_in_place_in_the_same_second_is_the_new_one(logged: Callable[..., Path]) -> None:
    path = logged("v", {"brought.py": "TIMES = 2"}, "__import__('brought').TIMES")
    module = path / "code" / "brought.py"
    __import__("py_compile").compile(str(module))  # as a notebook that loaded the model has left it
    times = module.stat()
    assert scored(path) == 2
    module.write_text("TIMES = 3")
    os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert scored(path) == 3


def test_a_loader_module_of_the_model_is_its_own(double_signature: ModelSignature, tmp_path: Path) -> None:
    text = (
        "import pathlib\n"
        "class Loaded:\n"
        "    def __init__(self, times):\n        self.times = times\n"
        "    def predict(self, rows):\n        return rows['x'] * self.times * {0}\n"
        "def _load_pyfunc(path):\n    return Loaded(int(pathlib.Path(path).read_text()))\n"
    )
    found = []
    for times in (2, 3):
        (tmp_path / f"{times}").mkdir()
        (tmp_path / f"{times}" / "loads_it.py").write_text(text.format(times))
        (tmp_path / f"{times}" / "data").write_text("10")
        mlflow.pyfunc.save_model(
            str(tmp_path / f"m{times}"),
            loader_module="loads_it",
            data_path=str(tmp_path / f"{times}" / "data"),
            code_paths=[str(tmp_path / f"{times}" / "loads_it.py")],
            signature=double_signature,
            pip_requirements=[],
        )
        found.append(scored(tmp_path / f"m{times}"))
    assert found == [20, 30]


def test_a_child_and_a_second_load_start_without_what_the_model_added(logged: Callable[..., Path]) -> None:
    path = logged("v", {"brought.py": "TIMES = 2"}, "__import__('brought').TIMES")
    _, spec = resolve(str(path))
    load(path, spec)
    module = __import__("brought")
    load(path, spec)
    assert __import__("brought") is module  # the same model in another precision, say
    assert str(path / "code") in sys.path
    assert not [place for place in modules.search_path() if place.startswith(str(path))]


def test_a_name_that_the_process_had_before_is_told(
    logged: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = logged("v", {"yaml.py": "TIMES = 2", "brought.py": "TIMES = 2"}, "__import__('brought').TIMES")
    assert scored(path) == 2
    assert [record.getMessage() for record in caplog.records if "own module" in record.getMessage()] == [
        "the model's own module yaml is not used: this process had one of that name before"
    ]
