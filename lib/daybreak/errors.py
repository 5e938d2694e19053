"""The exception tree. Every error a user can cause carries its exit code and says what to do.

DaybreakError                 1  the run failed
├── ConfigError               2  the job file or an argument is wrong
├── PreflightError            2  the table, the model or the output does not fit; nothing was started
├── ModelLoadError            2  the model cannot be resolved or loaded
├── GateError                 3  the counts or a gate refuse to publish
├── StaleInputError           4  the input is older than the job allows
├── LeaseError                5  another run of the job is alive
└── ShardError                1  a shard failed every attempt; the finished ones stay staged
    └── WorkerEndedError      1  ... since it ended its worker process each time
"""

from __future__ import annotations

import re


class DaybreakError(Exception):
    """A run that ends with a message for a person, not a stack trace.

    ``str(error)`` is the whole message: what was wrong, with the value; what is allowed; what to do next.
    """

    exit_code = 1

    def __init__(self, problem: str, *, fix: str = "") -> None:
        super().__init__(problem if not fix else f"{problem}\n  to mend it: {fix}")
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.problem, self.fix))


def _rebuild(kind: type[DaybreakError], problem: str, fix: str) -> DaybreakError:
    return kind(problem, fix=fix)


class ConfigError(DaybreakError):
    """The job file, an override or a command-line argument is wrong."""

    exit_code = 2


class PreflightError(DaybreakError):
    """The input table, the model or the output does not fit; no executor has worked yet."""

    exit_code = 2


class ModelLoadError(DaybreakError):
    """The model cannot be found, downloaded or loaded, or a module that it needs is missing."""

    exit_code = 2


class GateError(DaybreakError):
    """The counts do not reconcile, or a gate refuses to publish; nothing became visible."""

    exit_code = 3


class StaleInputError(DaybreakError):
    """The input is older than ``input.freshness.max_age`` allows."""

    exit_code = 4


class LeaseError(DaybreakError):
    """Another driver holds the job's lease and its heartbeat is fresh."""

    exit_code = 5


class ShardError(DaybreakError):
    """A shard failed every attempt. The finished shards stay staged; the same command resumes them."""

    exit_code = 1


class WorkerEndedError(ShardError):
    """A shard ended its Python worker at every attempt: a native crash, a kill for memory."""


def text(error: BaseException, *, most: int = 1_000_000) -> str:
    """What an error says, as a text that any store takes; never raises. At most ``most`` characters.

    Of a group, what its errors say too. An error that says nothing, or whose ``__str__`` fails, is told by its class.
    """
    try:
        said = str(error)
    except BaseException as why:  # a class of the user's own, which may do anything
        return f"{type(error).__name__}, whose text cannot be had: its __str__ raises {type(why).__name__}"
    if isinstance(error, BaseExceptionGroup):
        said = "; ".join([said, *(f"{type(one).__name__}: {text(one, most=most)}" for one in error.exceptions)])
    return said[:most].encode(errors="replace").decode() or type(error).__name__


def first_line(error: BaseException) -> str:
    """What an error of a library says, without the stack trace or the plan that follows it: 500 characters at most."""
    lines = text(error).strip().splitlines()
    return lines[0].strip()[:500] if lines else type(error).__name__


def root_cause(error: BaseException) -> str:
    """What lies at the bottom of an error, also of Spark's, whose first line names a call and no cause."""
    named = re.findall(r"^(?:Caused by: |: )?([\w.$]+(?:Error|Exception)\b.*)$", text(error), re.MULTILINE)
    return str(named[-1])[:500] if named else first_line(error)
