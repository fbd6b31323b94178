"""What refining a plan by the clock showed: plans tried round by round, and what was corrected."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from partitioner.plan import Plan
from partitioner.plan_table import format_seconds, table

__all__ = ["OptionFactor", "Refinement", "Round", "Trial"]


# Plans that are worth comparing differ by less.
_INCONCLUSIVE = 0.10


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan run by the clock in one round, in turn with the round's others.

    Attributes
    ----------
    plan : int
        Its number, from 0 for the first plan, the one before refining.
    cut : str
        Its stages in words.
    predicted_s : float
        The objective by the problem of the round, before the round ran.
    measured_s : float
        The objective by the clock: median of the round's repeats.
    spread : float
        Interquartile range over median, of the repeats.
    ratio, ratio_low, ratio_high : float
        Measured over the first plan's, paired by repeat: median, least and largest.
    """

    plan: int
    cut: str
    predicted_s: float
    measured_s: float
    spread: float
    ratio: float
    ratio_low: float
    ratio_high: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True, slots=True)
class Round:
    """Plans that ran against each other.

    Attributes
    ----------
    trials : tuple of Trial
        The first plan, the best so far, and new ones.
    """

    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class OptionFactor:
    """How much longer than by the profile things took on an option, in pipelines that ran.

    Attributes
    ----------
    option : str
    run, send : float
        Measured over predicted: op times, and copies.
    workers : int
        How many stages' replicas were seen there; with none the factor is that of its kind.
    """

    option: str
    run: float
    send: float
    workers: int


@dataclass(frozen=True, slots=True)
class Refinement:
    """The way from the plan that was predicted best to the one that was measured best.

    Attributes
    ----------
    objective : str
        ``"period"`` or ``"latency"``.
    rounds : tuple of Round
    repeats : int
        How often each plan of a round ran, each time in fresh processes.
    factors : tuple of OptionFactor
        What the corrected problem was made with, besides corrections of single ops.
    chosen : int
        Number of the plan that was kept.
    before : Plan
        That plan with figures of the profile alone.
    stopped : str
        Why there were no more rounds.
    """

    objective: str
    rounds: tuple[Round, ...]
    repeats: int
    factors: tuple[OptionFactor, ...]
    chosen: int
    before: Plan
    stopped: str

    @property
    def last(self) -> Trial:
        """The kept plan, when it last ran."""
        return next(
            trial
            for each in reversed(self.rounds)
            for trial in each.trials
            if trial.plan == self.chosen
        )

    def to_data(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "before": self.before.to_data()}

    def __str__(self) -> str:
        rows = [
            (
                str(number),
                str(trial.plan),
                trial.cut,
                format_seconds(trial.predicted_s),
                format_seconds(trial.measured_s),
                f"{trial.error:+.1%}",
                f"{trial.spread:.1%}",
                f"{trial.ratio:.3f}",
                f"{trial.ratio_low:.3f}",
                f"{trial.ratio_high:.3f}",
            )
            for number, each in enumerate(self.rounds, 1)
            for trial in each.trials
        ]
        notes = []
        if self.last.spread > _INCONCLUSIVE:
            notes.append(
                f"inconclusive: a spread above {_INCONCLUSIVE:.0%} hides which plan is better; "
                "something else runs on these cores"
            )
        seen = [factor for factor in self.factors if factor.workers]
        count = len(self.rounds)
        kept = "the first plan" if self.chosen == 0 else f"plan {self.chosen}"
        return "\n".join(
            [
                f"refined in {_counted(count, 'round')} of {_counted(self.repeats, 'repeat')}: "
                f"{kept} is kept; {self.stopped}",
                *notes,
                table((*_HEADERS[:3], f"predicted {self.objective}", *_HEADERS[3:]), rows),
                table(
                    ("stages on", "workers", "ops took", "copies took"),
                    [(f.option, str(f.workers), f"{f.run:.2f} x", f"{f.send:.2f} x") for f in seen],
                ),
            ]
        )


_HEADERS = (
    "round",
    "plan",
    "stages",
    "measured",
    "error",
    "spread",
    "times first",
    "lowest",
    "highest",
)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
