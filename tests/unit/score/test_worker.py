"""The worker's function on frames as Spark hands them over, with real models and without Spark."""

from __future__ import annotations

import decimal
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyspark
import pytest
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel
from mlflow.types.schema import Array, ColSpec, DataType, Schema, TensorSpec
from pyspark.sql import types as T

import daybreak
from daybreak import schema
from daybreak.config import Input
from daybreak.errors import ModelLoadError, PreflightError, WorkerEndedError
from daybreak.score import device, model, worker
from daybreak.score.registry import resolve
from daybreak.score.signature import Field
from daybreak.score.worker import Scorer, decode
from daybreak.source import preflight

BIG = 2**63 - 25
DOUBLE = [ColSpec(DataType.double)]
SEEN: list[Any] = []  # what the models below were given
NEVER = -2  # an input on which the model raises


class Echo(PythonModel):
    """Gives back ``n`` and its text; records what it saw."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        SEEN.extend(model_input["n"].tolist())
        if (model_input["n"] == NEVER).any():
            raise ArithmeticError("never")
        return pd.DataFrame({"same": model_input["n"], "text": model_input["n"].astype(str)})


class Weighted(PythonModel):
    """Weighs the places of a row by 1, 10, 100, ..., so that their order shows."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        SEEN.append(model_input)
        rows = np.asarray(model_input, dtype="float64").reshape(len(model_input), -1)
        return rows @ 10.0 ** np.arange(rows.shape[1])


class Joined(PythonModel):
    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        SEEN.append(model_input)
        return np.array(["".join(row) for row in model_input.reshape(len(model_input), -1)], dtype=object)


@pytest.fixture(autouse=True)
def _unseen() -> None:
    SEEN.clear()


def saved(path: Path, model: Any, inputs: list[Any], outputs: list[Any]) -> Path:
    signature = ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs))
    mlflow.pyfunc.save_model(str(path), python_model=model, signature=signature, pip_requirements=[])
    return path


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs = [ColSpec(DataType.long, "n"), ColSpec(DataType.datetime, "at", required=False)]
    outputs = [ColSpec(DataType.long, "same"), ColSpec(DataType.string, "text")]
    return saved(tmp_path_factory.mktemp("echo") / "m", Echo(), inputs, outputs)


def scorer(model: Path, *, features: tuple[Field, ...] | None = None, keys: int = 1, redact: bool = False) -> Scorer:
    pin, spec = resolve(str(model))
    return Scorer(
        pin=pin,
        spec=spec,
        features=spec.inputs if features is None else features,
        keys=keys,
        tokens=None,
        precision="fp32",
        params={},
        cache_dir="unused",
        redact=redact,
    )


def wire(n: list[Any], *, keys: list[Any] | None = None, at: list[Any] | None = None) -> pd.DataFrame:
    """A frame of shard 7 as it comes off the wire."""
    return pd.DataFrame(
        {
            "shard_id": pd.Series([7] * len(n), dtype="int32"),
            "k0": pd.Series(keys or [100 + i for i in range(len(n))], dtype="Int64"),
            "f0": pd.Series(n, dtype="Int64"),
            "f1": pd.Series(at or [None] * len(n), dtype="Int64"),
            "input_hash": pd.Series([BIG - i for i in range(len(n))], dtype="int64"),
        }
    )


def run(one: Scorer, *frames: pd.DataFrame) -> pd.DataFrame:
    """The staged rows, in order, each with its own values only."""
    return pd.concat([frame.astype(object) for frame in one(iter(frames))], ignore_index=True)


def of_kind(staged: pd.DataFrame, kind: str) -> pd.DataFrame:
    return staged[staged["kind"] == kind].reset_index(drop=True)


def counts(staged: pd.DataFrame) -> tuple[int, int, int]:
    last = staged.iloc[-1]
    assert last["kind"] == "receipt"
    assert (staged["kind"] == "receipt").sum() == 1
    return int(last["rows_in"]), int(last["rows_scored"]), int(last["rows_dead"])


