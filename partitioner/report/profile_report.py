"""A profile as a table: what takes the time, what is noisy, and what nobody measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partitioner.cost.interference import contention_factors
from partitioner.graph import OpGraph
from partitioner.plan_table import format_seconds, table
from partitioner.profiling.table import NOISY, Measurement, OpKey, ProfileTable

__all__ = ["profile_table"]

_MOST_ROWS = 20

# Behind the time, so that columns still line up as numbers.
_INTERPOLATED = "*"

Times = list[Measurement | None]


def profile_table(profile: ProfileTable, graph: OpGraph) -> str:
    """The longest ops of a model on each device, the totals, and what to know about the times."""
    devices = sorted({(key.device, key.threads) for key in profile.ops})

    def times(signature: str) -> Times:
        return [profile.ops.get(OpKey(signature, *device)) for device in devices]

    ops = sorted(
        graph.ops, key=lambda op: -max(r.median_s if r else 0.0 for r in times(op.signature))
    )
    rows = [
        (op.name, op.sources[0] if op.sources else "", *map(_cell, times(op.signature)))
        for op in ops[:_MOST_ROWS]
    ]
    if len(ops) > _MOST_ROWS:
        rest = _sums([times(op.signature) for op in ops[_MOST_ROWS:]])
        rows.append((f"{len(ops) - _MOST_ROWS} others", "", *rest))
    rows.append(("sum", "", *_sums([times(op.signature) for op in ops])))
    headers = ("op", "first source node", *(f"{name} x{threads}" for name, threads in devices))
    return "\n".join([table(headers, rows), *_remarks(profile, graph)])


def _cell(row: Measurement | None) -> str:
    return format_seconds(row.median_s if row else None) + _mark([row])


def _sums(rows: Sequence[Times]) -> list[str]:
    return [
        format_seconds(sum(row.median_s for row in column if row)) + _mark(column)
        for column in zip(*rows, strict=True)
    ]


def _mark(rows: Sequence[Measurement | None]) -> str:
    return _INTERPOLATED if any(row and row.interpolated for row in rows) else ""


def _remarks(profile: ProfileTable, graph: OpGraph) -> Iterator[str]:
    made = {key.signature for key, row in profile.ops.items() if row.kernel}
    if recorded := sum(op.signature in made for op in graph.ops):
        yield (
            f"kernels: {recorded} of {len(graph.ops)} ops from records of tuning, "
            f"{len(graph.ops) - recorded} by rule"
        )
    between = sum(row.interpolated for row in profile.ops.values())
    if between:
        yield (
            f"{_INTERPOLATED} interpolated between measured numbers of threads "
            f"({between} of {len(profile.ops)} times)"
        )
    factors = contention_factors(profile, graph)
    if factors:
        yield "while the other cores are busy:"
        yield table(
            ("device", "ops", "number", "of the time", "times as long", "half of them"),
            [
                (
                    f"{row.device} x{row.threads}",
                    row.kind,
                    str(row.ops),
                    f"{row.share:.0%}",
                    f"{row.factor:.2f}",
                    f"{row.low:.2f} to {row.high:.2f}",
                )
                for row in factors
            ],
        )
    if profile.handover is not None:
        hop = profile.handover
        yield (
            f"hand-over: {format_seconds(hop.send_base_s + hop.recv_base_s)} a hop and "
            f"{(hop.send_s_per_byte + hop.recv_s_per_byte) * 1e9:.3f} s a GB"
        )
    noisy = profile.noisy()
    if noisy:
        worst = noisy[0][1]
        spread = worst.iqr_s / worst.median_s if worst.median_s else float("inf")
        yield (
            f"warning: {len(noisy)} of {len(profile.ops)} times vary by more than {NOISY:.0%} "
            f"(interquartile range over median), the longest {format_seconds(worst.median_s)} by "
            f"{spread:.0%}; is something else running on these cores?"
        )
    yield from (f"note: {note}" for note in profile.notes)
