"""Plans against each other by the clock: who ran, how they compare, and what their stages took.

In each round every plan runs in every repeat, the first plan among them. Plans are compared by
their time over the first's in the same repeat, and brought to the pace of the last round by the
first plan's times, so that a machine that gets slower or faster from round to round moves no
comparison and no correction.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from partitioner.correction import Observation
from partitioner.errors import InfeasibleError
from partitioner.evaluation import evaluate
from partitioner.graph import OpGraph
from partitioner.machine import Machine
from partitioner.plan import Plan
from partitioner.planning import Choice, make_plan
from partitioner.problem import Problem, Solution
from partitioner.profiling.table import ProfileTable
from partitioner.report.refinement import Round, Trial
from partitioner.trials import Runner, Seen, Times

__all__ = ["Contest", "plan_key", "rescored"]

# A repeat's figure is never better than this, relatively: clocks, and what else the machine does.
_LEAST_ERROR = 0.01

Progress = Callable[[str, float], None]
_Key = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True)
class _Bout:
    """A plan in one round: what was seen in each repeat, and its time over the first plan's."""

    round: int
    seen: tuple[Seen, ...]
    ratios: tuple[float, ...]

    @property
    def error(self) -> float:
        """Relative error of what was seen."""
        periods = [seen.period_s for seen in self.seen]
        return max(_LEAST_ERROR, _spread(self.ratios), _spread(periods))


@dataclass(slots=True)
class _Tried:
    """A plan that ran, or is about to."""

    number: int
    solution: Solution
    bouts: list[_Bout] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [ratio for bout in self.bouts for ratio in bout.ratios]

    @property
    def ratio(self) -> float:
        """Its time over the first plan's: median of all repeats."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> float:
        """Interquartile range of that over the median."""
        return _spread(self.ratios)


class Contest:
    """The plans that ran.

    Parameters
    ----------
    problem : Problem
        By the profile alone.
    graph, machine, table
        What it was made from.
    run : Runner
        Runs plans by the clock.
    repeats : int
        How often every plan of a round runs.
    """

    def __init__(
        self,
        problem: Problem,
        graph: OpGraph,
        machine: Machine,
        table: ProfileTable,
        run: Runner,
        repeats: int,
    ) -> None:
        self.problem = problem
        self.repeats = repeats
        self._parts = (graph, machine, table)
        self._run = run
        self._tried: dict[_Key, _Tried] = {}
        # The first plan's time in each round.
        self._pace_s: list[float] = []

    @property
    def first(self) -> _Tried:
        """The plan before refining."""
        return next(iter(self._tried.values()))

    def take(self, solution: Solution) -> _Tried:
        """Enter a plan."""
        return self._tried.setdefault(plan_key(solution), _Tried(len(self._tried), solution))

    def new(self, candidates: Sequence[Solution], count: int) -> list[Solution]:
        """Candidates that did not run, first those held up by a stage that held up no other.

        The best plans are often one plan with small changes away from its bottleneck, which
        predicts the same period for all: trying these would tell little.
        """
        untried = [each for each in candidates if plan_key(each) not in self._tried]
        slowest = {_bottleneck(tried.solution) for tried in self._tried.values()}
        ranked = []
        for rank, solution in enumerate(untried):
            again = _bottleneck(solution) in slowest
            slowest.add(_bottleneck(solution))
            # The best of all runs whatever holds it up.
            ranked.append((again and rank > 0, rank))
        return [untried[rank] for _, rank in sorted(ranked)[:count]]

    def round(self, known: Problem, new: Sequence[_Tried], progress: Progress) -> Round:
        """Run the first plan, the best so far and the new ones, every one in each repeat."""
        first, best = self.first, self.best(known)
        entered = {t.number: t for t in (first, best, *new)}
        plans = {f"plan {n}": self.plan(known, t.solution) for n, t in entered.items()}
        found = []
        for repeat in range(self.repeats):
            progress(
                f"{len(plans)} plans, repeat {repeat + 1} of {self.repeats}", repeat / self.repeats
            )
            found.append(self._run(plans))
        self._pace_s.append(
            statistics.median(self._value(each[f"plan {first.number}"]) for each in found)
        )
        trials = []
        for number, tried in entered.items():
            seen = [each[f"plan {number}"] for each in found]
            values = [self._value(each) for each in seen]
            ratios = [
                value / self._value(each[f"plan {first.number}"])
                for value, each in zip(values, found, strict=True)
            ]
            tried.bouts.append(_Bout(len(self._pace_s) - 1, tuple(seen), tuple(ratios)))
            trials.append(
                Trial(
                    plan=number,
                    cut=_words(self.problem, tried.solution),
                    predicted_s=rescored(known, tried.solution).evaluation.value(known.objective),
                    measured_s=statistics.median(values),
                    spread=_spread(values),
                    ratio=statistics.median(ratios),
                    ratio_low=min(ratios),
                    ratio_high=max(ratios),
                )
            )
        return Round(tuple(trials))

    def plan(self, known: Problem, solution: Solution) -> Plan:
        """A solution written down with the figures of a problem."""
        return self.plan_of(known, Choice(rescored(known, solution), 0.0, ()))

    def plan_of(self, known: Problem, choice: Choice) -> Plan:
        """A choice written down."""
        return make_plan(*self._parts, known, choice)

    def best(self, known: Problem) -> _Tried:
        """The plan with the least time, of those that keep the caps; the first to start with.

        Raises
        ------
        InfeasibleError
            If none keeps them.
        """
        return min(self._able(known), key=lambda tried: tried.ratio) if self._ran else self.first

    def kept(self, known: Problem) -> _Tried:
        """The plan with the least time at the upper end of its spread: never one that is slower.

        The first plan's time over its own is 1 without any, so that luck alone replaces it seldom.

        Raises
        ------
        InfeasibleError
            If none keeps the caps.
        """
        return min(self._able(known), key=lambda tried: tried.ratio * (1 + tried.spread))

    def settled(self, solution: Solution) -> bool:
        """Whether a plan has run and none was faster by more than the spread."""
        tried = self._tried.get(plan_key(solution))
        least = min(t.ratio for t in self._ran)
        if tried is None or not tried.bouts:
            return False
        return tried.ratio <= least * (1 + max(_LEAST_ERROR, tried.spread))

    def observations(self) -> list[Observation]:
        """What all plans showed, at the last round's pace. The slower a plan, the less it counts.

        The problem has to be right where the best plans are, and how much stages disturb one
        another differs from plan to plan.
        """
        least = min(tried.ratio for tried in self._ran)
        return [
            Observation(
                tried.solution,
                _medians([seen.run_s for seen in bout.seen], self._now(bout)),
                _medians([seen.send_s for seen in bout.seen], self._now(bout)),
                error=bout.error + (tried.ratio / least - 1.0),
            )
            for tried in self._ran
            for bout in tried.bouts
        ]

    @property
    def _ran(self) -> list[_Tried]:
        return [tried for tried in self._tried.values() if tried.bouts]

    def _able(self, known: Problem) -> list[_Tried]:
        """Those that ran and keep the caps."""
        able = [t for t in self._ran if rescored(known, t.solution).evaluation.feasible]
        if not able:
            raise InfeasibleError(
                f"none of the {len(self._ran)} plans that ran keeps the caps by the times as "
                "measured; allow more rounds, or raise a cap"
            )
        return able

    def _now(self, bout: _Bout) -> float:
        """How much slower the machine was in the last round than in the bout's."""
        return self._pace_s[-1] / self._pace_s[bout.round]

    def _value(self, seen: Seen) -> float:
        return seen.period_s if self.problem.objective.value == "period" else seen.latency_s


