from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.score.columns import take
from daybreak.score.inputs import Admitted, admit
from daybreak.score.signature import Field, ModelSpec

OUT = (Field("prediction", "double"),)
BIG = 9223372036854775707


def gate(type_: str, values: Any, *, required: bool = True, dtype: Any = None) -> Admitted:
    series = values if isinstance(values, pd.Series) else pd.Series(values, dtype=dtype or object)
    return admit(ModelSpec((Field("x", type_, required),), OUT), pd.DataFrame({"x": series}))


def reasons(admitted: Admitted) -> dict[int, str]:
    return {i: reason.error_class for i, reason in admitted.refused.items()}


@pytest.mark.parametrize("dtype", ["Int64", object])
def test_case_01_integers_beside_a_null_stay_exact_to_the_last_digit(dtype: Any) -> None:
    admitted = gate("long", [BIG, None, -BIG], dtype=dtype)
    assert admitted.frame["x"].tolist() == [BIG, -BIG]
    assert admitted.frame["x"].dtype == np.int64
    assert admitted.positions.tolist() == [0, 2]
    assert reasons(admitted) == {1: "NullInput"}
    assert "'x'" in admitted.refused[1].message


def test_case_01_a_float_too_large_to_be_exact_is_no_integer() -> None:
    admitted = gate("long", pd.Series([float(BIG), 3.0, np.nan, 2.0**53]))
    assert admitted.frame["x"].tolist() == [3]
    assert reasons(admitted) == {0: "InvalidInput", 2: "NullInput", 3: "InvalidInput"}


@pytest.mark.parametrize(
    ("type_", "dtype"),
    [("long", "Int64"), ("integer", "Int32"), ("boolean", "boolean"), ("string", object), ("binary", object)],
)
def test_case_02_a_null_in_an_optional_column_passes_as_missing(type_: str, dtype: Any) -> None:
    value: Any = {"string": "a", "binary": b"a", "boolean": True}.get(type_, 1)
    admitted = gate(type_, [value, None], required=False)
    assert admitted.refused == {}
    assert admitted.frame["x"].dtype == dtype
    assert admitted.frame["x"].isna().tolist() == [False, True]
    alone = gate(type_, [value], required=False)
    assert alone.frame["x"].dtype == dtype  # whichever rows share the batch


@pytest.mark.parametrize("type_", ["float", "double"])
def test_case_02_a_null_in_a_float_column_is_nan_and_scored(type_: str) -> None:
    admitted = gate(type_, [1.5, None, pd.NA, float("nan")])
    assert admitted.refused == {}
    assert admitted.frame["x"].isna().tolist() == [False, True, True, True]
    assert admitted.frame["x"].dtype == {"float": np.float32, "double": np.float64}[type_]


def test_case_02_decimals_and_integers_become_doubles() -> None:
    assert gate("double", [decimal.Decimal("12.25"), None]).frame["x"].tolist()[0] == 12.25
    assert gate("double", pd.Series([1, 2])).frame["x"].tolist() == [1.0, 2.0]
    assert gate("double", pd.Series([1, None], dtype="Int64")).frame["x"].tolist()[0] == 1.0


@pytest.mark.parametrize(
    ("type_", "value", "told"),
    [
        ("long", 1.5, "1.5"),
        ("long", "7", "'7'"),
        ("long", 2**63, "out of range"),
        ("integer", 2**31, "out of range"),
        ("float", 1e300, "out of range"),
        ("double", "1.0", "'1.0'"),
        ("string", 5, "5"),
        ("string", b"a", "b'a'"),
        ("binary", "a", "'a'"),
        ("boolean", 2, "2"),
        ("datetime", "2024-01-01", "2024"),
        ("array<float>", 1.0, "1.0"),
        ("array<float>", "abc", "'abc'"),
        ("array<long>", [1, None], "element 1 is null"),
        ("map<long>", [1], "1"),
        ("struct<`a`:long>", {"a": 1, "b": 2}, "'b'"),
        ("struct<`a`:long>", {}, "member 'a' is null"),
    ],
)
def test_a_value_that_does_not_fit_refuses_its_row_only(type_: str, value: Any, told: str) -> None:
    admitted = gate(type_, [value])
    assert reasons(admitted) == {0: "InvalidInput"}
    assert told in admitted.refused[0].message
    assert "'x'" in admitted.refused[0].message
    assert len(admitted.frame) == 0