# -- rows


def test_keys_hashes_and_predictions_come_out_under_their_names_and_exact(echo: Path) -> None:
    staged = run(scorer(echo), wire([BIG, 1, -BIG], keys=[BIG - 1, BIG - 2, None]))
    scored = of_kind(staged, "scored")
    assert list(staged.columns) == [column.name for column in schema.staging([""], ["", ""])]
    assert scored["k0"].tolist() == [BIG - 1, BIG - 2]
    assert scored["p0"].tolist() == [BIG, 1]
    assert scored["p1"].tolist() == [str(BIG), "1"]
    assert scored["input_hash"].tolist() == [BIG, BIG - 1]
    assert set(staged["shard_id"]) == {7}
    assert staged["attempt"].nunique() == 1


def test_a_row_keeps_its_key_when_its_neighbours_fail(echo: Path) -> None:
    staged = run(scorer(echo), wire([BIG, NEVER, None, 3], keys=[BIG, BIG - 1, BIG - 2, BIG - 3]))
    scored, dead = of_kind(staged, "scored"), of_kind(staged, "dead")
    assert list(zip(scored["k0"], scored["p0"], scored["input_hash"], strict=True)) == [
        (BIG, BIG, BIG),
        (BIG - 3, 3, BIG - 3),
    ]
    assert list(zip(dead["k0"], dead["phase"], dead["error_class"], dead["input_hash"], strict=True)) == [
        (BIG - 1, "forward", "ArithmeticError", BIG - 1),
        (BIG - 2, "input", "NullInput", BIG - 2),
    ]
    assert counts(staged) == (4, 2, 2)


def test_several_keys_stay_in_their_order(echo: Path) -> None:
    frame = wire([1, 2]).assign(k1=["a", "b"])
    assert of_kind(run(scorer(echo, keys=2), frame), "scored")[["k0", "k1"]].to_numpy().tolist() == [
        [100, "a"],
        [101, "b"],
    ]


def test_several_frames_of_a_shard_end_in_one_receipt(echo: Path) -> None:
    staged = run(scorer(echo), wire([1, 2]), wire([]), wire([NEVER]), wire([4], keys=[None]), wire([5]))
    assert counts(staged) == (5, 3, 2)
    assert of_kind(staged, "scored")["p0"].tolist() == [1, 2, 5]
    facts = json.loads(staged.iloc[-1]["receipt"])
    assert facts["rows_forward"] == 10  # frames are one window: four rows, twice two of them, and two alone
    assert facts["precision"] == "fp32"
    assert facts["ended"] >= facts["began"]
    assert {"load_seconds", "host", "pid", "padding", "device_busy"} <= set(facts)


def test_22_the_gpu_and_the_cores_of_a_task_are_set_before_cuda_starts(tmp_path: Path) -> None:
    """In a process of its own, since a process keeps what it claims. It has two tasks, as a reused worker has."""
    code = """if True:
        import os, sys
        from daybreak.score import device
        del os.environ["OMP_NUM_THREADS"]
        device.claim("3", 2)
        device.claim("1", 2)  # its model is on the first, and another worker has that one
        assert "torch" not in sys.modules
        print(*(os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RAYON_NUM_THREADS")))
    """
    environment = {
        "PYTHONPATH": str(Path(daybreak.__file__).parents[1]),
        "OMP_NUM_THREADS": "9",
        "RAYON_NUM_THREADS": "4",
    }
    told = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert told.stdout.split() == ["3", "2", "4"]


