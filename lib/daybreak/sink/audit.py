"""Audit before publishing: every row of the input has exactly one score or one dead letter, or nothing is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from daybreak import schema
from daybreak.config import Gates
from daybreak.errors import GateError
from daybreak.sink.staging import Receipt


class Planned(Protocol):
    """A shard as the plan counted it in the input, before any worker saw it."""

    @property
    def shard_id(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def skipped(self) -> int: ...


@dataclass(frozen=True)
class Counts:
    rows_in: int
    rows_scored: int
    rows_dead: int
    rows_skipped: int

    @property
    def rows_to_score(self) -> int:
        """The input's rows without those whose score in the output still holds."""
        return self.rows_in - self.rows_skipped

    @property
    def dead_fraction(self) -> float:
        """Of the rows that were to be scored, since a skipped row can be no dead letter."""
        return self.rows_dead / self.rows_to_score if self.rows_to_score else 0.0


def reconcile(plan: Iterable[Planned], receipts: Sequence[Receipt], staged: Mapping[int, Mapping[str, int]]) -> Counts:
    """Hold three independent counts against each other, shard by shard. Pure.

    The plan counted the input, the receipts say what the workers did, and ``staged`` is what lies in the files.
    Raises GateError that names the shards where ``input = scored + dead + skipped`` does not hold.
    """
    by_shard = {receipt.shard_id: receipt for receipt in receipts}
    shards = list(plan)
    wrong = [text for shard in shards if (text := _difference(shard, by_shard.get(shard.shard_id), staged))]
    unknown = sorted(set(by_shard) - {shard.shard_id for shard in shards})
    wrong += [f"shard {shard_id} is staged and not in the plan" for shard_id in unknown]
    if wrong:
        shown = "\n".join(f"  - {text}" for text in wrong[:5])
        raise GateError(
            f"the counts of {len(wrong)} shard(s) do not reconcile, so nothing is published:\n{shown}",
            fix="run the same command again to score shards without a receipt; if that ends here too, --fresh",
        )
    return Counts(
        sum(shard.rows for shard in shards),
        sum(receipt.rows_scored for receipt in receipts),
        sum(receipt.rows_dead for receipt in receipts),
        sum(shard.skipped for shard in shards),
    )


def _difference(shard: Planned, receipt: Receipt | None, staged: Mapping[int, Mapping[str, int]]) -> str:
    wanted = shard.rows - shard.skipped
    if receipt is None:
        return f"shard {shard.shard_id} has {wanted} rows to score and no receipt" if wanted else ""
    found = staged.get(shard.shard_id, {})
    scored, dead = found.get(schema.SCORED, 0), found.get(schema.DEAD, 0)
    agree = receipt.rows_in == wanted and (receipt.rows_scored, receipt.rows_dead) == (scored, dead)
    if agree and scored + dead == wanted:
        return ""
    return (
        f"shard {shard.shard_id}: {wanted} rows to score in the input, {receipt.rows_in} in the receipt"
        f" ({receipt.rows_scored} scored, {receipt.rows_dead} dead), and {scored} scored, {dead} dead staged"
    )


def hold_gates(counts: Counts, gates: Gates) -> None:
    """Raises GateError that lists each gate which refuses, with its value and its limit."""
    refused = []
    if counts.rows_in < gates.min_rows:
        refused.append(f"the input has {counts.rows_in} rows, and gates.min_rows is {gates.min_rows}")
    if counts.dead_fraction > gates.max_dead_fraction:
        refused.append(
            f"{counts.rows_dead} of {counts.rows_to_score} rows are dead letters ({counts.dead_fraction:.2%}), and"
            f" gates.max_dead_fraction is {gates.max_dead_fraction:.2%}"
        )
    if refused:
        raise GateError(
            "nothing is published: " + "; ".join(refused),
            fix="read the dead letters. Raise the gate and run the same command: what is staged is not scored again. Or"
            " mend the input or the model and run it: a new version of either starts a new run, and so does --fresh",
        )