@pytest.mark.parametrize("unit", ["us", "object", "date"])
def test_case_04_a_date_beyond_nanoseconds_is_refused_and_never_wraps(unit: str) -> None:
    days: Any = ["2024-02-29", "9999-12-31", "1969-12-31"]
    values: Any = np.array(days, dtype="datetime64[us]")
    if unit == "object":
        values = pd.Series([dt.datetime.fromisoformat(day) for day in days], dtype=object)
    elif unit == "date":
        values = pd.Series([dt.date.fromisoformat(day) for day in days], dtype=object)
    admitted = gate("datetime", pd.Series(values))
    assert admitted.frame["x"].dtype == "datetime64[ns]"
    assert admitted.frame["x"].dt.strftime("%Y-%m-%d").tolist() == ["2024-02-29", "1969-12-31"]
    assert reasons(admitted) == {1: "InvalidInput"}
    assert "9999" in admitted.refused[1].message


def test_times_with_a_zone_are_read_in_utc() -> None:
    aware = pd.Series(pd.to_datetime(["2024-01-01T12:00+02:00"]).tz_convert("Europe/Berlin"))
    assert gate("datetime", aware).frame["x"].tolist() == [pd.Timestamp("2024-01-01T10:00")]
    assert gate("datetime", aware.astype(object)).frame["x"].tolist() == [pd.Timestamp("2024-01-01T10:00")]


def test_case_05_array_columns_reach_the_model_as_lists_whatever_they_came_as() -> None:
    given: list[Any] = [np.array([1, 2, 3], dtype="float32"), [4.0, 5.0, None], [], None]
    admitted = gate("array<float>", given)
    first, second, third = admitted.frame["x"]
    assert first == [1.0, 2.0, 3.0]
    assert second[:2] == [4.0, 5.0]
    assert np.isnan(second[2])
    assert third == []
    assert reasons(admitted) == {3: "NullInput"}


def test_case_05_structs_and_maps_reach_the_model_as_dicts() -> None:
    assert gate("struct<`a`:long,`b`:string?>", [{"a": 1}, {"a": 2, "b": None}]).frame["x"].tolist() == [
        {"a": 1},
        {"a": 2, "b": None},
    ]
    assert gate("map<double>", [{"k": 1}, [("k", 2.5)]]).frame["x"].tolist() == [{"k": 1.0}, {"k": 2.5}]


def test_case_05_rows_that_do_not_have_a_tensors_shape_are_refused() -> None:
    spec = ModelSpec((Field("v", "array<float>", True, (3,), "<f4"),), OUT, tensor_inputs=True)
    cells = pd.Series([[1, 2, 3], [], [1, 2], None, np.arange(3)], dtype=object)
    admitted = admit(spec, pd.DataFrame({"v": cells}))
    assert admitted.positions.tolist() == [0, 4]
    assert reasons(admitted) == {1: "InvalidInput", 2: "InvalidInput", 3: "NullInput"}
    assert "(2,)" in admitted.refused[2].message
    assert "(3,)" in admitted.refused[2].message


def test_a_tensors_narrow_integers_do_not_wrap() -> None:
    spec = ModelSpec((Field("v", "integer", True, (), "|u1"),), OUT, tensor_inputs=True)
    admitted = admit(spec, pd.DataFrame({"v": [255, 256, -1]}))
    assert reasons(admitted) == {1: "InvalidInput", 2: "InvalidInput"}


def test_case_06_odd_texts_are_texts() -> None:
    admitted = gate("string", ["a", None, "", "  ", "\U0001f600", float("nan")])
    assert admitted.frame["x"].tolist() == ["a", "", "  ", "\U0001f600"]
    assert reasons(admitted) == {1: "NullInput", 5: "NullInput"}