def test_22_no_two_workers_are_on_one_gpu_when_tasks_go_to_other_workers_than_before(tmp_path: Path) -> None:
    """Each tells its GPU after each task. Spark hands a task to any idle worker, and starts one when there is none."""
    code = """if True:
        import os, sys
        from daybreak.score import device
        for line in sys.stdin:
            device.claim(line.strip(), 1, notes=sys.argv[1])
            print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(daybreak.__file__).parents[1])}

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "notes")]
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def task(worker: subprocess.Popen[str], gpu: str) -> str:
        assert worker.stdin
        assert worker.stdout
        worker.stdin.write(f"{gpu}\n")
        return worker.stdout.readline().strip()

    with start() as a, start() as b, start() as c:
        assert task(a, "0") == "0"  # as the one that decides the precision
        assert task(a, "2") == "0"  # the first task of the scoring job comes to it, with another GPU
        assert task(b, "0") == "2"
        assert task(c, "1") == "1"
        assert [task(a, "1"), task(b, "2"), task(c, "0")] == ["0", "2", "1"]
        b.terminate()  # as a row that ends its worker
        b.wait()
        assert [task(a, "2"), task(c, "0")] == ["0", "1"]
        with start() as d:
            assert task(d, "1") == "2"
            for worker in (a, c, d):
                worker.stdin.close()  # type: ignore[union-attr]


def test_22_where_nothing_can_be_noted_a_worker_has_the_gpu_that_its_task_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_claimed", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")
    (tmp_path / "file").touch()
    device.claim("2", 1, notes=tmp_path / "file")
    device.claim("1", 1, notes=tmp_path / "file")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"


def test_no_two_executions_have_the_same_name(echo: Path) -> None:
    one = scorer(echo)
    assert run(one, wire([1]))["attempt"].iloc[0] != run(one, wire([1]))["attempt"].iloc[0]


@pytest.mark.parametrize("frames", [[], [wire([])], [wire([]), wire([])]], ids=["none", "empty", "two empty"])
def test_without_rows_no_model_is_loaded_and_nothing_is_staged(echo: Path, frames: list[pd.DataFrame]) -> None:
    one = scorer(echo)
    absent = replace(one, pin=replace(one.pin, artifact_uri="/no/such/model", digest="absent"))
    assert list(absent(iter(frames))) == []
    with pytest.raises(ModelLoadError):
        list(absent(iter([*frames, wire([1])])))


# -- attempts


def test_only_an_attempt_after_one_that_ended_its_worker_is_isolated(
    echo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others keep the worker's model: a speculative copy, one after a told error, one whose executor was taken."""
    given = iter([0, 1, 2, 1])

    def context() -> Any:
        told = {"attemptNumber": next(given), "stageId": 1, "taskAttemptId": 5, "cpus": 1, "resources": {}}
        return SimpleNamespace(**{name: partial(lambda value: value, value) for name, value in told.items()})

    monkeypatch.setattr(worker, "_claim", lambda *_: None)
    monkeypatch.setattr(pyspark.TaskContext, "get", staticmethod(context))
    one = replace(scorer(echo), cache_dir=str(tmp_path))
    first = one(iter([wire([1]), wire([2])]))
    next(first)
    loaded = dict(model._LOADED)
    for how in ("beside the first", "a third, of four"):
        assert "isolated" not in json.loads(run(one, wire([1])).iloc[-1]["receipt"]), how
    first.close()
    assert "isolated" not in json.loads(run(one, wire([1])).iloc[-1]["receipt"])
    assert {key: id(value) for key, value in model._LOADED.items()} == {key: id(value) for key, value in loaded.items()}


@pytest.mark.parametrize(
    ("number", "max_failures", "ended_here", "isolated"),
    [(1, 4, False, False), (2, 4, False, False), (3, 4, False, True), (1, 4, True, True), (1, 2, False, False),
     (9, 4, False, True), (1, 1, True, True)],
)  # fmt: skip
def test_what_another_host_may_have_seen_counts_when_one_more_failure_may_end_the_job(
    echo: Path, monkeypatch: pytest.MonkeyPatch, number: int, max_failures: int, ended_here: bool, isolated: bool
) -> None:
    monkeypatch.setattr(worker.attempts, "ended_a_worker", lambda *_: ended_here)
    one = replace(scorer(echo), max_failures=max_failures)
    assert one._has_ended_a_worker("shard", number) is isolated


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("CUDA error: device-side assert triggered")])
def test_what_ends_a_worker_is_told_as_that(error: BaseException) -> None:
    """So that a driver whose tasks are tried only once scores what is left in processes of their own."""
    with pytest.raises(WorkerEndedError, match=type(error).__name__), worker._told():
        raise error


