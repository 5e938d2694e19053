"""The job file: what a run is asked to do. YAML, with ``--set a.b=c`` overrides, checked before anything starts."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from daybreak import jobfile
from daybreak.errors import ConfigError

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(s|m|h|d)\s*$")
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = "\"#%'*/:=?\\{[]^"  # by Hive's rule, which Spark and Delta keep; a window has no control characters
_LONGEST_NAME = 255
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _duration(value: object) -> object:
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    if isinstance(value, timedelta):
        return value
    raise ValueError("a duration is a number and a unit: 90s, 15m, 26h or 2d")


def _told(value: timedelta) -> str:
    """A duration as ``_duration`` reads it, to the microsecond, and without an exponent."""
    return f"{value.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration, json_schema_input_type=str),
    PlainSerializer(_told, return_type=str),
]


class Section(BaseModel):
    """Frozen, and strict about its keys: a typing error in a job file must not pass as a default.

    A section or mapping without keys (``gates:``, its lines commented out) has its defaults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _as_meant(cls, value: object, info: ValidationInfo) -> object:
        declared = cls.model_fields[str(info.field_name)].annotation
        if value is None and (declared == dict[str, Any] or _is_section(declared)):
            return {}
        if isinstance(value, bool) and not any(one in (bool, Any) for one in (declared, *get_args(declared))):
            raise ValueError("true and false are no value here; a text like them is put in quotes")
        return value


def _is_section(declared: object) -> bool:
    return isinstance(declared, type) and issubclass(declared, Section)


class Freshness(Section):
    max_age: Duration = Field(description="refuse an input whose newest commit is older than this (exit 4)")


class Input(Section):
    table: str = Field(min_length=1, description="a path (it holds a '/') or a catalog name")
    format: Literal["delta", "parquet"] = Field("delta", description="of a table named by its path")
    version: Literal["latest"] | Annotated[int, Field(ge=0)] = Field(
        "latest", description="Delta version to read; 'latest' is resolved once and pinned"
    )
    where: str | None = Field(None, description="SQL condition on the table's columns; must be deterministic")
    columns: dict[str, str] | list[str] | None = Field(
        None,
        description="which table columns feed the model: a list in the model's order, or {model input: column}",
    )
    key: list[str] = Field(min_length=1, description="columns that name a row; unique, stable, not generated")
    freshness: Freshness | None = None

    @field_validator("columns", mode="before")
    @classmethod
    def _numbered(cls, value: object) -> object:
        """A model input that is called by a number may be written as one."""
        return {str(name): column for name, column in value.items()} if isinstance(value, dict) else value

    @field_validator("key", mode="before")
    @classmethod
    def _one_key(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("key")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        if len({name.lower() for name in value}) < len(value):
            raise ValueError(f"a key names each column once, and this one is {value}")
        return value


class Model(Section):
    uri: str = Field(min_length=1, description="models:/name@alias, models:/name/version, runs:/id/name or a path")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="of the forward pass, for staged torch models; auto: bf16 where the device has it and the model's"
        " scores stay near, else fp32; decided once and pinned",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="inference params of the model's signature")


class Batch(Section):
    tokens: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto",
        description="padded tokens (or rows, for models without a size) of one forward pass; auto: learned for model"
        " and device",
    )
    window_rows: int = Field(8192, ge=1, le=1_000_000, description="rows that are sorted by length together")
    row_timeout: Duration | None = Field(
        "60s",
        validate_default=True,
        description="a row on which the model takes longer is a dead letter, and a batch that does is tried row by row;"
        " null: never",
    )


class Shards(Section):
    by: Literal["auto", "files", "key"] = Field("auto", description="cut by file split, or by hash of the key")
    rows: int = Field(5000, ge=1, description="rows that a shard should have; the unit of retry and resume")


class Output(Section):
    table: str = Field(min_length=1, description="a path (it holds a '/') or a catalog name; created when missing")
    mode: Literal["history", "latest"] = Field(
        "history", description="history: one row a key and window; latest: one row a key"
    )


class Gates(Section):
    max_dead_fraction: float = Field(
        0.01, ge=0, le=1, description="dead letters / rows to score (skipped ones do not count), above it: exit 3"
    )
    min_rows: int = Field(1, ge=0, description="rows in, below it: exit 3")


