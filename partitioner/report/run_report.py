"""Predicted beside measured: the report of a plan that has run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from partitioner.host import HostInfo
from partitioner.plan import Plan
from partitioner.plan_table import format_seconds, table
from partitioner.report.kernels import Kernels
from partitioner.report.outputs import Outputs
from partitioner.report.refinement import Refinement

__all__ = ["Baseline", "Measured", "Report"]

SCHEMA = 1

# Predictions are meant to be this good; a measurement that varies by more cannot judge them.
_INCONCLUSIVE = 0.10


@dataclass(frozen=True, slots=True)
class Measured:
    """The pipeline by the clock.

    Attributes
    ----------
    period_s, latency_s : float
        Medians over rounds in fresh processes.
    items : int
        Completions a round.
    spread : float
        Interquartile range over median, of the period over rounds, or within a round if there is
        but one.
    """

    period_s: float
    latency_s: float
    items: int
    spread: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """An alternative by the clock.

    Attributes
    ----------
    name : str
    period_s, latency_s : float
        Medians over rounds.
    predicted_period_s : float or None
        By the model; None where times were not measured.
    ratio, ratio_low, ratio_high : float
        Its period over the plan's, paired by round: median, least and largest.
    """

    name: str
    period_s: float
    latency_s: float
    predicted_period_s: float | None
    ratio: float
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything known of a plan.

    Attributes
    ----------
    plan : Plan
    host : HostInfo
    op_sum_s : float or None
        Period from op times alone: the largest stage's sum.
    stage_measured_s : float or None
        Period from each built stage timed alone, with modelled copies.
    measured : Measured or None
    baselines : tuple of Baseline
    outputs : Outputs or None
    refinement : Refinement or None
        How the plan was found by the clock; its prediction is then by corrected times.
    kernels : Kernels or None
        How the plan's kernels are made.
    """

    plan: Plan
    host: HostInfo
    op_sum_s: float | None = None
    stage_measured_s: float | None = None
    measured: Measured | None = None
    baselines: tuple[Baseline, ...] = ()
    outputs: Outputs | None = None
    refinement: Refinement | None = None
    kernels: Kernels | None = None

    def to_data(self) -> dict[str, Any]:
        """JSON-ready form."""
        predicted = self.plan.predicted
        return {
            "schema": SCHEMA,
            "model": self.plan.model,
            "plan": self.plan.to_data(),
            "predicted": predicted
            and {"period_s": predicted.period_s, "latency_s": predicted.latency_s},
            "op_sum": {"period_s": self.op_sum_s},
            "stage_measured": {"period_s": self.stage_measured_s},
            "measured": self.measured and asdict(self.measured),
            "baselines": [asdict(baseline) for baseline in self.baselines],
            "outputs": self.outputs and asdict(self.outputs),
            "refinement": self.refinement and self.refinement.to_data(),
            "kernels": self.kernels and self.kernels.to_data(),
            "host": asdict(self.host),
        }

    def __str__(self) -> str:
        lines = [str(self.plan), ""]
        if self.kernels is not None:
            lines += [str(self.kernels), ""]
        if self.refinement is not None:
            lines += [str(self.refinement), ""]
        steps: list[tuple[str, float | None]] = [("op_sum", self.op_sum_s)]
        if self.refinement is not None and self.refinement.before.predicted is not None:
            steps.append(("predicted before", self.refinement.before.predicted.period_s))
        if self.plan.predicted is not None:
            steps.append(("predicted", self.plan.predicted.period_s))
        steps.append(("stage_measured", self.stage_measured_s))
        steps.append(("measured", self.measured.period_s if self.measured else None))
        known = [(name, seconds) for name, seconds in steps if seconds is not None]
        rows = []
        for position, (name, seconds) in enumerate(known):
            before = known[position - 1][1] if position else None
            change = "" if not before else f"{seconds / before - 1:+.1%}"
            rows.append((name, format_seconds(seconds), f"{1 / seconds:.1f}", change))
        lines.append(table(("period", "value", "items/s", "to the one above"), rows))
        if self.measured is not None:
            lines.append(
                f"measured over {self.measured.items} items a round, spread "
                f"{self.measured.spread:.1%}; latency {format_seconds(self.measured.latency_s)}"
            )
            if self.measured.spread > _INCONCLUSIVE:
                lines.append(
                    f"inconclusive: a spread above {_INCONCLUSIVE:.0%} hides what is to be seen; "
                    "something else runs on these cores"
                )
        if self.baselines:
            lines += ["", table(_HEADERS, [_row(baseline) for baseline in self.baselines])]
        if self.outputs is not None:
            lines.append(
                f"outputs of {self.outputs.checked} items: {self.outputs.verdict} to the uncut "
                f"model's, largest difference {self.outputs.max_abs_diff:g}"
            )
        return "\n".join(lines)


_HEADERS = ("alternative", "measured", "predicted", "latency", "lowest", "highest", "times ours")


def _row(baseline: Baseline) -> tuple[str, ...]:
    return (
        baseline.name,
        format_seconds(baseline.period_s),
        format_seconds(baseline.predicted_period_s),
        format_seconds(baseline.latency_s),
        f"{baseline.ratio_low:.2f}",
        f"{baseline.ratio_high:.2f}",
        f"{baseline.ratio:.2f}",
    )
