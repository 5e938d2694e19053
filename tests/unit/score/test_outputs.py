from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from daybreak.score.outputs import Conformed, ModelOutputError, conform
from daybreak.score.signature import Field, ModelSpec

IN = (Field("x", "long"),)


def spec(*outputs: tuple[str, str]) -> ModelSpec:
    return ModelSpec(IN, tuple(Field(name, type_) for name, type_ in outputs))


ONE = spec(("prediction", "double"))
TWO = spec(("a", "long"), ("b", "double"))
VECTOR = spec(("v", "array<float>"))


def told(done: Conformed) -> dict[int, str]:
    return {i: reason.error_class for i, reason in done.refused.items()}


@pytest.mark.parametrize(
    "raw",
    [
        np.array([1.0, 2.0, 3.0]),
        np.array([[1], [2], [3]]),
        np.array([1, 2, 3], dtype="float16"),
        [1, 2, 3],
        [[1.0], [2.0], [3.0]],
        (1, 2, 3),
        pd.Series([1, 2, 3]),
        pd.Series([1, 2, 3], index=list("xyz")),
        pd.Series([3, 1, 2], index=[2, 0, 1]),
        pd.Series([1, 2, 3], index=[10, 11, 12]),
        pd.Series([1, 2, 3], index=[0, 0, 0]),
        pd.DataFrame({"prediction": [1, 2, 3]}),
        pd.DataFrame({"anything": [1, 2, 3]}),
        pd.DataFrame({"extra": [9, 9, 9], "prediction": [2, 1, 3]}, index=[1, 0, 2]),
        {"prediction": [1, 2, 3]},
        {"out": np.array([1, 2, 3])},
        [{"prediction": 1}, {"prediction": 2}, {"prediction": 3}],
    ],
    ids=lambda raw: type(raw).__name__,
)
def test_whatever_a_pyfunc_returns_becomes_the_declared_column(raw: Any) -> None:
    done = conform(ONE, raw, 3)
    pd.testing.assert_frame_equal(done.frame, pd.DataFrame({"prediction": [1.0, 2.0, 3.0]}))
    assert done.positions.tolist() == [0, 1, 2]
    assert done.refused == {}


@pytest.mark.parametrize(
    "raw",
    [
        np.array([[1, 0.5], [2, 1.5]]),
        [[1, 0.5], [2, 1.5]],
        [(1, 0.5), (2, 1.5)],
        (np.array([1, 2]), np.array([0.5, 1.5])),
        {"b": [0.5, 1.5], "a": [1, 2]},
        pd.DataFrame({"b": [0.5, 1.5], "a": [1, 2]}),
        pd.DataFrame({"b": [1.5, 0.5], "a": [2, 1]}, index=[1, 0]),
        pd.DataFrame([[1, 0.5], [2, 1.5]]),  # 8: names replaced by 0..N
        [{"b": 0.5, "a": 1}, {"a": 2, "b": 1.5}],
    ],
)
def test_case_09_two_outputs_map_to_their_columns(raw: Any) -> None:
    expected = pd.DataFrame({"a": np.array([1, 2]), "b": [0.5, 1.5]})
    pd.testing.assert_frame_equal(conform(TWO, raw, 2).frame, expected)


@pytest.mark.parametrize(
    "raw",
    [
        np.array([[1, 2], [3, 4]], dtype="float32"),
        np.array([[1, 2], [3, 4]], dtype="int64"),
        [[1, 2], [3, 4]],
        [np.array([1.0, 2.0]), np.array([3.0, 4.0])],
        pd.Series([[1, 2], [3, 4]]),
        pd.DataFrame({"v": [[1, 2], [3, 4]]}),
        pd.DataFrame({"p0": [1, 3], "p1": [2, 4]}),
    ],
)
def test_a_matrix_becomes_one_array_column(raw: Any) -> None:
    done = conform(VECTOR, raw, 2)
    assert [list(map(float, value)) for value in done.frame["v"]] == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("raw", [1.5, np.float64(1.5), np.array(1.5), [1.5], np.array([[1.5]])])
def test_one_row_may_come_as_a_scalar(raw: Any) -> None:
    assert conform(ONE, raw, 1).frame["prediction"].tolist() == [1.5]


def test_one_vector_may_come_flat() -> None:
    assert conform(VECTOR, [1.0, 2.0], 1).frame["v"].tolist() == [[1.0, 2.0]]
    assert conform(TWO, np.array([1.0, 2.0]), 1).frame.to_dict("list") == {"a": [1], "b": [2.0]}


def test_rows_that_a_model_dropped_are_known_by_its_index() -> None:
    done = conform(ONE, pd.Series([30.0, 10.0], index=[3, 1]), 4)
    assert done.frame["prediction"].tolist() == [10.0, 30.0]
    assert done.positions.tolist() == [1, 3]
    assert told(done) == {0: "NoOutput", 2: "NoOutput"}


