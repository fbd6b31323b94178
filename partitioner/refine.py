"""From the plan predicted best to the plan measured best: run, correct the times, solve again.

Each round runs the plans that are predicted best and were not run yet, in turn with the first plan
and the best so far; the first round also the simple alternatives that are predicted close. What
their stages took while the others were busy goes into the problem (`partitioner.correction`), which
is solved again. The plan that took the least time is kept (`partitioner.contest`); measure it again
before quoting it, for the least of several noisy figures is a little too good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from partitioner.contest import Contest, plan_key, rescored
from partitioner.correction import corrected, factors
from partitioner.errors import InfeasibleError, InputError
from partitioner.graph import OpGraph
from partitioner.machine import Machine
from partitioner.plan import MOST_REPLICAS, Plan
from partitioner.planning import Choice, choose, kind_of
from partitioner.problem import Problem, Solution
from partitioner.profiling.table import ProfileTable
from partitioner.report.refinement import OptionFactor, Refinement, Round
from partitioner.solvers.kbest.kbest import k_best
from partitioner.solvers.replicate import with_replicas
from partitioner.trials import Runner

__all__ = ["Refined", "refine"]

# Plans predicted worse than the best by more than this are not worth a trial.
_CLOSE = 0.25
# How many plans are ranked, of which those that differ where it matters are tried.
_RANKED = 24
# Simple alternatives that run in the first round besides the new plans.
_MOST_SIMPLE = 3

Progress = Callable[[str, float], None]


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
        New plans in a round. In the first, simple alternatives come on top.
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
    contest = Contest(problem, graph, machine, table, run, repeats)
    contest.take(choice.solution)
    known, now = problem, choice
    made: list[Round] = []
    stopped = "these are as many rounds as were asked for"
    for number in range(rounds):
        candidates = _candidates(known, now, strategy, replicas, time_limit_s)
        new = contest.new(candidates, fresh)
        if not made:
            new += _simple(candidates, choice, new)
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
        # Unequal replicas of the whole model may fit where none of these does.
        with suppress(InfeasibleError):
            ranked = k_best(
                wide.problem, _RANKED, time_limit_s=time_limit_s, within=_CLOSE, replicated=wide
            )
            found += [wide.restore(solution) for solution in ranked]
    distinct = {plan_key(solution): solution for solution in reversed(found)}
    wanted = [s for s in distinct.values() if strategy in ("best", kind_of(s))]
    values = [solution.evaluation.value(known.objective) for solution in wanted]
    most = now.solution.evaluation.value(known.objective) * (1 + _CLOSE)
    order = sorted(range(len(wanted)), key=lambda each: (values[each], wanted[each].stage_of))
    return [wanted[each] for each in order if values[each] <= most]


def _simple(
    candidates: Sequence[Solution], choice: Choice, without: Sequence[Solution]
) -> list[Solution]:
    """The best simple alternatives among the candidates: what the plan must not be slower than."""
    left = {plan_key(solution) for _, solution in choice.others}
    left -= {plan_key(solution) for solution in (choice.solution, *without)}
    return [solution for solution in candidates if plan_key(solution) in left][:_MOST_SIMPLE]


def _result(
    contest: Contest, known: Problem, now: Choice, made: Sequence[Round], stopped: str
) -> Refined:
    best = contest.kept(known)
    first = contest.first
    others = now.others
    if best is not first:
        others = (*others, ("before refining", rescored(known, first.solution)))
    solution = rescored(known, best.solution)
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
