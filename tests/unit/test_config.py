"""The job file: every mistake is told, with the key, the value and what is allowed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from daybreak import config
from daybreak.errors import ConfigError

REPO = Path(__file__).parents[2]


def document(**over: Any) -> dict[str, Any]:
    return {
        "name": "nightly",
        "input": {"table": "/data/docs", "key": ["id"]},
        "model": {"uri": "models:/m@champion"},
        "output": {"table": "/data/scores"},
        **over,
    }


MISTAKES = [
    (document(shard={}), r"shard: unknown key; known here: name, input, window, model, batch, shards"),
    (document(shards={"row": 5}), r"shards.row: unknown key; known here: by, rows"),
    (
        document(input={"table": "/d", "key": "id", "freshness": {"max_age": "1h", "age": 1}}),
        r"freshness.age: unknown key; known here: max_age",
    ),
    (document(shards={"rows": 0}), r"shards.rows: .*greater than or equal to 1 \(it is 0\)"),
    (document(shards={"by": "file"}), r"shards.by: .*'auto', 'files' or 'key' \(it is 'file'\)"),
    (document(batch={"tokens": "many"}), r"batch.tokens: .*'auto' \(it is 'many'\) or .*valid integer"),
    (document(name="a job"), r"name: .*\(it is 'a job'\)"),
    (document(input={"table": "/d", "key": []}), r"input.key"),
    (document(input={"table": "/d", "key": ["id", "ID"]}), r"a key names each column once"),
    (document(input={"key": "id"}), r"input.table: missing"),
    (document(window="{day}"), r"placeholder that is not one of \{date\}, \{datetime\}, \{hour\}, \{month\}"),
    (document(window="{date"), r"placeholder"),
    (document(window="{date.x}"), r"placeholder"),
    (document(window=" "), r"a window may not be blank"),
    (
        document(resume_within="3"),
        r"resume_within: a duration is a number and a unit: 90s, 15m, 26h or 2d \(it is '3'\)",
    ),
    (document(output={"table": "lake.scores"}), r"'lake.scores' is a catalog name, so say where .* state:"),
    (document(gates={"max_dead_fraction": 1.5}), r"gates.max_dead_fraction"),
    (document(model={"uri": "m", "precision": "fp8"}), r"model.precision: .*'fp32'"),
    (document(window=20261130), r"window: .*put it in quotes \(it is 20261130\)"),
    (document(window=None), r"window: is empty: give it a value, or leave the key out"),
    (document(window="w" * 249), r"and that name has 256 bytes .*; file systems take 255"),
    (document(window="ü" * 125), r"and that name has 257 bytes"),
    (document(window="{datetime}" + "/" * 77), r"and that name has 262 bytes"),
    (document(window="__HIVE_DEFAULT_PARTITION__"), r"how a partition of nulls is called"),
    (document(window="a\nb"), r"holds the control character '\\n'"),
    (document(window="\ud800"), r"holds the control character"),
    (document(shards=[1]), r"shards: a section of keys, and not \[1\]; known here: by, rows"),
    (document(shards={"rows": True}), r"shards.rows: true and false are no value here"),
    (document(gates={"max_dead_fraction": True}), r"gates.max_dead_fraction: true and false are no value here"),
    (document(gates={"min_rows": None}), r"gates.min_rows: is empty"),
    (document(model=None), r"model.uri: missing"),
]


@pytest.mark.parametrize(("mistaken", "message"), MISTAKES, ids=[message[:30] for _, message in MISTAKES])
def test_a_mistake_is_told(mistaken: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as told:
        config.parse(mistaken, origin="job.yaml")
    assert str(told.value).startswith("job.yaml has 1 mistake(s)")
    assert told.value.exit_code == 2


def test_a_window_that_names_no_folder_is_taken_in_latest_mode() -> None:
    latest = {"table": "/data/scores", "mode": "latest"}
    for window in ("w" * 300, "__HIVE_DEFAULT_PARTITION__"):
        assert config.parse(document(window=window, output=latest)).window == window
    assert config.parse(document(window="ü" * 124)).window == "ü" * 124


def test_an_empty_section_has_its_defaults() -> None:
    empty = dict.fromkeys(("gates", "batch", "shards", "alerts", "mlflow"))
    assert config.parse(document(**empty, model={"uri": "m", "params": None})) == config.parse(
        document(model={"uri": "m"})
    )


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"3 mistake\(s\)"):
        config.parse(document(shards={"rows": -1, "by": "x"}, nonsense=1))


def test_a_mistake_in_a_list_or_mapping_is_one_mistake() -> None:
    with pytest.raises(ConfigError, match=r"1 mistake\(s\):\n  - input.columns: .* or "):
        config.parse(document(input={"table": "/d", "key": "id", "columns": 3}))


def test_overrides_are_yaml_and_reach_down(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document()))
    overrides = ["shards.rows=10", "input.where=a = 'b'", "gates.min_rows=0", "input.freshness.max_age=36h"]
    job = config.load(file, [*overrides, "input.key=[a, b]", "redact=true"])
    assert (job.shards.rows, job.input.where, job.gates.min_rows, job.redact) == (10, "a = 'b'", 0, True)
    assert job.input.freshness is not None
    assert job.input.freshness.max_age == timedelta(hours=36)
    assert job.input.key == ["a", "b"]


@pytest.mark.parametrize("override", ["shards.rows", "=3", "shards..rows=3", "name.first=x"])
def test_an_override_that_is_none_is_told(tmp_path: Path, override: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document()))
    with pytest.raises(ConfigError, match="--set"):
        config.load(file, [override])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the job file .*: No such file"),
        ("a: [", "is not YAML"),
        ("- a", "it is a list"),
        ("", "is empty"),
        ("# name: x\n", "is empty"),
        ("text", "it is a single value"),
        ("a: 1\n---\nb: 2\n", "second document"),
    ],
)
def test_a_file_that_is_no_job_is_told(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "job.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        config.load(file)


def test_the_digest_is_of_what_decides_the_scores() -> None:
    digest = config.parse(document()).digest()
    same = [{"gates": {"min_rows": 5}}, {"resume_within": "2h"}, {"mlflow": {"experiment": "x"}}, {"state": "/s"}]
    same.append({"input": {"table": "/data/docs", "key": "id", "freshness": {"max_age": "2h"}}})
    same += [{"shards": {"rows": 7, "by": "key"}}, {"redact": True}, {"retention": "1d"}, {"select": "all"}]
    same += [
        {"batch": {"row_timeout": None, "tokens": 64, "window_rows": 10}},
        {"model": {"uri": "models:/m@champion", "params": {}}},
    ]
    assert {config.parse(document(**over)).digest() for over in same} == {digest}
    other: list[dict[str, Any]] = [
        {"input": {"table": "/data/docs", "key": "id", "where": "a"}},
        {"model": {"uri": "models:/m@other"}},
        {"window": "w"},
        {"select": "changed"},
        {"output": {"table": "/data/other"}},
        {"output": {"table": "/data/scores", "mode": "latest"}},
        {"model": {"uri": "models:/m@champion", "params": {"a": 1}}},
        {"model": {"uri": "models:/m@champion", "precision": "fp32"}},
        {"input": {"table": "/data/docs", "key": "id", "version": 3}},
        {"input": {"table": "/data/docs", "key": ["id", "b"]}},
        {"input": {"table": "/data/docs", "key": "id", "columns": ["a"]}},
        {"name": "another"},
    ]
    digests = [config.parse(document(**over)).digest() for over in other]
    assert len({digest, *digests}) == 1 + len(other)


def test_a_job_of_an_older_or_a_newer_daybreak_is_the_same_unless_a_key_that_decides_scores_is_set() -> None:
    job = config.parse(document())
    tables = {"input_table": job.input.table, "output_table": job.output.table}

    def identity(**over: Any) -> dict[str, Any]:
        recorded = job.model_dump(mode="json")
        for name, values in over.items():
            recorded[name] = {**recorded[name], **values} if isinstance(values, dict) else values
        return config.identity(recorded, **tables)

    assert identity() == job.identity() == config.identity(document(input={"table": "/d", "key": ["id"]}), **tables)
    assert identity(batch={"by_a_newer": 1}) == job.identity()
    assert identity(model={"by_a_newer": 1}) != job.identity() != identity(by_a_newer=1)
    assert identity(input={"table": "./docs"}) == job.identity(), "the table counts as it was read, not as it was typed"


@pytest.mark.parametrize("age", ["2d", "14d", "3650d", "26h", "90m", "0.25s", "1209600.5s", "0s"])
def test_a_job_survives_its_own_json(age: str) -> None:
    job = config.parse(document(retention=age, input={"table": "/d", "key": "k", "freshness": {"max_age": age}}))
    assert config.parse(json.loads(job.model_dump_json())) == job


def test_windows_are_rendered_from_the_start_in_utc() -> None:
    at = datetime(2026, 11, 30, 23, 5, 6, tzinfo=UTC)
    template = "eu {date} {datetime} {hour} {month}"
    assert config.render_window(template, at) == "eu 2026-11-30 2026-11-30T23:05:06Z 2026-11-30T23 2026-11"


def test_the_state_is_next_to_the_output_unless_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config.parse(document(output={"table": "./scores/"})).state_path() == f"{tmp_path}/scores_daybreak"
    assert config.parse(document(output={"table": "s3a://b/scores"})).state_path() == "s3a://b/scores_daybreak"
    assert config.parse(document(state="s3a://b/state")).state_path() == "s3a://b/state"
    assert config.parse(document(state="state")).state_path() == f"{tmp_path}/state"


@pytest.mark.parametrize("path", ["s3a://b/t", "dbfs:/mnt/t", "file:/tmp/t", "hdfs:/t", "/tmp/t", "lake.t"])
def test_what_has_a_scheme_or_is_a_name_stays(path: str) -> None:
    assert config.absolute(path) == path


def test_each_default_that_the_json_schema_shows_may_be_written_into_a_job_file() -> None:
    shown = config.json_schema()
    for name, told in shown["properties"].items():
        section = shown["$defs"].get(told.get("$ref", "").rpartition("/")[2])
        if section:
            some = {key: of["default"] for key, of in section["properties"].items() if "default" in of}
            config.parse(document(**{name: {**some, **document().get(name, {})}}))
        elif "default" in told:
            config.parse(document(**{name: told["default"]}))


def test_the_json_schema_in_conf_is_of_this_code() -> None:
    kept = json.loads((REPO / "conf" / "job.schema.json").read_text())
    assert kept == config.json_schema(), "run: daybreak schema > conf/job.schema.json"


@pytest.mark.parametrize("file", sorted((REPO / "conf" / "jobs").glob("*.yaml")), ids=lambda file: file.name)
def test_the_jobs_in_conf_are_valid(file: Path) -> None:
    assert config.load(file).name


def test_the_webhook_is_in_nothing_that_is_recorded_and_what_is_recorded_can_be_read_again() -> None:
    job = config.parse(document(alerts={"url": "https://hooks.example/?token=secret"}))
    assert job.alerts.url is not None
    recorded = job.model_dump_json()
    assert "alerts" not in recorded
    assert config.parse(json.loads(recorded)).digest() == job.digest() == config.parse(document()).digest()


def test_an_input_that_is_called_by_a_number_may_be_written_as_one() -> None:
    parsed = config.parse(document(input={"table": "/d", "key": "id", "columns": {0: "a", "1": "b"}}))
    assert parsed.input.columns == {"0": "a", "1": "b"}
