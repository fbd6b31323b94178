"""Replicas of a stage as further options, so that every solver chooses among them.

A stage that several equal devices run in turn is a stage on one option that stands for all of
them (`Problem.replicas`). `with_replicas` adds such options and takes solutions back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partitioner.errors import ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import Floats, Ints, Problem, Solution, TransferCost
from partitioner.solvers.reduce import Symmetry, symmetry

__all__ = ["Replicated", "with_replicas", "with_twins"]


@dataclass(frozen=True, slots=True)
class Replicated:
    """A problem with options of replicas, and what they stand for.

    Attributes
    ----------
    problem : Problem
        The original's options first, then those of two and more replicas.
    original : Problem
        What it was made from.
    members : tuple of tuple of int
        For each option the original's options that serve items in turn.
    """

    problem: Problem
    original: Problem
    members: tuple[tuple[int, ...], ...]

    def restore(self, solution: Solution) -> Solution:
        """The same assignment to options of the original, scored there.

        The figures are equal: an option of replicas is priced as its members would be.
        """
        placements = tuple(
            tuple(member for option in options for member in self.members[option])
            for options in solution.placements
        )
        evaluation = evaluate(self.original, solution.stage_of, placements)
        return replace(solution, placements=placements, evaluation=evaluation)


def with_replicas(problem: Problem, most: int) -> Replicated:
    """Add options of 2 to `most` equal replicas where the resources allow them.

    Replicas of an option are that option several times (cores of one cluster), or neighbours in a
    class of exchangeable options (equal devices): any grouping of a class is neighbours up to
    renaming, so that nothing is lost. Neighbours on links that are a resource of their own are
    left out, for their traffic would spread over several links.

    Raises
    ------
    ProblemError
        If `most` is below 1, or the problem has options of replicas already.
    """
    if most < 1:
        raise ProblemError(f"replicas are at most {most}; 1 or more is needed")
    if (problem.replicas > 1).any():
        raise ProblemError("the problem has options of replicas already; add them once")
    classes = symmetry(problem)
    members: list[tuple[int, ...]] = [(option,) for option in range(problem.n_options)]
    for count in range(2, most + 1):
        members += _groups(problem, classes, count)
    return _replicated(problem, members)


def with_twins(problem: Problem, options: Sequence[int]) -> Replicated:
    """Add, behind all others, a second option for each of some, that stands for the same one."""
    return _replicated(problem, [(each,) for each in (*range(problem.n_options), *options)])


def _replicated(problem: Problem, members: Sequence[tuple[int, ...]]) -> Replicated:
    pool_of, pool_bytes = _pools(problem, members)
    first = [group[0] for group in members]
    counts = [len(group) for group in members]
    return Replicated(
        replace(
            problem,
            option_names=tuple(_name(problem, group) for group in members),
            time_s=problem.time_s[:, first],
            allowed=problem.allowed[:, first],
            host_s=problem.host_s[first],
            uses=np.array([problem.uses[list(group)].sum(axis=0) for group in members]),
            pool_of=pool_of,
            pool_bytes=pool_bytes,
            send=_averaged(problem.send, members, problem.n_options),
            recv=_averaged(problem.recv, members, problem.n_options),
            link=_averaged(problem.link, members, problem.n_options),
            bus_of=_buses(problem, first),
            replicas=problem.replicas[first] * counts,
            host_core=problem.host_core[first],
        ),
        problem,
        tuple(members),
    )


def _groups(problem: Problem, classes: Symmetry, count: int) -> Iterator[tuple[int, ...]]:
    linked = bool(problem.link.base_s.any() or problem.link.per_unit_s.any())
    for group in classes.classes:
        # An option that occupies nothing is there without end; replicas of it would be too.
        if not problem.uses[group[0]].any():
            continue
        for option in group:
            if (count * problem.uses[option] <= problem.capacity).all():
                yield (option,) * count
        for start in range(len(group) - count + 1):
            chosen = group[start : start + count]
            fits = (problem.uses[list(chosen)].sum(axis=0) <= problem.capacity).all()
            if fits and not linked and _one_pool_or_private(problem, chosen):
                yield chosen


def _one_pool_or_private(problem: Problem, chosen: Sequence[int]) -> bool:
    """Whether the replicas' memory can be counted by one budget."""
    pools = {int(problem.pool_of[option]) for option in chosen}
    if len(pools) == 1:
        return True
    drawing = [o for o in range(problem.n_options) if problem.pool_of[o] in pools]
    return len(pools) == len(chosen) and not any(
        (problem.uses[a] + problem.uses[b] <= problem.capacity).all()
        for a in chosen
        for b in drawing
        if a == b or b not in chosen
    )


def _pools(problem: Problem, members: Sequence[tuple[int, ...]]) -> tuple[Ints, Floats]:
    """Pool of each option; replicas with a pool each share a new one that adds theirs up."""
    pool_of: list[int] = []
    sizes: list[float] = problem.pool_bytes.tolist()
    for group in members:
        pools = sorted({int(problem.pool_of[option]) for option in group})
        pool_of.append(pools[0] if len(pools) == 1 else len(sizes))
        if len(pools) > 1:
            sizes.append(float(problem.pool_bytes[pools].sum()))
    return np.array(pool_of, dtype=np.int64), np.array(sizes)


def _averaged(cost: TransferCost, members: Sequence[tuple[int, ...]], caller: int) -> TransferCost:
    """Each replica exchanges with every replica of the other end in turn."""
    ends = [*members, (caller,)]
    part = np.zeros((len(ends), caller + 1))
    for row, group in enumerate(ends):
        for member in group:
            part[row, member] += 1.0 / len(group)
    return TransferCost(part @ cost.base_s @ part.T, part @ cost.per_unit_s @ part.T)


def _buses(problem: Problem, first: Sequence[int]) -> Ints:
    """Options that stand for the same device share its links."""
    bus_of = problem.bus_of.copy()
    own = bus_of < 0
    bus_of[own] = np.arange(own.sum()) + bus_of.max(initial=-1) + 1
    ends = [*first, problem.n_options]
    return np.asarray(bus_of[np.ix_(ends, ends)])


def _name(problem: Problem, group: Sequence[int]) -> str:
    names = [problem.option_names[option] for option in group]
    if len(set(names)) == 1:
        return names[0] if len(names) == 1 else f"{names[0]} x {len(names)} replicas"
    return " + ".join(names)
