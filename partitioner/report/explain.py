"""Why a plan is as it is: what limits it, where it is cut, what the next best would cost."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.errors import PlanError
from partitioner.plan import Alternative, Plan
from partitioner.plan_table import format_bytes, format_seconds, table

__all__ = ["explain"]


def explain(plan: Plan) -> str:
    """Bottleneck, balance, cuts and the best plans one step away, as text.

    Raises
    ------
    PlanError
        If the plan was edited and carries no figures.
    """
    predicted = plan.predicted
    if predicted is None:
        raise PlanError(
            "the plan's stages were edited, so it carries no figures to explain; run "
            "`partitioner plan MODEL --plan FILE -o FILE` to score it again"
        )
    value = predicted.value(plan.objective)
    lines = [
        f"{plan.name} plan of {plan.model}: {plan.objective} {format_seconds(value)}, "
        f"{predicted.status} (no such plan is below {format_seconds(predicted.bound_s)})",
        f"bottleneck: {predicted.bottleneck}",
        table(
            ("stage", "device", "busy", "of the period", "compute", "copies"),
            [
                (
                    str(index),
                    placement.device,
                    format_seconds(placement.busy_s),
                    f"{(placement.busy_s or 0.0) * placement.share / predicted.period_s:.0%}",
                    format_seconds(placement.compute_s),
                    format_seconds(placement.copy_s),
                )
                for index, stage in enumerate(plan.stages)
                for placement in stage.placements
            ],
        ),
    ]
    for index, stage in enumerate(plan.stages[:-1]):
        following = plan.stages[index + 1]
        tensors = ", ".join(f"{name} ({format_bytes(size)})" for name, size in stage.leaves)
        lines.append(
            f"cut {index}|{index + 1}: after {stage.ops[-1]}, before {following.ops[0]}; "
            f"stage {index} hands over {tensors or 'nothing'}"
        )
    if plan.neighbours:
        lines += ["one step away:", _compared(plan.neighbours, plan.objective, value)]
    if plan.alternatives:
        lines += ["simple alternatives:", _compared(plan.alternatives, plan.objective, value)]
    return "\n".join(lines)


def _compared(others: Sequence[Alternative], objective: str, value: float) -> str:
    return table(
        ("change", objective, "against this"),
        [
            (
                other.name,
                format_seconds(other.value(objective)),
                f"{other.value(objective) / value - 1:+.1%}",
            )
            for other in others
        ],
    )