def test_a_stream_that_an_earlier_model_closed_is_open_for_the_next(
    echo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "stderr"):
        closed = io.StringIO()
        closed.close()
        monkeypatch.setattr(sys, name, closed)
    run(scorer(echo), wire([1]))
    assert not sys.stdout.closed
    assert not sys.stderr.closed


# -- null keys


def test_a_null_key_is_a_dead_letter_and_its_row_never_reaches_the_model(echo: Path) -> None:
    staged = run(scorer(echo), wire([1, NEVER, 3], keys=[BIG, None, 102]))
    (dead,) = of_kind(staged, "dead").to_dict("records")
    assert (dead["phase"], dead["error_class"], dead["attempts"]) == ("key", "NullKey", 0)
    assert pd.isna(dead["k0"])
    assert dead["input_hash"] == BIG - 1
    assert json.loads(dead["input"]) == {"n": NEVER, "at": None}
    assert SEEN == [1, 3]
    assert of_kind(staged, "scored")["k0"].tolist() == [BIG, 102]
    assert counts(staged) == (3, 2, 1)


def test_one_null_in_a_key_of_two_columns_is_enough(echo: Path) -> None:
    staged = run(scorer(echo, keys=2), wire([1, 2]).assign(k1=["a", None]))
    assert of_kind(staged, "dead")[["k0", "k1"]].to_numpy().tolist() == [[101, None]]


def test_frames_in_which_every_key_is_null_are_accounted_for(echo: Path) -> None:
    staged = run(scorer(echo), wire([1, 2], keys=[None, None]), wire([3], keys=[None]))
    assert counts(staged) == (3, 0, 3)
    assert set(of_kind(staged, "dead")["phase"]) == {"key"}
    assert SEEN == []


# -- dead letters


def test_a_dead_letter_tells_where_what_how_often_and_with_what(echo: Path) -> None:
    staged = run(scorer(echo), wire([1, NEVER, 3, 4], at=[None, 86_400_000_001, None, None]))
    (dead,) = of_kind(staged, "dead").to_dict("records")
    assert (dead["phase"], dead["error_class"], dead["message"]) == ("forward", "ArithmeticError", "never")
    assert dead["attempts"] == 3  # in a batch of four, of two, alone
    assert json.loads(dead["input"]) == {"n": NEVER, "at": "1970-01-02T00:00:00.000001+00:00"}


def test_redact_leaves_the_input_out(echo: Path) -> None:
    staged = run(scorer(echo, redact=True), wire([NEVER, 1], keys=[1, None]))
    dead = of_kind(staged, "dead")
    assert dead["input"].tolist() == [None, None]
    assert dead["error_class"].tolist() == ["ArithmeticError", "NullKey"]
    assert all(message.startswith("redacted") for message in dead["message"])


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("type_", "value", "told"),
    [
        ("double", float("nan"), None),
        ("double", float("inf"), "inf"),
        ("float", np.float32("nan"), None),
        ("double", 1.5, 1.5),
        ("long", BIG, BIG),
        ("long", pd.NA, None),
        ("boolean", np.bool_(True), True),
        ("string", 'é"\n', 'é"\n'),
        ("string", None, None),
        ("string", decimal.Decimal("1.10"), "1.10"),
        ("string", decimal.Decimal("NaN"), None),
        ("string", date(2024, 2, 29), "2024-02-29"),
        ("string", datetime(2024, 2, 29, 1), "2024-02-29T01:00:00+00:00"),
        ("string", pd.NaT, None),
        ("string", np.datetime64("2024-02-29T01:00:00.000000000"), "2024-02-29T01:00:00+00:00"),
        ("binary", b"\x00\xff", "00ff"),
        ("binary", bytearray(b"\x01"), "01"),
        ("array<float>", np.array([1.5, np.nan, np.inf], dtype="float32"), [1.5, None, "inf"]),
        ("array<long>", np.array([BIG, None], dtype=object), [BIG, None]),
        ("array<datetime>", np.array(["2024-02-29T01"], dtype="datetime64[ns]"), ["2024-02-29T01:00:00+00:00"]),
        ("array<binary>", [b"\x01", None], ["01", None]),
        ("array<array<float>>", np.array([np.array([1.0]), np.array([np.nan, 2.0])], dtype=object), [[1], [None, 2]]),
        ("map<double>", {"a": float("nan")}, {"a": None}),
        ("map<double>", [("a", float("nan"))], [["a", None]]),
    ],
    ids=repr,
)
def test_any_input_is_told_as_valid_json(echo: Path, type_: str, value: Any, told: Any) -> None:
    cells = np.empty(1, dtype=object)
    cells[0] = value
    one = scorer(echo, features=(Field("n", "long"), Field("at", type_)))
    staged = run(one, wire([1], keys=[None]).assign(f1=pd.Series(cells)))
    assert strict_json(of_kind(staged, "dead")["input"].iloc[0]) == {"n": 1, "at": told}


