"""Cutting rows into batches by what they cost the device: rows times the longest row, in tokens."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

__all__ = ["Budget", "Padding", "padding", "plan_batches"]

Array = np.ndarray[Any, Any]

_WASTE = 1 / 48  # of the budget: padding in one batch, above which a batch of its own costs less
_RECOVERY = 8  # batches at the limit before it is raised again
_NEAR = 17 / 16  # closer than this to what failed, raising gains less than the next failure costs
_COLD, _TRIALS = 2, 5  # batches that warm the device up, and of each kind before they are compared
_GAIN = 1.05  # more tokens a second by this justify batches of twice the size
_LARGEST = 2**20
_STEP = 8  # a batch may be so many times as large as one of which the time is known


def plan_batches(sizes: Array, *, tokens: int | Iterator[int], max_rows: int) -> list[Array]:
    """Positions (int64) of each batch, longest rows first, so that running out of memory shows early.

    Every position is in exactly one batch; ``rows * longest <= tokens`` holds for each batch of more than one
    row; a row longer than the budget is a batch of its own.

    Args:
        sizes: int64[n], the cost of each row in tokens; zero counts as one.
        tokens: the budget of a batch, padding included; or of each batch in turn, without end.
        max_rows: the most rows of a batch, whatever they cost.
    """
    costs = np.maximum(np.asarray(sizes, dtype=np.int64), 1)
    order = np.argsort(-costs, kind="stable")
    descending = costs[order]
    budgets = itertools.repeat(tokens) if isinstance(tokens, int) else tokens
    batches: list[Array] = []
    start = 0
    while start < len(order):
        end = _cut(descending, start, next(budgets), max_rows)
        batches.append(order[start:end])
        start = end
    return batches


def _cut(descending: Array, start: int, tokens: int, max_rows: int) -> int:
    """Where the batch that begins at ``start`` ends: at the budget, or earlier where padding outgrows a new
    batch."""
    longest = int(descending[start])
    most = max(1, min(max_rows, tokens // longest, len(descending) - start))
    wasted = np.cumsum(longest - descending[start : start + most])
    return start + max(1, int(np.searchsorted(wasted, tokens * _WASTE, side="right")))


@dataclass(frozen=True)
class Padding:
    """Tokens that rows brought, and tokens that the device computed for them."""

    useful: int
    computed: int

    @property
    def fraction(self) -> float:
        """The part of the computed tokens that is padding, 0 to 1."""
        return 1 - self.useful / self.computed if self.computed else 0.0


def padding(sizes: Array, batches: Sequence[Array]) -> Padding:
    """What a plan computes, against what its rows need."""
    costs = np.maximum(np.asarray(sizes, dtype=np.int64), 1)
    computed = sum(len(batch) * int(costs[batch].max()) for batch in batches)
    return Padding(useful=sum(int(costs[batch].sum()) for batch in batches), computed=computed)


class Budget:
    """How many tokens a batch may cost now.

    Halved when memory runs out, and raised again below ``ceiling``, the smallest cost that ever failed (None: none
    did). With ``learn`` it also seeks the knee: every other batch may cost twice as much, and while those compute
    more tokens a second than their neighbours, which are of nearly the same length, the budget doubles.

    Args:
        tokens: the limit to begin with.
        learn: whether to seek the knee.
        most: what the limit recovers to, where memory has run out before; None for ``tokens``.
        seconds: the most that a batch should take; None for no bound.
        first: the most that a batch may cost before the time of any is known; None for no such bound.
    """

    def __init__(
        self,
        tokens: int,
        *,
        learn: bool = False,
        most: int | None = None,
        seconds: float | None = None,
        first: int | None = None,
    ) -> None:
        self.limit = max(1, tokens)
        self.most = max(self.limit, most or 0)
        self.ceiling: int | None = None
        self._seconds = seconds
        self._timely = first if seconds is not None else None
        self.learning = learn
        self._known = 0  # the largest cost that fitted
        self._fitted = 0
        self._rates: tuple[list[float], list[float]] = ([], [])  # tokens a second, within the limit and above it
        self._cold = _COLD

    @property
    def allowed(self) -> int:
        """The most that a batch may cost now."""
        return max(1, self._in_memory if self._timely is None else min(self._in_memory, self._timely))

    @property
    def _in_memory(self) -> int:
        """As far as memory goes."""
        most = 2 * self.limit if self.learning else self.limit
        return max(1, most if self.ceiling is None else min(most, self.ceiling - 1))

    def offers(self) -> Iterator[int]:
        """The budget of each batch in turn, without end."""
        while True:
            yield self.limit
            yield self._in_memory

    def failed(self, cost: int) -> None:
        """A batch of several rows that cost ``cost`` tokens ran out of memory."""
        self.ceiling = cost if self.ceiling is None else min(self.ceiling, cost)
        self.most = max(1, self.ceiling - 1 if self.learning else min(self.most, self.ceiling - 1))
        self.limit = max(1, min(self.limit, cost // 2))
        self._known = self._known if self._known * _NEAR < cost else self.limit
        self._fitted = 0
        self.learning = False

    def fitted(self, cost: int) -> None:
        """A batch of ``cost`` tokens went through. Enough of them near the limit raise it: to what has fitted before,
        then half way to what failed, until it is near."""
        self._known = max(self._known, cost)
        if self.limit * _NEAR >= self.most or cost <= self.limit // 2:
            return
        self._fitted += 1
        if self._fitted >= _RECOVERY:
            half_way = self.limit + max(1, (self.most - self.limit) // 2)
            self.limit = min(self.most, self._known if self._known > self.limit else half_way)
            self._fitted = 0

    def paced(self, cost: int, seconds: float, *, so_far: bool = False) -> None:
        """A batch of ``cost`` tokens took so long, or has ``so_far``, which is no reason for larger ones: at that pace
        the next ones are to end in time."""
        if self._seconds is None:
            return
        in_time = int(cost * self._seconds / seconds) if seconds > 0 else _LARGEST
        most = self._timely or 0
        self._timely = max(1, min(in_time, most if so_far and most else max(most, _STEP * cost)))

    def timed(self, cost: int, seconds: float) -> None:
        """A batch of ``cost`` tokens took so long on the device. The first ones, while it warms up, do not count."""
        if not self.learning or cost <= self.limit // 2 or seconds <= 0:
            return
        if self._cold:
            self._cold -= 1
            return
        self._rates[cost > self.limit].append(cost / seconds)
        within, above = self._rates
        if min(len(within), len(above)) < _TRIALS:
            return
        self._rates = ([], [])
        if median(above) < _GAIN * median(within) or self.limit >= _LARGEST:
            self.learning = False
        else:
            self.limit = self.most = 2 * self.limit

    def copy(self) -> Budget:
        """The budget as it is now."""
        return copy.deepcopy(self)
