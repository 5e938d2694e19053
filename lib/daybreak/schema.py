"""Every table that Daybreak owns: its columns, their Spark SQL types, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from daybreak.types import wire


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    meaning: str

    @property
    def ddl(self) -> str:
        meaning = self.meaning.replace("'", "\\'")
        return f"{quoted(self.name)} {self.type} COMMENT '{meaning}'"


RESERVED = "__daybreak_"  # no column of a user may begin like this
REDACTED = "redacted: the job has redact: true"  # in the place of a dead letter's message
NULLS = "_null"  # ends the name of a column on the wire that says where the one without this end is null


def quoted(name: str) -> str:
    """A column name as Spark SQL takes any: in backticks, with its own backticks doubled."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string as a constant of Spark SQL, whatever the session's settings say of escapes in literals."""
    plain = not {"'", "\\"} & set(text)
    return f"'{text}'" if plain else f"CAST(X'{text.encode().hex()}' AS STRING)"


def ddl(columns: Iterable[Column]) -> str:
    """The columns as the inside of ``CREATE TABLE (...)``, or as a schema string for Spark."""
    return ", ".join(column.ddl for column in columns)


# -- the output ------------------------------------------------------------------------------------------------

WINDOW = Column("window", "STRING", "the data window that the score belongs to")
PROVENANCE = (
    Column("model_name", "STRING", "registered name of the model, or its address"),
    Column("model_version", "STRING", "version of the model that scored the row"),
    Column("run_id", "STRING", "run that scored the row; see the table runs"),
    Column("input_version", "STRING", "version of the input table that the row was read from"),
    Column("input_hash", "BIGINT", "xxhash64 of the row's model inputs"),
    Column("scored_at", "TIMESTAMP", "when the row's shard was scored, UTC"),
)


def output(keys: Sequence[Column], predictions: Sequence[Column], *, history: bool) -> tuple[Column, ...]:
    """The columns of the output table, in order."""
    return (*keys, *((WINDOW,) if history else ()), *predictions, *PROVENANCE)


# -- the state -------------------------------------------------------------------------------------------------

RUNS = (
    Column("run_id", "STRING", "names the run"),
    Column("job", "STRING", "name of the job"),
    Column("status", "STRING", "scoring, refused, failed, published or nothing"),
    Column("epoch", "BIGINT", "counts the drivers that have held the job's lease"),
    Column("holder", "STRING", "host:pid:start@boot.namespace of the driver that holds, or last held, the run"),
    Column("window", "STRING", "the run's window"),
    Column("config_digest", "STRING", "digest of what decides the scores"),
    Column("input_table", "STRING", "the input as the job names it"),
    Column("input_version", "STRING", "the pinned version of the input"),
    Column("model_uri", "STRING", "the model as the job names it"),
    Column("model_name", "STRING", "the pinned model"),
    Column("model_version", "STRING", "the pinned version of the model"),
    Column("output_table", "STRING", "where the scores go"),
    Column("output_version", "BIGINT", "Delta version that the publish made"),
    Column("started_at", "TIMESTAMP", "start of the run's first driver"),
    Column("ended_at", "TIMESTAMP", "when the status became final"),
    Column("shards", "BIGINT", "shards with rows to score"),
    Column("rows_in", "BIGINT", "rows of the input that the job selects from"),
    Column("rows_scored", "BIGINT", "rows with a score"),
    Column("rows_dead", "BIGINT", "rows with a dead letter"),
    Column("rows_skipped", "BIGINT", "rows whose score in the output still holds"),
    Column("rows_forward", "BIGINT", "rows through the forward pass, repeats counted, over all drivers' staged shards"),
    Column("seconds", "DOUBLE", "wall time of the last driver, s"),
    Column("timing", "STRING", "seconds by stage, as JSON"),
    Column("mlflow_run_id", "STRING", "the MLflow run with parameters and metrics"),
    Column("error", "STRING", "why the run failed or was refused"),
    Column("pins", "STRING", "input, model and plan, as JSON: all that a resume needs"),
    Column("config", "STRING", "the job file, as JSON"),
)

SHARDS = (
    Column("run_id", "STRING", "the run"),
    Column("shard_id", "INT", "the shard, from 0"),
    Column("attempt", "STRING", "the attempt whose rows count"),
    Column("rows_in", "BIGINT", "rows that the attempt read"),
    Column("rows_scored", "BIGINT", "rows with a score"),
    Column("rows_dead", "BIGINT", "rows with a dead letter"),
    Column("receipt", "STRING", "seconds by stage, tokens, padding, device and host, as JSON"),
)

DEAD_LETTERS = (
    Column("run_id", "STRING", "the run"),
    Column("job", "STRING", "name of the job"),
    Column("window", "STRING", "the run's window"),
    Column("shard_id", "INT", "the row's shard"),
    Column("key", "STRING", "the row's key columns, as JSON"),
    Column("phase", "STRING", "where it failed: key, input, size, preprocess, forward, postprocess, worker"),
    Column("error_class", "STRING", "class of the error"),
    Column("message", "STRING", "the error's message"),
    Column("attempts", "INT", "passes in which the row took part"),
    Column("input", "STRING", "the row's model inputs, as JSON, unless the job redacts them"),
    Column("at", "TIMESTAMP", "when the row's shard was scored, UTC"),
)

# -- staging ---------------------------------------------------------------------------------------------------

SCORED, DEAD, RECEIPT = "scored", "dead", "receipt"

ATTEMPT = Column("attempt", "STRING", "one execution of the shard's task")
_STAGING_HEAD = (
    Column("shard_id", "INT", "the shard"),
    ATTEMPT,
    Column("kind", "STRING", "scored, dead or receipt"),
    Column("input_hash", "BIGINT", "xxhash64 of the row's model inputs"),
    Column("scored_us", "BIGINT", "microseconds since 1970 UTC"),
)
_STAGING_TAIL = (
    Column("phase", "STRING", "of a dead letter"),
    Column("error_class", "STRING", "of a dead letter"),
    Column("message", "STRING", "of a dead letter"),
    Column("attempts", "INT", "of a dead letter"),
    Column("input", "STRING", "of a dead letter"),
    Column("receipt", "STRING", "of the receipt, the last row of the shard"),
    Column("rows_in", "BIGINT", "of the receipt"),
    Column("rows_scored", "BIGINT", "of the receipt"),
    Column("rows_dead", "BIGINT", "of the receipt"),
)


def staging(key_types: Sequence[str], prediction_types: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a staged file. Keys are ``k0..`` in their wire types and predictions ``p0..``,
    so that no name of a user can clash with ours or with a file format's rules."""
    keys = [Column(f"k{i}", wire(kind).type, "key") for i, kind in enumerate(key_types)]
    predictions = [Column(f"p{i}", kind, "prediction") for i, kind in enumerate(prediction_types)]
    return (*_STAGING_HEAD, *keys, *predictions, *_STAGING_TAIL)


PLAN = (
    Column("shard_id", "INT", "the shard, from 0"),
    Column("path", "STRING", "file of a shard that is a file split"),
    Column("start", "BIGINT", "first byte of the split"),
    Column("rows", "BIGINT", "rows of the shard"),
    Column("skipped", "BIGINT", "rows of the shard that need no score"),
    Column("cost", "BIGINT", "estimated cost of the rows to score: one each, and the bytes of their text"),
)