@pytest.mark.parametrize(
    "make", [dict, lambda columns: tuple(columns.values()), pd.DataFrame], ids=["dict", "tuple", "frame"]
)
def test_a_column_that_is_sorted_goes_back_to_its_rows_whatever_holds_it(make: Any) -> None:
    index = [2, 0, 1]
    columns = {"a": pd.Series([30, 10, 20], index=index), "b": pd.Series([3.0, 1.0, 2.0], index=index)}
    done = conform(TWO, make(columns), 3)
    assert done.frame.to_dict("list") == {"a": [10, 20, 30], "b": [1.0, 2.0, 3.0]}
    some = {name: column.loc[[2, 0]] for name, column in columns.items()}
    done = conform(TWO, make(some), 3)
    assert (done.frame["a"].tolist(), done.positions.tolist(), told(done)) == ([10, 30], [0, 2], {1: "NoOutput"})


def test_a_column_in_order_beside_one_that_is_sorted() -> None:
    done = conform(TWO, {"a": [10, 20, 30], "b": pd.Series([3.0, 1.0, 2.0], index=[2, 0, 1])}, 3)
    assert done.frame.to_dict("list") == {"a": [10, 20, 30], "b": [1.0, 2.0, 3.0]}
    with pytest.raises(ModelOutputError, match="of different rows"):
        conform(TWO, {"a": pd.Series([1, 2], index=[0, 2]), "b": pd.Series([1.0, 2.0], index=[1, 2])}, 3)


def test_an_index_that_was_numbered_anew_proves_nothing() -> None:
    with pytest.raises(ModelOutputError, match="2 rows for 4"):
        conform(ONE, pd.Series([1.0, 2.0]), 4)


@pytest.mark.parametrize("raw", [[], np.array([]), pd.Series([], dtype=float), pd.DataFrame({"prediction": []})])
def test_no_output_for_one_row_is_that_rows_failure(raw: Any) -> None:
    done = conform(ONE, raw, 1)
    assert told(done) == {0: "NoOutput"}
    assert list(done.frame.columns) == ["prediction"]


@pytest.mark.parametrize(
    ("output", "raw", "n"),
    [
        (ONE, np.arange(3.0), 2),
        (ONE, np.arange(1.0), 2),
        (ONE, None, 2),
        (ONE, 5.0, 2),
        (TWO, np.ones((2, 3)), 2),
        (TWO, pd.DataFrame({"a": [1, 2]}), 2),
        (TWO, {"a": [1, 2]}, 2),
        (TWO, {"a": [1, 2], "b": [1]}, 2),
        (ONE, pd.Series([1.0, 2.0, 3.0], index=[0, 1, 1]), 2),
    ],
)
def test_what_cannot_be_matched_raises(output: ModelSpec, raw: Any, n: int) -> None:
    with pytest.raises(ModelOutputError):
        conform(output, raw, n)


@pytest.mark.parametrize(
    ("type_", "values", "kept", "refused"),
    [
        ("long", [1, 2.0, 2.5, "x", None], [1, 2], {2: "InvalidOutput", 3: "InvalidOutput", 4: "NullOutput"}),
        ("string", ["a", 1, None], ["a"], {1: "InvalidOutput", 2: "NullOutput"}),
        ("boolean", [True, 0, 3], [True, False], {2: "InvalidOutput"}),
        ("array<float>", [[1.0], "no", None], [[1.0]], {1: "InvalidOutput", 2: "NullOutput"}),
        ("struct<`a`:long>", [{"a": 1}, {"b": 1}], [{"a": 1}], {1: "InvalidOutput"}),
    ],
)
def test_a_value_of_another_type_fails_its_row_only(
    type_: str, values: list[Any], kept: list[Any], refused: dict[int, str]
) -> None:
    done = conform(spec(("p", type_)), pd.Series(values, dtype=object), len(values))
    assert done.frame["p"].tolist() == kept
    assert told(done) == refused


def test_nan_and_infinity_pass_as_they_are() -> None:
    done = conform(ONE, [float("nan"), float("inf"), None], 3)
    np.testing.assert_array_equal(done.frame["prediction"], [np.nan, np.inf, np.nan])


def test_integers_do_not_pass_through_floats() -> None:
    big = 9223372036854775707
    assert conform(spec(("p", "long")), [big, 1], 2).frame["p"].tolist() == [big, 1]
    assert conform(TWO, [(big, 0.5), (1, 0.5)], 2).frame["a"].tolist() == [big, 1]


