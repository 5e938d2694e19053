"""The job file as text: what is taken for what was typed, and what is refused since YAML would take it for another."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak import config
from daybreak.config import JobConfig
from daybreak.errors import ConfigError

Load = Callable[..., JobConfig]
JOB = """\
name: test
input: {table: ./input, key: [id]}
model: {uri: ./model}
output: {table: ./scores}
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a job file of this text, or of these bytes."""

    def load(text: str | bytes, *overrides: str) -> JobConfig:
        file = tmp_path / "job.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return config.load(file, overrides)

    return load


TWICE = {
    "section": (JOB + "gates: {min_rows: 1000}\ngates: {max_dead_fraction: 0.5}\n", r"'gates' twice, in lines 5 and 6"),
    "below": (JOB + "gates:\n  min_rows: 1\n  min_rows: 2\n", r"'gates.min_rows' twice, in lines 6 and 7"),
    "in braces": (JOB + "shards: {rows: 1, 'rows': 2}\n", r"'shards.rows' twice, in lines 5 and 5"),
    "after an anchor": (JOB + "gates: &g {min_rows: 1}\ngates: *g\n", r"'gates' twice, in lines 5 and 6"),
    "in a merge": (JOB + "gates: {<<: {min_rows: 1, min_rows: 2}}\n", r"'gates.min_rows' twice"),
    "of merges": (JOB + "gates:\n  <<: {min_rows: 1}\n  <<: {min_rows: 2}\n", r"'gates.<<' twice, in lines 6 and 7"),
    "in parameters": (JOB.replace("./model", "m, params: {t: 1, t: 2}"), r"'model.params.t' twice, in lines 3 and 3"),
    "in a list": (JOB.replace("./model", "m, params: {t: [{a: 1, a: 2}]}"), r"'model.params.t\[0\].a' twice"),
}


@pytest.mark.parametrize("text", TWICE)
def test_a_key_that_is_given_twice_is_refused(load: Load, text: str) -> None:
    with pytest.raises(ConfigError, match=TWICE[text][1]):
        load(TWICE[text][0])


def test_a_merged_key_gives_way_to_the_sections_own(load: Load) -> None:
    merged = "gates:\n  <<: [{min_rows: 1}, {min_rows: 2, max_dead_fraction: 0.5}]\n  max_dead_fraction: 0.25\n"
    assert load(JOB + merged).gates == config.Gates(min_rows=1, max_dead_fraction=0.25)


AS_TYPED = [
    *("run #2", "2026-11-30", "2026-11-30T00:00:00Z", "on", "yes", "true", "null", "~", "0123", "1:30", "1e3", "0x1F"),
    *("'a'", '"a"', "it's", 'say "x', "a: b", "a:", "[a]", "- a", "? a", "*a", "&a", "!a", "|", ">", "%a", "@a", "#"),
    *(" a ", "a\\b", "a\\n", "é 日本 😀", "a=b", "a, b", "---", "...", "`a`", "1_0"),
]


@pytest.mark.parametrize("text", AS_TYPED)
def test_the_text_that_is_set_is_the_text_that_was_typed(load: Load, text: str) -> None:
    assert load(JOB, f"window={text}").window == text
    assert load(JOB, f"output.table=./{text}").output.table == f"./{text}"
    if text not in ("null", "~"):
        assert load(JOB, f"input.where={text}").input.where == text
    if text[0] != "[":
        assert load(JOB, f"input.key={text}").input.key == [text]
        assert load(JOB, f"input.columns.a.b={text}").input.columns == {"a.b": text}


@pytest.mark.parametrize(
    "text", ["2026-11-30", "on", "yes", "true", "0123", "1:30", "1e3", "1.0", "1_0", "a\\b", "a#b"]
)
def test_a_text_in_the_file_is_the_text_that_was_typed(load: Load, text: str) -> None:
    job = load(JOB.replace("[id]", f"[{text}, id], columns: {{x: {text}}}") + f"window: {text}\nstate: {text}\n")
    assert (job.window, job.state, job.input.key, job.input.columns) == (text, text, [text, "id"], {"x": text})


def test_what_is_no_text_is_read_by_the_core_schema(load: Load) -> None:
    params = {
        "0.5": 0.5,
        "-3": -3,
        "1e3": 1000.0,
        "0x1F": 31,
        "0o17": 15,
        ".5": 0.5,
        "-.inf": float("-inf"),
        "true": True,
        "null": None,
        "~": None,
        "yes": "yes",
        "2026-11-30": "2026-11-30",
        "run #2": "run #2",
        "1:30": "1:30",
        "[1, x, '2']": [1, "x", "2"],
        "{a: [true]}": {"a": [True]},
        "'0.5'": "0.5",
        "a: b": "a: b",
        "010": 10,
    }
    for text, value in params.items():
        assert load(JOB, f"model.params.p={text}").model.params == {"p": value}, text
    in_file = "\n".join(f"    p{i}: {text}" for i, text in enumerate(params) if text not in ("run #2", "a: b"))
    read = load(JOB.replace("{uri: ./model}", f"\n  uri: ./model\n  params:\n{in_file}"))
    assert [*read.model.params.values()] == [value for text, value in params.items() if text not in ("run #2", "a: b")]


def test_values_of_other_kinds_are_set(load: Load) -> None:
    job = load(
        JOB + "gates:\n  # min_rows: 5\n",
        *("shards.rows=1e3", "gates.min_rows= 7", "redact=yes", "input.version=3", "batch.tokens=auto"),
        *("batch.row_timeout=null", "input.freshness.max_age=36h", "input.key=[id, on, 2026-11-30]", "input.where="),
        *("input.columns={x: no}", "mlflow={experiment: 'a #1'}", 'model.params."a.b"=1', "alerts.url=http://h/?a #b"),
    )
    assert (job.shards.rows, job.gates.min_rows, job.redact, job.input.version) == (1000, 7, True, 3)
    assert (job.batch.tokens, job.batch.row_timeout, job.input.where) == ("auto", None, None)
    assert job.input.freshness == config.Freshness(max_age=timedelta(hours=36))
    assert (job.input.key, job.input.columns) == (["id", "on", "2026-11-30"], {"x": "no"})
    assert (job.mlflow.experiment, job.model.params) == ("a #1", {"a.b": 1})
    assert job.alerts.url is not None
    assert job.alerts.url.get_secret_value() == "http://h/?a #b"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["input.where=null"], "may mean no value or that text"),
        (["state=~"], "may mean no value or that text"),
        (["window=a", "window=b"], "sets what --set 'window=a' has set"),
        (["gates.min_rows=5", "gates={max_dead_fraction: 1}"], "sets what --set 'gates.min_rows=5' has set"),
        (["gates={max_dead_fraction: 1}", "gates.min_rows=5"], "has set; a key is set once"),
        (["window =a"], "without spaces around the keys"),
        (["input.key=[a] # b"], "holds a '#' that YAML takes for a comment"),
        (["input.key=[a # b\n, c]"], "holds a '#' that YAML takes for a comment"),
        (["input.key=[a"], "is not YAML"),
        (["model.params.p='a' b"], "is not YAML"),
        (["model.params={a: 1, a: 2}"], "'model.params.a' twice"),
        (["shards.rows=1:30"], "valid integer.*it is '1:30'"),
        (["shards.rows="], "shards.rows: is empty"),
        (["name="], "name: .*pattern"),
        (["gates=1"], "gates: a section of keys, and not '1'"),
    ],
)
def test_an_override_that_may_mean_another_thing_is_refused(load: Load, overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(JOB, *overrides)


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "a # in a value": (
        JOB + "window: run #2\n",
        r"a '#' in line 5, and YAML cuts window there: 'run #2'; put the value",
    ),
    "a # in a condition": (
        JOB.replace("{table: ./input, key: [id]}", "\n  table: ./input\n  key: id\n  where: note = 'a # b'"),
        r"a '#' in line 5, and YAML cuts input.where there",
    ),
    "braces": (JOB + "window: {date}\n", r"window: .*put it in quotes \(it is {'date': None}\)"),
    "an empty text": (JOB + "window:\n", r"window: is empty"),
    "a tag": (JOB + "window: !env DAY\n", r"the tag '!env' at window \(line 5\)"),
    "a date by tag": (JOB + "window: !!timestamp 2026-11-30\n", r"the tag .* at window"),
    "a list for a key": (JOB + "? [a]\n: b\n", r"a list for a key"),
    "a list for a section": (JOB + "gates:\n  - min_rows: 1\n", r"gates: a section of keys, and not \[{"),
    "a tab": (JOB + "gates:\n\tmin_rows: 1\n", r"is not YAML: .*\\t"),
    "an alias in itself": (JOB + "gates: &a\n  min_rows: [*a]\n", r"an alias in itself, at gates.min_rows\[0\]"),
    "half a character": (JOB + 'window: "\\ud800"\n', r"half a character"),
    "a number of many digits": (JOB + f"shards: {{rows: {'9' * 5000}}}\n", r"a number that is none at shards.rows"),
    "an invisible line break": (JOB + "window: a\u2028b\n", r"invisible line break U\+2028 in line 5"),
    "a control character": (JOB + "window: 'a\x01'\n", r"is not YAML: .*special characters are not allowed"),
    "NUL": (JOB.encode() + b"window: 'a\0'\n", r"save it as UTF-8"),
    "UTF-16": (JOB.encode("utf-16"), r"looks like UTF-16\): save it as UTF-8"),
    "UTF-16 without a mark": (JOB.encode("utf-16-le"), r"save it as UTF-8"),
    "Latin-1": ((JOB + "window: Übersicht\n").encode("latin-1"), r"not text in UTF-8 \(line 5, byte 0xdc\)"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_file_that_may_mean_another_thing_is_refused(load: Load, text: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)job\.yaml .*" + REFUSED[text][1]):
        load(REFUSED[text][0])


def test_comments_byte_order_marks_and_json_are_read(load: Load, tmp_path: Path) -> None:
    assert load((JOB + "window: Übersicht  # of the day, it's 5 #6\n").encode("utf-8-sig")).window == "Übersicht"
    assert load(JOB + "window: |-\n  run #2\n").window == "run #2"
    document = {"name": "j", "input": {"table": "./i", "key": "id"}, "model": {"uri": "m"}, "output": {"table": "./o"}}
    assert load(json.dumps({**document, "window": "😀 #1"})).window == "😀 #1"
    with pytest.raises(ConfigError, match=r"cannot read the job file .*: Is a directory"):
        config.load(tmp_path)