def test_a_whole_column_of_floats_with_a_nan_is_valid_json(echo: Path) -> None:
    one = scorer(echo, features=(Field("n", "long"), Field("at", "double")))
    staged = run(one, wire([1, 2], keys=[None, None]).assign(f1=[0.5, float("nan")]))
    assert [strict_json(text)["at"] for text in of_kind(staged, "dead")["input"]] == [0.5, None]


# -- datetimes


def micros(text: str) -> int:
    return int(np.datetime64(text, "us").astype("int64"))


@pytest.mark.parametrize("dtype", ["Int64", "int64"])
def test_datetimes_cross_as_microseconds_to_the_end_of_time(dtype: str) -> None:
    texts = ["9999-12-31T23:59:59.999999", "0001-01-01", "1969-12-31T23:59:59.999999"]
    at = [micros(text) for text in texts] + ([None] if dtype == "Int64" else [])  # type: ignore[list-item]
    decoded = decode(pd.DataFrame({"f0": pd.Series(at, dtype=dtype)}), (Field("at", "datetime"),))["at"]
    assert decoded.dtype == "datetime64[us]"
    assert decoded.to_numpy()[:3].tolist() == [datetime.fromisoformat(text) for text in texts]
    assert decoded.isna().tolist() == [False] * 3 + [True] * (len(at) - 3)


def test_a_datetime_beyond_nanoseconds_is_a_dead_letter_with_its_date(echo: Path) -> None:
    at = [micros("9999-12-31T23:59:59.999999"), None, micros("2024-02-29")]
    staged = run(scorer(echo), wire([1, 2, 3], at=at))
    assert of_kind(staged, "scored")["p0"].tolist() == [2, 3]
    (dead,) = of_kind(staged, "dead").to_dict("records")
    assert json.loads(dead["input"]) == {"n": 1, "at": "9999-12-31T23:59:59.999999+00:00"}


# -- inputs without a name


TABLE = T.StructType(
    [
        T.StructField("id", T.LongType()),
        *(T.StructField(name, T.DoubleType()) for name in "abc"),
        T.StructField("s", T.StringType()),
        T.StructField("v", T.ArrayType(T.DoubleType())),
        T.StructField("m", T.ArrayType(T.ArrayType(T.FloatType()))),
    ]
)


def bound(model: Path, columns: list[str]) -> Scorer:
    _, spec = resolve(str(model))
    binding = preflight.bind(TABLE, Input(table="t", key=["id"], columns=columns), spec)
    assert [feature.column for feature in binding.features] == columns
    return scorer(model, features=tuple(feature.field for feature in binding.features))