def test_case_04_a_far_date_comes_out_exact() -> None:
    done = conform(spec(("t", "datetime")), np.array(["9999-12-31"], dtype="datetime64[us]"), 1)
    assert done.frame["t"].astype(str).tolist() == ["9999-12-31"]


def test_a_vector_of_another_width_than_declared_fails_its_row() -> None:
    fixed = ModelSpec(IN, (Field("v", "array<float>", True, (2,), "<f4"),))
    done = conform(fixed, [np.ones(2, "float32"), np.ones(3, "float32")], 2)
    assert told(done) == {1: "InvalidOutput"}
    assert "(3,)" in done.refused[1].message


def test_dicts_are_one_struct_column_if_that_is_the_output() -> None:
    structs = spec(("prediction", "struct<`label`:string,`score`:double>"))
    raw = [{"label": "a", "score": 1}, {"label": "b", "score": 0.5}]
    assert conform(structs, raw, 2).frame["prediction"].tolist() == [
        {"label": "a", "score": 1.0},
        {"label": "b", "score": 0.5},
    ]


MATRIX = spec(("m", "array<array<double>>"))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ragged_answers_are_answers_at_any_batch_size(n: int) -> None:
    """numpy makes no array of a ragged list; whether a row is the only one of its batch must not matter."""
    ragged = [[1.0], [2.0, 3.0]]
    assert conform(MATRIX, [ragged] * n, n).frame["m"].tolist() == [ragged] * n
    several = spec(("m", "array<array<double>>"), ("y", "double"))
    assert conform(several, [(ragged, 1.0)] * n, n).frame["m"].tolist() == [ragged] * n
    assert told(conform(ONE, [ragged] * n, n)) == dict.fromkeys(range(n), "InvalidOutput")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_tuple_has_the_columns_and_a_list_the_rows_at_any_batch_size(n: int) -> None:
    labels, scores = list(range(n)), [i + 0.5 for i in range(n)]
    expected = {"a": labels, "b": scores}
    rows = list(zip(labels, scores, strict=True))
    for raw in ((labels, scores), (np.array(labels), np.array(scores)), rows, tuple(rows), [list(row) for row in rows]):
        assert conform(TWO, raw, n).frame.to_dict("list") == expected, raw


def test_a_set_is_refused_since_it_has_no_order() -> None:
    with pytest.raises(ModelOutputError, match="set"):
        conform(ONE, {3.0, 1.0, 2.0}, 3)


def test_a_list_of_tensors_is_a_list_of_values() -> None:
    torch = pytest.importorskip("torch")
    assert conform(ONE, [torch.tensor(1.5), torch.tensor([2.5])], 2).frame["prediction"].tolist() == [1.5, 2.5]
    rows = conform(VECTOR, [torch.tensor([1.0, 2.0]), torch.tensor([3.0])], 2).frame["v"]
    assert [list(row) for row in rows] == [[1.0, 2.0], [3.0]]


def test_a_text_that_is_no_unicode_fails_its_row_and_not_the_shard() -> None:
    half = "\ud83d"
    for type_, bad, good in [
        ("string", half, "é"),
        ("array<string>", ["a", half], ["é"]),
        ("map<string>", {half: "a"}, {"é": "a"}),
    ]:
        done = conform(spec(("p", type_)), [bad, good], 2)
        assert told(done) == {0: "InvalidOutput"}
        assert done.frame["p"].tolist() == [good]


@pytest.mark.parametrize("time", ["10000-01-01", "0000-12-31"])
def test_case_04_a_time_beyond_the_calendar_fails_its_row_and_not_the_shard(time: str) -> None:
    late, good = np.datetime64(time, "us"), np.datetime64("9999-12-31T23:59:59.999999")
    assert told(conform(spec(("p", "datetime")), np.array([late, good]), 2)) == {0: "InvalidOutput"}
    assert told(conform(spec(("p", "array<datetime>")), [[late], [good]], 2)) == {0: "InvalidOutput"}


def test_objects_fail_their_rows() -> None:
    raw = [object(), 1.0, Exception("x"), complex(1, 2), lambda: 1]
    assert told(conform(ONE, raw, 5)) == dict.fromkeys([0, 2, 3, 4], "InvalidOutput")


@pytest.mark.parametrize(
    "raw",
    [pd.Categorical(["b", "a"]), pd.Index(["b", "a"]), pd.array(["b", "a"], dtype="string"), np.array(["b", "a"])],
    ids=lambda raw: type(raw).__name__,
)
def test_pandas_own_kinds_of_columns_are_columns(raw: Any) -> None:
    assert conform(spec(("p", "string")), raw, 2).frame["p"].tolist() == ["b", "a"]
    assert conform(spec(("p", "string")), pd.DataFrame({"p": raw}), 2).frame["p"].tolist() == ["b", "a"]
