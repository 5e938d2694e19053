from __future__ import annotations

import inspect

import pytest
from delta.exceptions import base, captured

from daybreak.errors import DaybreakError
from daybreak.sink.tables import retried

KINDS = [
    kind
    for module in (base, captured)
    for kind in vars(module).values()
    if inspect.isclass(kind) and kind.__module__ == module.__name__
]


class Conflicting:
    """Fails so many times with an error of a kind, and counts its calls."""

    def __init__(self, kind: type[Exception], times: int) -> None:
        self.kind, self.times, self.calls = kind, times, 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise self.kind.__new__(self.kind)  # Delta's own constructor takes the JVM's exception
        return self.calls


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__.rsplit('.')[-1]}.{kind.__name__}")
def test_every_conflict_that_delta_knows_is_tried_again(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "__str__", lambda self: "a concurrent UPDATE added data")
    waits: list[float] = []
    action = Conflicting(kind, times=2)
    assert retried(action, sleep=waits.append) == 3
    assert waits == [0.4, 0.8]


def test_the_last_conflict_says_what_to_do_and_other_errors_are_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base.ConcurrentAppendException, "__str__", lambda self: "an UPDATE added data")
    always = Conflicting(base.ConcurrentAppendException, times=99)
    with pytest.raises(DaybreakError, match=r"each of 4 tries: an UPDATE added data\n.*same command"):
        retried(always, attempts=4, sleep=lambda _: None)
    assert always.calls == 4
    broken = Conflicting(RuntimeError, times=99)
    with pytest.raises(RuntimeError):
        retried(broken, sleep=lambda _: None)
    assert broken.calls == 1
