"""From the plan predicted best to the plan measured best: run, correct the times, solve again.

Each round runs the plans that are predicted best and were not run yet, in turn with the first plan
and the best so far. What their stages took while the others were busy goes into the problem
(`partitioner.correction`), which is solved again. Among all plans that ran, the one that took the
least time against the first, paired by repeat, is kept; the first is among them. It is the least of
several noisy figures, so that its own is a little too good: measure it again before quoting it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from partitioner.correction import Observation, corrected, factors
from partitioner.errors import InfeasibleError, InputError
from partitioner.evaluation import evaluate
from partitioner.graph import OpGraph
from partitioner.machine import Machine
from partitioner.plan import Plan
from partitioner.planning import MOST_REPLICAS, Choice, choose, kind_of, make_plan
from partitioner.problem import Problem, Solution
from partitioner.profiling.table import ProfileTable
from partitioner.report.refinement import OptionFactor, Refinement, Round, Trial
from partitioner.solvers.kbest.kbest import k_best
from partitioner.solvers.replicate import with_replicas
from partitioner.trials import Runner, Seen, Times

__all__ = ["Refined", "refine"]

# Plans predicted worse than the best by more than this are not worth a trial.
_CLOSE = 0.25
# How many plans are ranked, of which those that differ where it matters are tried.
_RANKED = 24
# A repeat's figure is never better than this, relatively: clocks, and what else the machine does.
_LEAST_ERROR = 0.01

Progress = Callable[[str, float], None]
_Key = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True)
class Refined:
    """What refining leads to.

    Attributes
    ----------
    problem : Problem
        With times as measured.
    choice : Choice
        The plan measured best, with the bound and alternatives of that problem.
    plan : Plan
        The choice written down.
    refinement : Refinement
        How it was found.
    """

    problem: Problem
    choice: Choice
    plan: Plan
    refinement: Refinement


@dataclass(slots=True)
class _Tried:
    """A plan that ran, and what was seen each time, beside the first plan in the same repeat."""

    number: int
    solution: Solution
    seen: list[Seen] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def error(self) -> float:
        return max(_LEAST_ERROR, _spread(self.ratios), _spread([s.period_s for s in self.seen]))


def refine(
    problem: Problem,
    choice: Choice,
    graph: OpGraph,
    machine: Machine,
    table: ProfileTable,
    run: Runner,
    *,
    rounds: int,
    strategy: str = "best",
    replicas: int = MOST_REPLICAS,
    time_limit_s: float = 10.0,
    repeats: int = 3,
    fresh: int = 3,
    progress: Progress = lambda what, part: None,
) -> Refined:
    """Run the plans predicted best, correct the problem by what they took, and solve again.

    Parameters
    ----------
    problem, choice
        What was solved and chosen by the profile alone.
    graph, machine, table
        What they were made from.
    run : Runner
        Runs plans by the clock.
    rounds : int
        Most rounds. Fewer are made when the plan predicted best by the corrected problem has run
        and no other was faster by more than the spread.
    strategy, replicas, time_limit_s
        As for `partitioner.planning.choose`.
    repeats : int
        How often every plan of a round runs.
    fresh : int
        New plans in a round.
    progress : callable
        Told what is done, and how much of it, from 0 to 1.

    Raises
    ------
    InputError
        If there are no rounds, repeats or new plans.
    InfeasibleError
        If no plan keeps the caps by the times as measured.
    """
    if min(rounds, repeats, fresh) < 1:
        raise InputError(
            f"refining takes at least one round, repeat and new plan; found {rounds} round(s), "
            f"{repeats} repeat(s), {fresh} new plan(s)"
        )
    contest = _Contest(problem, graph, machine, table, run, repeats)
    contest.take(choice.solution)
    known, now = problem, choice
    made: list[Round] = []
    stopped = "these are as many rounds as were asked for"
    for number in range(rounds):
        candidates = _candidates(known, now, strategy, replicas, time_limit_s)
        new = contest.new(candidates, fresh)
        if made and not new:
            stopped = f"no other plan is predicted within {_CLOSE:.0%} of the best"
            break
        entered = [contest.take(solution) for solution in new]
        made.append(contest.round(known, entered, partial(_say, progress, number, rounds)))
        known = corrected(problem, contest.observations())
        try:
            now = choose(known, strategy=strategy, replicas=replicas, time_limit_s=time_limit_s)
        except InfeasibleError as error:
            raise type(error)(f"with times as measured while refining: {error}") from error
        if contest.settled(now.solution):
            stopped = "the plan predicted best is the one measured best, within the spread"
            break
    return _result(contest, known, now, made, stopped)


class _Contest:
    """The plans that ran."""

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

    @property
    def first(self) -> _Tried:
        """The plan before refining."""
        return next(iter(self._tried.values()))

    def take(self, solution: Solution) -> _Tried:
        """Enter a plan."""
        return self._tried.setdefault(_key(solution), _Tried(len(self._tried), solution))

    def new(self, candidates: Sequence[Solution], count: int) -> list[Solution]:
        """Candidates that did not run, first those held up by a stage that held up no other.

        The best plans are often one plan with small changes away from its bottleneck, which
        predicts the same period for all: trying these would tell little.
        """
        untried = [each for each in candidates if _key(each) not in self._tried]
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
        trials = []
        for number, tried in entered.items():
            seen = [each[f"plan {number}"] for each in found]
            values = [self._value(each) for each in seen]
            ratios = [
                value / self._value(each[f"plan {first.number}"])
                for value, each in zip(values, found, strict=True)
            ]
            tried.seen += seen
            tried.ratios += ratios
            trials.append(
                Trial(
                    plan=number,
                    cut=_words(self.problem, tried.solution),
                    predicted_s=_rescored(known, tried.solution).evaluation.value(known.objective),
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
        return self.plan_of(known, Choice(_rescored(known, solution), 0.0, ()))

    def plan_of(self, known: Problem, choice: Choice) -> Plan:
        """A choice written down."""
        return make_plan(*self._parts, known, choice)

    def best(self, known: Problem) -> _Tried:
        """The plan that took the least time, of those that keep the caps; the first to start with.

        Raises
        ------
        InfeasibleError
            If none keeps them.
        """
        ran = [tried for tried in self._tried.values() if tried.ratios]
        if not ran:
            return self.first
        able = [t for t in ran if _rescored(known, t.solution).evaluation.feasible]
        if not able:
            raise InfeasibleError(
                f"none of the {len(ran)} plans that ran keeps the caps by the times as measured; "
                "allow more rounds, or raise a cap"
            )
        return min(able, key=lambda tried: tried.ratio)

    def settled(self, solution: Solution) -> bool:
        """Whether a plan has run and none was faster by more than the spread."""
        tried = self._tried.get(_key(solution))
        least = min(t.ratio for t in self._tried.values() if t.ratios)
        return tried is not None and tried.ratio <= least * (1 + tried.error)

    def observations(self) -> list[Observation]:
        """What all plans showed. The slower a plan, the less it counts.

        The problem has to be right where the best plans are, and how much stages disturb one
        another differs from plan to plan.
        """
        ran = [tried for tried in self._tried.values() if tried.ratios]
        least = min(tried.ratio for tried in ran)
        return [
            Observation(
                tried.solution,
                _medians([seen.run_s for seen in tried.seen]),
                _medians([seen.send_s for seen in tried.seen]),
                error=tried.error + (tried.ratio / least - 1.0),
            )
            for tried in ran
        ]

    def _value(self, seen: Seen) -> float:
        return seen.period_s if self.problem.objective.value == "period" else seen.latency_s


def _say(progress: Progress, number: int, rounds: int, what: str, part: float) -> None:
    progress(f"refining, round {number + 1} of {rounds}: {what}", (number + part) / rounds)


def _candidates(
    known: Problem, now: Choice, strategy: str, replicas: int, time_limit_s: float
) -> list[Solution]:
    """Plans of the strategy that are predicted close to the best, the best first, each once."""
    found = [now.solution, *(solution for _, solution in now.others)]
    # Others than these have no ranking: free assignments, and a second objective.
    if known.contiguous and known.second is None:
        wide = with_replicas(known, replicas)
        ranked = k_best(
            wide.problem, _RANKED, time_limit_s=time_limit_s, within=_CLOSE, replicated=wide
        )
        found += [wide.restore(solution) for solution in ranked]
    distinct = {_key(solution): solution for solution in reversed(found)}
    wanted = [s for s in distinct.values() if strategy in ("best", kind_of(s))]
    values = [solution.evaluation.value(known.objective) for solution in wanted]
    most = now.solution.evaluation.value(known.objective) * (1 + _CLOSE)
    order = sorted(range(len(wanted)), key=lambda each: (values[each], wanted[each].stage_of))
    return [wanted[each] for each in order if values[each] <= most]


def _result(
    contest: _Contest, known: Problem, now: Choice, made: Sequence[Round], stopped: str
) -> Refined:
    best = contest.best(known)
    first = contest.first
    others = now.others
    if best is not first:
        others = (*others, ("before refining", _rescored(known, first.solution)))
    solution = _rescored(known, best.solution)
    method = f"{solution.stats.method}, refined"
    solution = replace(solution, stats=replace(solution.stats, method=method))
    choice = Choice(solution, now.bound_s, others)
    problem, observations = contest.problem, contest.observations()
    refinement = Refinement(
        objective=problem.objective.value,
        rounds=tuple(made),
        repeats=contest.repeats,
        factors=tuple(
            OptionFactor(problem.option_names[f.option], f.run, f.send, f.workers)
            for f in factors(problem, observations)
        ),
        chosen=best.number,
        before=contest.plan(problem, best.solution),
        stopped=stopped,
    )
    return Refined(known, choice, contest.plan_of(known, choice), refinement)


def _rescored(problem: Problem, solution: Solution) -> Solution:
    evaluation = evaluate(problem, solution.stage_of, solution.placements)
    return replace(solution, evaluation=evaluation)


def _key(solution: Solution) -> _Key:
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


def _medians(runs: Sequence[Times]) -> Times:
    """Median over runs, for each stage, for each of its replicas."""
    return tuple(
        tuple(statistics.median(times) for times in zip(*stage, strict=True))
        for stage in zip(*runs, strict=True)
    )


def _spread(values: Sequence[float]) -> float:
    """Interquartile range over median."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float((high - low) / middle)
