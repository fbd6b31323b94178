"""The limits of a problem, one kind a function: how to drop one, and how little would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from partitioner.evaluation import evaluate
from partitioner.problem import Objective, Problem, Solution
from partitioner.solvers.diagnosis.oracle import CAPPED, Oracle, latency_alone

__all__ = ["LIMITS", "Lift", "Limit"]

# Budgets are searched to this, relatively.
_FINE = 1e-7

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lift:
    """A change that makes room: what is needed and there, in words, and as a function."""

    limit: str
    demand: float
    capacity: float
    unit: str
    text: str
    apply: Callable[[Problem], Problem]


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a problem.

    Attributes
    ----------
    relax : callable
        A problem without it.
    least : callable
        The least lift with which the given problem is solvable, given an assignment that meets
        all of its limits but this.
    """

    relax: Callable[[Problem], Problem]
    least: Callable[[Problem, Solution, Oracle], Lift]


def _support(problem: Problem) -> Iterator[Limit]:
    """Ops that no option can run."""
    for op in np.flatnonzero(~np.isfinite(problem.time_s).any(axis=1)).tolist():
        yield _runnable(op)


def _runnable(op: int) -> Limit:
    def relax(p: Problem) -> Problem:
        times = p.time_s.copy()
        times[op] = 0.0
        return replace(p, time_s=times)

    def least(p: Problem, known: Solution, oracle: Oracle) -> Lift:
        text = "add a device that supports it, or replace the op"
        return Lift(f"op {p.op_names[op]!r}", 1, 0, "option that runs it", text, relax)

    return Limit(relax, least)


def _pins(problem: Problem) -> Iterator[Limit]:
    """Ops that may not run where they could."""
    pinned = np.flatnonzero((~problem.allowed & np.isfinite(problem.time_s)).any(axis=1)).tolist()

    def without(p: Problem, ops: Sequence[int]) -> Problem:
        allowed = p.allowed.copy()
        allowed[list(ops)] = True
        return replace(p, allowed=allowed)

    def words(p: Problem, ops: Sequence[int]) -> tuple[str, str, str]:
        names = _listed([p.op_names[op] for op in ops])
        unit = "op without a pin" if len(ops) == 1 else "ops without a pin"
        return f"pin of {names}", unit, f"drop the pin of {names}"

    if pinned:
        yield _dropped(pinned, without, words)


def _groups(problem: Problem) -> Iterator[Limit]:
    """Groups that must share a stage, or an option."""
    for field, limit, apart in (
        ("colocate", "colocation", "in different stages"),
        ("same_option", "one option", "on different options"),
    ):
        groups = [group for group in getattr(problem, field) if len(set(group)) > 1]
        if groups:
            yield _grouped(field, limit, apart, groups)


def _grouped(field: str, limit: str, apart: str, groups: Sequence[tuple[int, ...]]) -> Limit:
    def without(p: Problem, dropped: Sequence[tuple[int, ...]]) -> Problem:
        kept = tuple(group for group in getattr(p, field) if group not in dropped)
        changed: dict[str, Any] = {field: kept}
        return replace(p, **changed)

    def words(p: Problem, dropped: Sequence[tuple[int, ...]]) -> tuple[str, str, str]:
        names = " and ".join(f"({_listed([p.op_names[op] for op in g])})" for g in dropped)
        unit = "group apart" if len(dropped) == 1 else "groups apart"
        return f"{limit} of {names}", unit, f"let {names} be {apart}"

    return _dropped(groups, without, words)


def _dropped(
    items: Sequence[T],
    without: Callable[[Problem, Sequence[T]], Problem],
    words: Callable[[Problem, Sequence[T]], tuple[str, str, str]],
) -> Limit:
    """A limit of items that each hold or are dropped; `words`: limit, unit and lift for some."""

    def least(p: Problem, known: Solution, oracle: Oracle) -> Lift:
        some = _smallest(items, lambda each: oracle.feasible(without(p, each)) is not None)
        name, unit, text = words(p, some)
        return Lift(name, len(some), 0, unit, text, lambda q: without(q, some))

    return Limit(lambda p: without(p, items), least)


def _pools(problem: Problem) -> Iterator[Limit]:
    """Memory budgets, each by itself and all below a common one."""
    limited = np.flatnonzero(np.isfinite(problem.pool_bytes)).tolist()
    users = [np.flatnonzero(problem.pool_of == p).tolist() for p in range(len(problem.pool_bytes))]
    for pool in _unlike(problem, limited, problem.pool_bytes.tolist(), users.__getitem__):
        names = _listed([problem.option_names[o] for o in users[pool]])
        yield _budget(f"memory pool {pool} ({names})", "its budget", [pool])
    if len(limited) > 1:
        yield _budget("memory of every pool", "every smaller budget", limited)