def predictions(one: Scorer, *columns: list[Any]) -> list[Any]:
    frame = wire([0] * len(columns[0])).drop(columns=["f0", "f1"])
    for i, values in enumerate(columns):
        nested = isinstance(values[0], list | np.ndarray)
        frame[f"f{i}"] = pd.Series(values, dtype=object) if nested else pd.Series(values)
    staged = run(one, frame)
    assert of_kind(staged, "dead").empty, of_kind(staged, "dead")["message"].tolist()
    return of_kind(staged, "scored")["p0"].tolist()


TWO_ROWS = ([1.0, 4.0], [2.0, 5.0], [3.0, 6.0])
ONE_COLUMN = [np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])]


@pytest.mark.parametrize("width", [3, -1])
@pytest.mark.parametrize(
    ("columns", "values"), [(["b", "a", "c"], TWO_ROWS), (["v"], (ONE_COLUMN,))], ids=["three columns", "one of arrays"]
)
def test_an_unnamed_tensor_takes_columns_in_order_or_one_of_arrays(
    tmp_path: Path, width: int, columns: list[str], values: Any
) -> None:
    model = saved(
        tmp_path / "m", Weighted(), [TensorSpec(np.dtype("float32"), (-1, width))], [ColSpec(DataType.double)]
    )
    assert predictions(bound(model, columns), *values) == [321.0, 654.0]
    assert [(seen.shape, seen.dtype) for seen in SEEN] == [((2, 3), np.float32)]


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (-1, -1)])
def test_an_unnamed_tensor_of_one_place_takes_one_column(tmp_path: Path, shape: tuple[int, ...]) -> None:
    model = saved(tmp_path / "m", Weighted(), [TensorSpec(np.dtype("float64"), shape)], DOUBLE)
    assert predictions(bound(model, ["a"]), [1.5, float("nan")])[0] == 1.5
    assert [seen.shape for seen in SEEN] == [(2, *(abs(size) for size in shape[1:]))]


@pytest.mark.parametrize("dtype", ["object", "str"])
def test_an_unnamed_tensor_of_texts_of_any_width_takes_one_column(tmp_path: Path, dtype: str) -> None:
    model = saved(tmp_path / "m", Joined(), [TensorSpec(np.dtype(dtype), (-1, -1))], [ColSpec(DataType.string)])
    assert predictions(bound(model, ["s"]), ["ab", "c"]) == ["ab", "c"]
    assert [seen.shape for seen in SEEN] == [(2, 1)]


def test_an_unnamed_tensor_of_matrices_takes_one_column_of_arrays_of_arrays(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", Weighted(), [TensorSpec(np.dtype("float32"), (-1, 2, 2))], DOUBLE)
    assert predictions(bound(model, ["m"]), [[[1.0, 2.0], [3.0, 4.0]]]) == [4321.0]
    with pytest.raises(PreflightError, match=r"takes 1 column\(s\) in order, and input.columns lists 2"):
        bound(model, ["m", "v"])


def test_unnamed_columns_are_taken_in_order(tmp_path: Path) -> None:
    inputs = [ColSpec(DataType.double), ColSpec(DataType.float)]
    model = saved(tmp_path / "m", Weighted(), inputs, DOUBLE)
    assert predictions(bound(model, ["b", "a"]), [1.0, 3.0], [2.0, 4.0]) == [21.0, 43.0]
    assert [seen.dtypes.tolist() for seen in SEEN] == [[np.float64, np.float32]]


class Sums(PythonModel):
    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return [float(sum(values)) for values in model_input.iloc[:, 0]]


def test_an_unnamed_column_of_arrays_is_taken(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", Sums(), [ColSpec(Array(DataType.double))], DOUBLE)
    assert predictions(bound(model, ["v"]), ONE_COLUMN) == [6.0, 15.0]


def test_a_column_listed_twice_is_refused_where_it_would_be_lost(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", Weighted(), [TensorSpec(np.dtype("float32"), (-1, 2))], DOUBLE)
    with pytest.raises(PreflightError, match=r"input\.columns lists 'a' 2 times"):
        bound(model, ["a", "a"])