def test_case_08_columns_are_chosen_by_name_in_the_signatures_order() -> None:
    spec = ModelSpec((Field("a", "long"), Field("b", "long")), OUT)
    admitted = admit(spec, pd.DataFrame({"b": [2], "id": [9], "a": [1]}, index=[77]))
    assert admitted.frame.to_dict("list") == {"a": [1], "b": [2]}
    assert admitted.frame.index.tolist() == [0]


def test_case_09_an_absent_optional_column_stays_absent() -> None:
    spec = ModelSpec((Field("a", "long"), Field("b", "long", False)), OUT)
    assert list(admit(spec, pd.DataFrame({"a": [1]})).frame.columns) == ["a"]


def test_unnamed_tensor_columns_are_typed_one_by_one() -> None:
    spec = ModelSpec((Field("", "array<float>", True, (2,), "<f4"),), OUT, tensor_inputs=True)
    admitted = admit(spec, pd.DataFrame({"q": [1, 2], "p": [decimal.Decimal(3), None]}))
    assert admitted.frame.dtypes.tolist() == [np.float32, np.float32]
    assert list(admitted.frame.columns) == ["q", "p"]


def test_the_window_is_left_as_it_was() -> None:
    window = pd.DataFrame({"x": pd.Series([1.0, 2.0])})
    admitted = admit(ModelSpec((Field("x", "double"),), OUT), window)
    admitted.frame.loc[0, "x"] = 99.0
    assert window["x"].tolist() == [1.0, 2.0]


CELLS = st.one_of(
    st.none(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=3),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.lists(st.floats(), max_size=2),
)


@settings(deadline=None)
@given(
    st.lists(CELLS, min_size=1, max_size=12),
    st.sampled_from(["long", "integer", "float", "double", "string", "boolean", "array<float>"]),
    st.booleans(),
)
def test_a_row_meets_the_same_fate_alone_and_in_company(values: list[Any], type_: str, required: bool) -> None:
    together = gate(type_, values, required=required)
    for i, value in enumerate(values):
        alone = gate(type_, [value], required=required)
        assert alone.refused.get(0) == together.refused.get(i)
        if not alone.refused:
            row = take(together.frame, np.flatnonzero(together.positions == i))
            pd.testing.assert_frame_equal(row, alone.frame)


def tensor(type_: str, dtype: str, values: list[Any], shape: tuple[int, ...] = ()) -> Admitted:
    one = ModelSpec((Field("v", type_, True, shape, dtype),), OUT, tensor_inputs=True)
    return admit(one, pd.DataFrame({"v": pd.Series(values, dtype=object)}))


def test_a_tensors_half_floats_do_not_become_infinite() -> None:
    admitted = tensor("float", "<f2", [65504.0, 65519.0, 65520.0, -1e5, float("inf"), float("nan")])
    assert reasons(admitted) == {2: "InvalidInput", 3: "InvalidInput"}
    assert reasons(tensor("array<float>", "<f2", [[1.0, 2.0], [1.0, 1e6]], (2,))) == {1: "InvalidInput"}


@pytest.mark.parametrize(("type_", "dtype", "bad"), [("string", "<U0", "a\0"), ("binary", "|S0", b"a\0\0")])
def test_a_tensors_texts_and_bytes_are_not_cut_short(type_: str, dtype: str, bad: Any) -> None:
    good = bad[:1] + bad[1:] + bad[:1]
    assert reasons(tensor(type_, dtype, [good, bad])) == {1: "InvalidInput"}
    assert reasons(tensor(f"array<{type_}>", dtype, [[good], [good, bad]], (-1,))) == {1: "InvalidInput"}


@pytest.mark.parametrize("type_", ["array<float>", "struct<`f`:float>", "map<float>"])
def test_floats_inside_a_value_are_floats(type_: str) -> None:
    given: Any = {"array<float>": [0.1, None], "struct<`f`:float>": {"f": 0.1}, "map<float>": {"f": 0.1}}[type_]
    [seen] = gate(type_, [given]).frame["x"]
    assert (seen if isinstance(seen, list) else list(seen.values()))[0] == 0.10000000149011612