def _budget(name: str, what: str, pools: Sequence[int]) -> Limit:
    def raised(p: Problem, least: float) -> Problem:
        budgets = p.pool_bytes.copy()
        budgets[list(pools)] = np.maximum(budgets[list(pools)], least)
        return replace(p, pool_bytes=budgets)

    def need(p: Problem, solution: Solution, most: float) -> float:
        """Budget that the assignment shows to be enough, at most the one that it was given."""
        demands = (float(solution.evaluation.pool_bytes[pool]) for pool in pools)
        over = (d for d, pool in zip(demands, pools, strict=True) if d > p.pool_bytes[pool])
        return min(most, max(over, default=0.0))

    def least(p: Problem, known: Solution, oracle: Oracle) -> Lift:
        have = float(p.pool_bytes[list(pools)].min())
        low, high = have, need(p, known, np.inf)
        just_below = True
        while high - low > _FINE * high:
            # Demands are sums of sizes: an assignment's own is often the least already, which
            # one question just below it settles, and else often well below what it was given.
            budget = high * (1 - _FINE) if just_below else (low + high) / 2
            just_below = not just_below
            found = oracle.feasible(raised(p, budget))
            if found is None:
                low = budget
            else:
                high = max(low, need(p, found, budget))
        return Lift(
            name,
            high,
            have,
            "bytes",
            f"raise {what} to {high:.12g}",
            lambda q: raised(q, high),
        )

    return Limit(lambda p: raised(p, np.inf), least)


def _resources(problem: Problem) -> Iterator[Limit]:
    """Cores and devices.

    With groups of `same_option` each option must host one stage, for which units are left as is.
    """
    if problem.same_option:
        return
    resources = range(len(problem.capacity))
    users = [np.flatnonzero(problem.uses[:, r]).tolist() for r in resources]
    for resource in _unlike(problem, resources, problem.capacity.tolist(), users.__getitem__):
        names = _listed([problem.option_names[o] for o in users[resource]])
        most = int(problem.uses[:, resource].max(initial=0)) * problem.n_ops
        if most > problem.capacity[resource]:
            yield _units(resource, f"resource {resource} (used by {names})", most)


def _units(resource: int, name: str, most: int) -> Limit:
    def raised(p: Problem, units: int) -> Problem:
        more = p.capacity.copy()
        more[resource] = max(units, int(more[resource]))
        return replace(p, capacity=more)

    return _whole(
        name, "units", "provide {} units of it", most, lambda p: int(p.capacity[resource]), raised
    )


def _stages(problem: Problem) -> Iterator[Limit]:
    """The largest number of stages."""
    if problem.max_stages < problem.n_ops:
        yield _whole(
            "max_stages",
            "stages",
            "allow {} stages",
            problem.n_ops,
            lambda p: p.max_stages,
            lambda p, stages: replace(p, max_stages=max(stages, p.max_stages)),
        )


def _whole(
    name: str,
    unit: str,
    text: str,
    most: int,
    have: Callable[[Problem], int],
    raised: Callable[[Problem, int], Problem],
) -> Limit:
    """A limit that is a whole number; `most` of it is as good as no limit."""

    def least(p: Problem, known: Solution, oracle: Oracle) -> Lift:
        low, high = have(p), most
        while high - low > 1:
            middle = (low + high) // 2
            found = oracle.feasible(raised(p, middle))
            low, high = (middle, high) if found is None else (low, middle)
        return Lift(name, high, have(p), unit, text.format(high), lambda q: raised(q, high))

    return Limit(lambda p: raised(p, most), least)


def _caps(problem: Problem) -> Iterator[Limit]:
    """Limits on period and latency."""
    for name, objective in CAPPED.items():
        # Groups of `same_option` and the latency model `list` are solved for latency only.
        known = objective is Objective.LATENCY or not latency_alone(problem)
        if known and np.isfinite(getattr(problem, name)):
            yield _cap(name, objective)


def _cap(field: str, objective: Objective) -> Limit:
    def raised(p: Problem, cap: float) -> Problem:
        changed: dict[str, Any] = {field: max(cap, getattr(p, field))}
        return replace(p, **changed)

    def least(p: Problem, known: Solution, oracle: Oracle) -> Lift:
        have = float(getattr(p, field))
        free = raised(p, np.inf)
        best = oracle.best(free, objective) or known
        value = evaluate(free, best.stage_of, best.placements).value(objective)
        return Lift(
            f"the cap on the {objective.value}",
            value,
            have,
            "s",
            f"raise it to {value:.12g} s",
            lambda q: raised(q, value),
        )

    return Limit(lambda p: raised(p, np.inf), least)


LIMITS: tuple[Callable[[Problem], Iterator[Limit]], ...] = (
    _support,
    _pins,
    _groups,
    _pools,
    _resources,
    _stages,
    _caps,
)
"""Kinds of limits, in the order in which they are looked at."""


def _smallest(items: Sequence[T], enough: Callable[[Sequence[T]], bool]) -> list[T]:
    """A subset of `items` that is enough while none of its members can be left out."""
    kept = list(items)
    size = max(1, len(kept) // 2)
    while True:
        # Whole runs are tried first, so that a few among many cost few questions.
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if len(rest) < len(kept) and enough(rest):
                kept = rest
                break
        else:
            if size == 1:
                return kept
            size = max(1, size // 2)


def _unlike(
    problem: Problem,
    members: Sequence[int],
    amounts: Sequence[float],
    users: Callable[[int], Sequence[int]],
) -> Iterator[int]:
    """One of each kind of pools or resources whose amounts and users are equal."""
    runs = problem.runs()
    seen = set()
    for member in members:
        options = users(member)
        columns = sorted(
            (runs[:, o].tobytes(), problem.time_s[:, o].tobytes(), int(problem.uses[o].sum()))
            for o in options
        )
        kind = (amounts[member], tuple(columns))
        if options and kind not in seen:
            seen.add(kind)
            yield member


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
