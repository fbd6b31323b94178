"""A profile as a table: what takes the time, and what is noisy."""

from __future__ import annotations

from partitioner.graph import OpGraph
from partitioner.plan_table import format_seconds, table
from partitioner.profiling.table import NOISY, OpKey, ProfileTable

__all__ = ["profile_table"]

_MOST_ROWS = 20


def profile_table(profile: ProfileTable, graph: OpGraph) -> str:
    """The longest ops of a model on each device, the totals, and a warning where times vary."""
    devices = sorted({(key.device, key.threads) for key in profile.ops})

    def times(signature: str) -> list[float | None]:
        found = [profile.ops.get(OpKey(signature, *device)) for device in devices]
        return [row.median_s if row else None for row in found]

    ops = sorted(graph.ops, key=lambda op: -max(s or 0.0 for s in times(op.signature)))
    rows = [
        (op.name, op.sources[0] if op.sources else "", *map(format_seconds, times(op.signature)))
        for op in ops[:_MOST_ROWS]
    ]
    if len(ops) > _MOST_ROWS:
        rest = [times(op.signature) for op in ops[_MOST_ROWS:]]
        sums = [sum(s or 0.0 for s in column) for column in zip(*rest, strict=True)]
        rows.append((f"{len(ops) - _MOST_ROWS} others", "", *map(format_seconds, sums)))
    every = [times(op.signature) for op in ops]
    totals = [sum(s or 0.0 for s in column) for column in zip(*every, strict=True)]
    rows.append(("sum", "", *map(format_seconds, totals)))
    headers = ("op", "first source node", *(f"{name} x{threads}" for name, threads in devices))
    lines = [table(headers, rows)]
    if profile.handover is not None:
        hop = profile.handover
        lines.append(
            f"hand-over: {format_seconds(hop.send_base_s + hop.recv_base_s)} a hop and "
            f"{(hop.send_s_per_byte + hop.recv_s_per_byte) * 1e9:.3f} s a GB"
        )
    noisy = profile.noisy()
    if noisy:
        worst = noisy[0][1]
        spread = worst.iqr_s / worst.median_s if worst.median_s else float("inf")
        lines.append(
            f"warning: {len(noisy)} of {len(profile.ops)} times vary by more than {NOISY:.0%} "
            f"(interquartile range over median), the longest {format_seconds(worst.median_s)} by "
            f"{spread:.0%}; is something else running on these cores?"
        )
    return "\n".join(lines)
