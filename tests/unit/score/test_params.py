"""What a job gives as parameters, held against the signature before anything starts."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from mlflow.models import ModelSignature
from mlflow.types import ParamSchema, ParamSpec
from mlflow.types.schema import ColSpec, DataType, Object, Property, Schema

from daybreak.errors import ConfigError
from daybreak.score.params import complete
from daybreak.score.signature import ModelSpec, model_spec

DECLARED = [
    ParamSpec("whole", DataType.long, 2),
    ParamSpec("small", DataType.integer, 2),
    ParamSpec("share", DataType.double, 0.5),
    ParamSpec("narrow", DataType.float, 0.5),
    ParamSpec("word", DataType.string, "a"),
    ParamSpec("flag", DataType.boolean, False),
    ParamSpec("since", DataType.datetime, "2024-01-02"),
    ParamSpec("shares", DataType.double, [0.5], (-1,)),
    ParamSpec("nested", Object([Property("a", DataType.long)]), {"a": 1}),
]
DEFAULTS = {param.name: param.default for param in DECLARED}


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    schema = Schema([ColSpec(DataType.double, "x")])
    return model_spec(ModelSignature(inputs=schema, outputs=schema, params=ParamSchema(DECLARED)))


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("whole", 3, 3),
        ("small", 3, 3),
        ("share", 1, 1.0),
        ("narrow", 1, 1.0),
        ("share", None, None),
        ("word", "", ""),
        ("flag", True, True),
        ("since", "2025-03-04", dt.date(2025, 3, 4)),
        ("since", dt.datetime(2025, 3, 4, 5), dt.datetime(2025, 3, 4, 5)),
        ("shares", [1, 0.25], [1.0, 0.25]),
        ("shares", [], []),
        ("nested", {"a": 2}, {"a": 2}),
    ],
)
def test_a_value_of_the_declared_type_passes_and_the_rest_are_defaults(
    name: str, given: Any, wanted: Any, spec: ModelSpec
) -> None:
    values = complete(spec, {name: given})
    assert values == {**DEFAULTS, name: wanted}
    assert type(values[name]) is type(wanted)


@pytest.mark.parametrize(
    ("name", "given", "kind"),
    [
        ("whole", "often", "a long"),
        ("whole", 2.5, "a long"),
        ("whole", True, "a long"),
        ("whole", [1], "a long"),
        ("share", "1e-3", "a double"),
        ("share", False, "a double"),
        ("word", 3, "a string"),
        ("flag", 1, "a boolean"),
        ("flag", "yes", "a boolean"),
        ("since", "often", "a datetime"),
        ("since", True, "a datetime"),
        ("shares", 0.5, "an array of double"),
        ("shares", [0.5, "x"], "an array of double"),
        ("shares", [True], "an array of double"),
        ("shares", [[0.5]], "an array of double"),
        ("nested", {"b": 1}, "an object {a: long}"),
        ("nested", 3, "an object {a: long}"),
    ],
)
def test_a_value_of_another_type_is_refused_with_both(name: str, given: Any, kind: str, spec: ModelSpec) -> None:
    with pytest.raises(ConfigError) as refused:
        complete(spec, {name: given})
    assert f"{name} is {given!r} ({type(given).__name__}), and the model takes {kind}: " in str(refused.value)


def test_all_that_does_not_fit_is_told_at_once(spec: ModelSpec) -> None:
    with pytest.raises(ConfigError, match=r"(?s)whole is 'a'.*share is 'b'"):
        complete(spec, {"whole": "a", "share": "b"})
    with pytest.raises(ConfigError, match=r"model.params \['heat'\] are not in .* it knows: whole, small"):
        complete(spec, {"heat": 1, "whole": "a"})


def test_a_default_is_not_shared(spec: ModelSpec) -> None:
    complete(spec, {})["shares"].append(1.0)
    assert complete(spec, {}) == DEFAULTS