def rescored(problem: Problem, solution: Solution) -> Solution:
    """The solution with its figures by a problem."""
    evaluation = evaluate(problem, solution.stage_of, solution.placements)
    return replace(solution, evaluation=evaluation)


def plan_key(solution: Solution) -> _Key:
    """The plan whatever the order of its stages' numbers and of a stage's replicas."""
    order = tuple(dict.fromkeys(solution.stage_of))
    number = {stage: position for position, stage in enumerate(order)}
    places = tuple(tuple(sorted(solution.placements[stage])) for stage in order)
    return tuple(number[stage] for stage in solution.stage_of), places


def _bottleneck(solution: Solution) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ops and places of the slowest stage."""
    times = solution.evaluation.stage_period_s
    stage = max(range(len(times)), key=times.__getitem__)
    ops = tuple(op for op, home in enumerate(solution.stage_of) if home == stage)
    return ops, tuple(sorted(solution.placements[stage]))


def _words(problem: Problem, solution: Solution) -> str:
    """How many ops each stage has, and where it runs."""
    stages = []
    for stage, options in enumerate(solution.placements):
        counts = Counter(problem.option_names[option].replace(" cores)", ")") for option in options)
        places = " + ".join(
            f"{count} x {name}" if count > 1 else name for name, count in counts.items()
        )
        stages.append(f"{solution.stage_of.count(stage)} ops on {places}")
    return " > ".join(stages)


def _medians(runs: Sequence[Times], scale: float) -> Times:
    """Median over runs times `scale`, for each stage, for each of its replicas."""
    return tuple(
        tuple(scale * statistics.median(times) for times in zip(*stage, strict=True))
        for stage in zip(*runs, strict=True)
    )


def _spread(values: Sequence[float]) -> float:
    """Interquartile range over median."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float((high - low) / middle)