class Alerts(Section):
    url: SecretStr | None = Field(
        None, description="a webhook that gets a JSON message when a run does not publish; not in the run log"
    )

    @field_validator("url")
    @classmethod
    def _web(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("a webhook begins with http:// or https://")
        return value


class MLflow(Section):
    tracking_uri: str | None = Field(None, description="else MLFLOW_TRACKING_URI")
    registry_uri: str | None = Field(None, description="else the tracking URI")
    experiment: str | None = Field(None, description="else daybreak/<job name>")


class JobConfig(Section):
    """One job: a table, a model, and where the scores go.

    Relative paths are relative to the working directory, as everywhere in Spark.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="names the job in the run log")
    input: Input
    window: str = Field("{date}", description="{date}, {datetime}, {hour} or {month}, of the run's start in UTC")
    model: Model
    batch: Batch = Batch()
    shards: Shards = Shards()
    select: Literal["all", "changed"] = Field("all", description="changed: skip rows already scored alike")
    output: Output
    gates: Gates = Gates()
    alerts: Alerts = Field(Alerts(), exclude=True)  # a secret: in no record of the job
    state: str | None = Field(None, description="folder of run log, dead letters and staging; else next to the output")
    redact: bool = Field(False, description="keep inputs, and messages that may quote them, out of the dead letters")
    resume_within: Duration = Field(
        "18h",
        validate_default=True,
        description="an unfinished run older than this is left alone, and a new one starts",
    )
    retention: Duration = Field(
        "7d",
        validate_default=True,
        description="the staged files of runs that are over are removed after this",
    )
    mlflow: MLflow = MLflow()

    @field_validator("window")
    @classmethod
    def _known_placeholders(cls, value: str) -> str:
        render_window(value, datetime(2000, 1, 1, tzinfo=UTC))
        return value

    @model_validator(mode="after")
    def _window_names_a_folder(self) -> JobConfig:
        if self.output.mode == "history":
            _refuse_no_folder(render_window(self.window, datetime(2000, 1, 1, tzinfo=UTC)))
        return self

    @model_validator(mode="after")
    def _state_of_a_catalog_table(self) -> JobConfig:
        if self.state is None and not is_path(self.output.table):
            raise ValueError(
                f"output.table {self.output.table!r} is a catalog name, so say where the run log and the staging"
                " files go: state: /some/folder"
            )
        return self

    def state_path(self) -> str:
        """The folder of everything the job keeps: ``runs``, ``shards``, ``dead_letters``, ``staging``."""
        if self.state is None:
            return absolute(self.output.table).rstrip("/") + "_daybreak"
        return absolute(self.state if is_path(self.state) else f"./{self.state}").rstrip("/")

    def identity(self) -> dict[str, Any]:
        """What decides the run's scores and where they go; see :func:`identity`."""
        tables = {"input_table": absolute(self.input.table), "output_table": absolute(self.output.table)}
        return identity(self.model_dump(mode="json"), **tables)

    def digest(self) -> str:
        """Twelve hex digits of the identity."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:12]


# How a run is executed, what may stop it, and what is kept of it: none of this decides a score.
_NO_IDENTITY = ("batch", "shards", "gates", "alerts", "state", "redact", "resume_within", "retention", "mlflow")
_NO_IDENTITY_BELOW = {"input": ("table", "freshness"), "output": ("table", "overwrite")}


def identity(document: Mapping[str, Any], *, input_table: str, output_table: str) -> dict[str, Any]:
    """What decides a run's scores and where they go, of a job as JSON, with its tables made absolute. Pure.

    Keys at their default are left out, so that a job that an older Daybreak wrote down, which lacks today's keys, is
    the same job; with a new key that is set it is another.
    """
    chosen = {name: value for name, value in document.items() if name not in _NO_IDENTITY}
    for section, names in _NO_IDENTITY_BELOW.items():
        chosen[section] = {name: value for name, value in chosen[section].items() if name not in names}
    return {**_not_at_default(chosen, JobConfig), "input_table": input_table, "output_table": output_table}


def _not_at_default(document: Mapping[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in document.items():
        field = section.model_fields.get(name)
        inner = _inner(field)
        if inner and isinstance(value, dict):
            found |= {name: below} if (below := _not_at_default(value, inner)) else {}
        elif field is None or value != field.get_default(call_default_factory=True, validated_data={}):
            found[name] = value
    return found


def _inner(field: FieldInfo | None) -> type[BaseModel] | None:
    """The section that a key holds, if it holds one."""
    kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def is_path(table: str) -> bool:
    return "/" in table


def absolute(path: str) -> str:
    """A path without a scheme, made absolute; a URI and a catalog name as they are."""
    return path if _SCHEME.match(path) or not is_path(path) else str(Path(path).expanduser().absolute())


def render_window(template: str, at: datetime) -> str:
    """Fill ``{date}``-like placeholders with the run's start.

    Raises ValueError for a placeholder that is not known, naming those that are.
    """
    known = {
        "date": f"{at:%Y-%m-%d}",
        "datetime": f"{at:%Y-%m-%dT%H:%M:%SZ}",
        "hour": f"{at:%Y-%m-%dT%H}",
        "month": f"{at:%Y-%m}",
    }
    try:
        window = template.format_map(known)
    except (AttributeError, KeyError, IndexError, ValueError, TypeError) as error:
        names = ", ".join(f"{{{name}}}" for name in known)
        raise ValueError(f"window {template!r} has a placeholder that is not one of {names}: {error}") from None
    if not window.strip():
        raise ValueError("a window may not be blank: it is the partition that a second run replaces")
    if odd := next((character for character in window if unicodedata.category(character) in ("Cc", "Cs")), None):
        raise ValueError(f"window {template!r} holds the control character {odd!r}: a window is one line of text")
    return window


def _refuse_no_folder(window: str) -> None:
    """Raises ValueError for a window that cannot name its partition's folder in the output, ``window=...``."""
    if window == _NULL_PARTITION:
        raise ValueError(f"window {window!r} is how a partition of nulls is called: take another name")
    folder = f"window={''.join(f'%{ord(one):02X}' if one in _ESCAPED else one for one in window)}"
    if (size := len(folder.encode())) > _LONGEST_NAME:
        raise ValueError(
            f"window {window[:40]!r}... names a folder of the output, and that name has {size} bytes (one of"
            f" {_ESCAPED} is three); file systems take {_LONGEST_NAME}: shorten it"
        )


def load(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> JobConfig:
    """Read a job file and apply ``a.b=c`` overrides, whose values are the texts that were typed.

    Raises ConfigError with every mistake found, each with its key, its value and what is allowed.
    """
    document = jobfile.read(path, JobConfig)
    jobfile.override(document, overrides, JobConfig)
    return parse(document, origin=str(path))


def parse(document: dict[str, Any], *, origin: str = "the job configuration") -> JobConfig:
    """Check a job given as a dictionary. Raises ConfigError, as :func:`load`."""
    try:
        return JobConfig.model_validate(document)
    except ValidationError as error:
        told = _explained(error)
        lines = "\n".join(f"  - {line}" for line in told)
        raise ConfigError(f"{origin} has {len(told)} mistake(s):\n{lines}") from None


def _explained(error: ValidationError) -> list[str]:
    """A line a key. What several kinds of value may stand for a key is one mistake, and told as one."""
    lines: dict[str, list[str]] = {}
    for detail in error.errors():
        path = _key_path([str(part) for part in detail["loc"]], detail["type"])
        lines.setdefault(".".join(path), []).append(_explain(path, detail))
    return [f"{key}: {' or '.join(texts)}" if key else " or ".join(texts) for key, texts in lines.items()]


def _key_path(location: list[str], kind: str) -> list[str]:
    """The part of a mistake's location that is keys of the job file, without pydantic's names of alternatives."""
    depth = 0
    while depth < len(location) and location[depth] in _known_keys(location[:depth]):
        depth += 1
    return location[: depth + 1] if kind == "extra_forbidden" else location[:depth]


def _explain(path: list[str], detail: Any) -> str:
    if detail["type"] == "extra_forbidden":
        return f"unknown key; known here: {', '.join(_known_keys(path[:-1]))}"
    if detail["type"] == "missing":
        return "missing"
    if detail["input"] is None and path:
        return "is empty: give it a value, or leave the key out"
    if detail["type"] in ("model_type", "model_attributes_type"):
        return f"a section of keys, and not {detail['input']!r:.200}; known here: {', '.join(_known_keys(path))}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "string_type":
        message += ": put it in quotes"
    shown = repr(detail["input"])
    return message + (f" (it is {shown})" if len(shown) < 200 and path else "")


def _known_keys(path: list[str]) -> list[str]:
    section: type[BaseModel] = JobConfig
    for part in path:
        inner = _inner(section.model_fields.get(part))
        if inner is None:
            return []
        section = inner
    return list(section.model_fields)


def json_schema() -> dict[str, Any]:
    """The job file's JSON Schema, for editors; kept in ``conf/job.schema.json``."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **JobConfig.model_json_schema()}
