"""The plan as a table that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.core_list import format_cpus
from partitioner.plan import Plan, Stage

__all__ = ["format_bytes", "format_seconds", "plan_table", "table"]


def plan_table(plan: Plan) -> str:
    """Stages, devices, cores, ops with their source nodes, predicted times, cut bytes, bound."""
    sources = dict(plan.sources)
    rows = [
        _row(index, replica, stage, sources)
        for index, stage in enumerate(plan.stages)
        for replica in range(len(stage.placements))
    ]
    headers = (
        "stage",
        "device",
        "cores",
        "share",
        "ops",
        "holds",
        "compute",
        "copies",
        "busy",
        "in",
        "out",
        "memory",
    )
    lines = [
        f"{plan.name} plan of {plan.model} for {plan.machine}: {len(plan.stages)} "
        f"stage{'s' if len(plan.stages) != 1 else ''}, least {plan.objective}",
        table(headers, rows),
    ]
    predicted = plan.predicted
    if predicted is None:
        lines.append("predicted: nothing, the stages were edited; plan or run again with a profile")
        return "\n".join(lines)
    kind = "estimated, not measured" if predicted.estimated else "from measured op times"
    if predicted.interpolated:
        kind += f", {predicted.interpolated} of them between measured numbers of threads"
    gap = predicted.gap(plan.objective)
    lines += [
        f"predicted ({kind}): period {format_seconds(predicted.period_s)} "
        f"({1 / predicted.period_s:.1f} items/s), latency {format_seconds(predicted.latency_s)} "
        f"({predicted.latency_model}, {predicted.transfer_model} transfers), "
        f"bottleneck {predicted.bottleneck}",
        f"{predicted.status} by {predicted.method}: {plan.objective} at least "
        f"{format_seconds(predicted.bound_s)} for any such plan, gap {gap:.2%}",
    ]
    if plan.alternatives:
        best = predicted.value(plan.objective)
        lines.append(
            table(
                ("alternative", "period", "latency", f"{plan.objective} / this"),
                [
                    (
                        other.name,
                        format_seconds(other.period_s),
                        format_seconds(other.latency_s),
                        f"{other.value(plan.objective) / best:.2f}",
                    )
                    for other in plan.alternatives
                ],
            )
        )
    return "\n".join(lines)


def _row(
    index: int, replica: int, stage: Stage, sources: dict[str, tuple[str, ...]]
) -> tuple[str, ...]:
    placement = stage.placements[replica]
    held = [name for op in stage.ops for name in sources.get(op, ())]
    first, last = (held[0], held[-1]) if held else (stage.ops[0], stage.ops[-1])
    return (
        str(index) if len(stage.placements) == 1 else f"{index}.{replica}",
        placement.device,
        format_cpus(placement.cpus) or "-",
        f"{placement.share:.0%}",
        str(len(stage.ops)),
        _short(first) if first == last else f"{_short(first)} .. {_short(last)}",
        format_seconds(placement.compute_s),
        format_seconds(placement.copy_s),
        format_seconds(placement.busy_s),
        format_bytes(stage.in_bytes),
        format_bytes(stage.out_bytes),
        format_bytes(stage.bytes),
    )


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: text to the left, what looks like a number to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(headers, *rows, strict=True)]
    right = [
        all(row[i].lstrip("+-")[:1].isdigit() or row[i] in ("-", "") for row in rows) and bool(rows)
        for i in range(len(headers))
    ]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(headers), rule, *map(line, rows)])


def format_seconds(value: float | None) -> str:
    """Three digits and a unit; ``-`` for None."""
    if value is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= _ROUNDS_UP * scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{value / 1e-6:.2f} us"


def format_bytes(value: float | None) -> str:
    """Three digits and a decimal unit; ``-`` for None."""
    if value is None:
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= _ROUNDS_UP * scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{value:.0f} B"


_ROUNDS_UP = 0.9995  # from here on three digits of the smaller unit would read 1000


def _three_digits(value: float) -> str:
    # Above 999 the format `.3g` turns to an exponent.
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _short(name: str, width: int = 28) -> str:
    return name if len(name) <= width else f"{name[: width // 2 - 1]}..{name[-(width // 2 - 1) :]}"
