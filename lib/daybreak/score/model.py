"""A model that scores, loaded once a process: staged, or any pyfunc made so."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import pandas as pd

from daybreak.errors import ConfigError, ModelLoadError, first_line
from daybreak.score import modules
from daybreak.score.artifacts import digest_of, local_contents, local_path, plain
from daybreak.score.cache import fetch
from daybreak.score.params import complete
from daybreak.score.registry import ModelPin
from daybreak.score.signature import ModelSpec

__all__ = ["PredictModel", "StagedModel", "forget", "load", "load_cached"]

Array = np.ndarray[Any, Any]
_STAGES = ("size", "preprocess", "forward", "postprocess")


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
        """The device's part, on the main thread. Returns when the device is done, or returns what has a ``wait()``
        that does, and gives the output; a batch or two may be under way then."""

    def postprocess(self, output: Any) -> Any:
        """n rows with the signature's output columns. CPU only; from one thread."""


class PredictModel:
    """Any pyfunc as a staged model: each row costs one, and ``forward`` is ``predict``.

    The model gets what its signature says: a DataFrame of its own with the declared columns, order and
    dtypes; for tensors an ndarray or a dict of ndarrays; for a type hint the list that it says. MLflow's own
    enforcement stays on but for two kinds of signature, where it would fail a whole batch for what ``admit`` rightly
    let through: optional integers or booleans, as soon as one is missing (mlflow#25593), and arrays, where a list of
    floats is no array<float>.

    ``params`` are all of the signature's, as ``params.complete`` gives them: not every path has MLflow fill them up.
    """

    by_rows = True

    def __init__(self, pyfunc: Any, spec: ModelSpec, params: dict[str, Any] | None = None) -> None:
        self._spec = spec
        self._params = params or None
        self._call = pyfunc.predict if _enforceable(pyfunc, spec) else _unenforced(pyfunc)

    def size(self, rows: pd.DataFrame) -> Array:
        return np.ones(len(rows), dtype=np.int64)

    def preprocess(self, rows: pd.DataFrame) -> Any:
        if self._spec.hinted:
            return _listed(rows)
        if not self._spec.tensor_inputs:
            return rows
        if self._spec.by_position:
            return _matrix(rows, self._spec)
        return {f.label: _stack(rows[f.label], f.shape or (), f.dtype) for f in self._spec.inputs}

    def forward(self, batch: Any) -> Any:
        return self._call(batch, params=copy.deepcopy(self._params))

    def postprocess(self, output: Any) -> Any:
        return output


def _listed(rows: pd.DataFrame) -> list[Any]:
    """The only column as Python's own values, where a missing number is None, as MLflow makes a list of a frame."""
    column = rows.iloc[:, 0]
    values = [time.to_pydatetime() for time in column] if column.dtype.kind == "M" else column.tolist()
    return [_none_for_nan(value) for value in values]


def _none_for_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _none_for_nan(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_none_for_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value


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
    nested = isinstance(rows.iloc[0, 0], list | tuple | np.ndarray)
    if len(rows.columns) > 1 or (len(shape) == 1 and not nested):
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
    is called first (device None: the model chooses; precision fp32, bf16 or fp16); any other is wrapped by
    ``PredictModel``, and so is one with stages whose signature has parameters, which only ``predict`` takes.

    Raises:
        ModelLoadError: a module is missing, or loading failed for any reason; or a parameter is unknown or of another
        type; or the model has no such precision.
    """
    try:
        params = complete(spec, params or {})
    except ConfigError as error:
        raise ModelLoadError(error.problem, fix=error.fix) from None
    folder = local_path(os.fspath(path)) or Path(path)
    with modules.of_model(plain(folder), digest_of(*local_contents(folder))):
        pyfunc = _loading(path, lambda: _load_pyfunc(folder))
    staged: Any = _staged(pyfunc)
    if hasattr(staged, "place"):
        _loading(path, lambda: staged.place(device=device, precision=precision))
    elif precision != "fp32":
        raise ModelLoadError(
            f"the model in {os.fspath(path)} has no choice of precision, and the job asks for {precision}",
            fix="set model.precision to auto or fp32, under which such a model computes as it was logged",
        )
    return PredictModel(pyfunc, spec, params) if staged is None or params else cast(StagedModel, staged)


def _loading(path: str | os.PathLike[str], step: Callable[[], Any]) -> Any:
    try:
        return step()
    except ModelLoadError:
        raise
    except ImportError as error:
        missing = f"the module {error.name!r}" if error.name else first_line(error)
        raise ModelLoadError(
            f"the model in {os.fspath(path)} needs {missing}, which is absent here: {first_line(error)}",
            fix="install it on every worker (its requirements.txt lists what it was logged with), "
            "or log the model with code_paths",
        ) from error
    except (Exception, SystemExit) as error:
        raise ModelLoadError(
            f"the model in {os.fspath(path)} does not load: {type(error).__name__}: {first_line(error)}",
            fix="load it with mlflow.pyfunc.load_model in the workers' environment to see the whole error",
        ) from error


def _load_pyfunc(path: Path) -> Any:
    import mlflow.pyfunc
    from mlflow.models import model

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    model.__mlflow_model__ = None  # a model from code that sets none would be the last one that was set
    folder = f"{plain(path)}/."  # MLflow refuses a link that leads out of its folder, but not a folder behind one
    return mlflow.pyfunc.load_model(folder, suppress_warnings=True)


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
    """``fetch`` and ``load``, once a process for each (digest, device, precision, params).

    A process keeps one model, since a device has room for one: the next takes the place of the last.
    """
    key = (pin.digest, str(device), precision, repr(sorted((params or {}).items())))
    if key not in _LOADED:
        path = fetch(pin, cache_dir)
        forget()
        _LOADED[key] = load(path, spec, precision=precision, device=device, params=params)
        gc.collect()
        gc.freeze()  # Spark collects after each task: 0.3 s to find that all of torch and the model is in use
    return _LOADED[key]


def forget() -> None:
    """Let go of the models of this process."""
    _LOADED.clear()
    gc.unfreeze()
