"""Cutting rows into batches by what they cost the device: rows times the longest row, in tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Budget", "Padding", "padding", "plan_batches"]

Array = np.ndarray[Any, Any]

_WASTE = 1 / 48  # of the budget: padding in one batch, above which a batch of its own costs less
_RECOVERY = 8  # batches at the limit before it is raised again


def plan_batches(sizes: Array, *, tokens: int, max_rows: int) -> list[Array]:
    """Positions (int64) of each batch, longest rows first, so that running out of memory shows early.

    Every position is in exactly one batch; ``rows * longest <= tokens`` holds for each batch of more than one
    row; a row longer than the budget is a batch of its own.

    Args:
        sizes: int64[n], the cost of each row in tokens; zero counts as one.
        tokens: the budget of a batch, padding included.
        max_rows: the most rows of a batch, whatever they cost.
    """
    costs = np.maximum(np.asarray(sizes, dtype=np.int64), 1)
    order = np.argsort(-costs, kind="stable")
    descending = costs[order]
    batches: list[Array] = []
    start = 0
    while start < len(order):
        end = _cut(descending, start, tokens, max_rows)
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
    """How many tokens a batch may cost now: halved when memory runs out, raised again below the known
    ceiling.

    ``limit`` is the budget in tokens; ``ceiling`` the smallest cost that ever failed, or None.
    """

    def __init__(self, tokens: int) -> None:
        self.limit = self._most = max(1, tokens)
        self.ceiling: int | None = None
        self._fitted = 0

    def failed(self, cost: int) -> None:
        """A batch of several rows that cost ``cost`` tokens ran out of memory."""
        self.ceiling = cost if self.ceiling is None else min(self.ceiling, cost)
        self._most = max(1, min(self._most, self.ceiling - 1))
        self.limit = max(1, min(self.limit, cost // 2))
        self._fitted = 0

    def fitted(self, cost: int) -> None:
        """A batch of ``cost`` tokens went through; enough of them near the limit raise it by a quarter."""
        if self.limit == self._most or cost <= self.limit // 2:
            return
        self._fitted += 1
        if self._fitted >= _RECOVERY:
            self.limit = min(self._most, self.limit + max(1, self.limit // 4))
            self._fitted = 0

    def copy(self) -> Budget:
        """The budget as it is now."""
        return copy.copy(self)
