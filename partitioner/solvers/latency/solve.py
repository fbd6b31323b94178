"""Least latency in the model 'atomic': labels over all downsets, or over good ones of many.

`run_latency` sets aside what needs no decision (`core`), bounds from behind
(`tails`) and searches from the front (`labels`) under a cut-off that is raised
step by step from the bound: most of the time the bound is near the truth and little is searched.
Problems in which transfers depend on both ends go to CP-SAT.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from partitioner.problem import Solution
from partitioner.solvers.bounds import lower_bound
from partitioner.solvers.dp.ideals import all_ideals, prefix_ideals
from partitioner.solvers.latency.core import Core, make_core
from partitioner.solvers.latency.labels import Search, search_labels
from partitioner.solvers.latency.lattice import Lattice
from partitioner.solvers.latency.rules import Rules, applies, make_rules
from partitioner.solvers.latency.tails import tails
from partitioner.solvers.limits import RELATIVE, Clock
from partitioner.solvers.pipeline import run_cpsat, run_pipeline
from partitioner.solvers.reduce import stages_of
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session

__all__ = ["run_latency"]

# Cut-offs tried, as shares above the bound, before whatever the best assignment leaves.
_RAISES = (1e-5, 1e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.2, 1.0)
_WIDTH, _WIDER, _FEW = 500, 8, 50
_QUICK_S, _LEAST_S, _QUICK_DOWNSETS = 2.0, 0.7, 700
# More downsets than that are searched only after the narrowest of them, in a share of the time.
_MANY, _NARROW, _NARROW_SHARE, _NARROW_ORDERS = 3000, 1000, 0.3, 4
# Loose ends of at most these shares of a stage's memory are set aside, the first time and again.
_LOOSE = (0.05, 0.0)
# Telling states of the resources apart is worth its time up to this many downsets and states.
_COUNTED = 30_000
# Bits of membership that downsets may take, and units up to which CP-SAT has a chance.
_MOST_BITS, _MOST_UNITS = 40_000_000, 40
# What adding up in another order can make of a bound.
_SAFE = 1.0 - 1e-11


def run_latency(session: Session) -> None:
    """Minimize latency, exactly where downsets are few, else by cuts along good orders."""
    problem, whole = session.problem, session.units
    if not applies(problem, whole):
        run_pipeline(session)
        return
    session.prove(lower_bound(problem, whole, ()))
    rules = make_rules(problem, whole)
    with session.interruptible():
        core = make_core(problem, whole, rules, _LOOSE[0])
        for candidate in _simple(session, rules):
            session.offer(candidate)
        # Whatever the time limit, something is looked for.
        least_s = _QUICK_S if session.best is None else _LEAST_S
        _quick(session, core, session.limits.seed, max(session.clock.left_s, least_s))
        for share in _LOOSE:
            if session.open:
                core = make_core(problem, whole, rules, share)
                if not _exact(session, core):
                    break
    if session.open and len(core.units) <= _MOST_UNITS:
        run_cpsat(session)
    seed = session.limits.seed
    with session.interruptible():
        while session.open:
            seed += 1
            _quick(session, core, seed, session.clock.left_s)


def _simple(session: Session, rules: Rules) -> Iterator[Solution | None]:
    """The hint; everything in one stage; every unit a stage where of these there is no end."""
    problem, units, hint = session.problem, session.units, session.limits.hint
    if hint is not None:
        yield scored(problem, hint.stage_of, hint.placements, "hint")
    for kind in rules.kinds:
        if not np.isfinite(kind.time_s).all():
            continue
        option = (kind.options[0],)
        yield scored(problem, (0,) * problem.n_ops, (option,), "single")
        if kind.single:
            scattered = stages_of(units, range(len(units)))
            yield scored(problem, scattered, (option,) * len(units), "scattered")


def _quick(session: Session, core: Core, seed: int, most_s: float) -> None:
    """Look among the downsets along a few orders, for so many seconds at most."""
    units = core.units
    most = max(50, min(_QUICK_DOWNSETS, _MOST_BITS // len(units)))
    masks = prefix_ideals(units, max(1, most // (len(units) + 1)), seed)
    step = max(1, len(masks) // (2 * most))
    some = sorted({*masks[::step], masks[-1]}, key=lambda mask: mask.bit_count())
    _close_in(session, core, some, Clock(min(_QUICK_S, most_s)), exact=False)


def _exact(session: Session, core: Core) -> bool:
    """Search all downsets; False when there are too many."""
    units = core.units
    most = min(session.limits.max_ideals, _MOST_BITS // len(units))
    masks = all_ideals(units, most)
    if masks is None:
        return False
    if len(masks) > _MANY:
        clock = Clock(_NARROW_SHARE * session.clock.left_s)
        _close_in(session, core, _narrow(session, core, masks), clock, exact=False)
    _close_in(session, core, masks, session.clock, exact=True)
    return True


def _narrow(session: Session, core: Core, masks: Sequence[int]) -> list[int]:
    """Downsets with the fewest tensors to hand over, and those along a few orders.

    Good accelerator stages begin and end where little has to be moved; the orders take the other
    units past one by one.
    """
    units = core.units
    wires = [
        (1 << f.producer if f.producer >= 0 else 0, sum(1 << r for r in f.readers))
        for f in units.flows
    ]
    wires = [(producer, readers) for producer, readers in wires if producer and readers]
    opened = [sum(1 for p, r in wires if mask & p and r & ~mask) for mask in masks]
    order = sorted(range(len(masks)), key=lambda i: opened[i])
    found = {masks[i] for i in order[:_NARROW] if opened[i] <= 1}
    found.update(prefix_ideals(units, _NARROW_ORDERS, session.limits.seed))
    return sorted(found, key=lambda mask: mask.bit_count())


def _close_in(
    session: Session, core: Core, masks: Sequence[int], clock: Clock, *, exact: bool
) -> None:
    """Search some downsets with rising cut-offs; what is found out counts as proof if `exact`."""
    rules = make_rules(session.problem, core.units)
    lattice = Lattice(core.units, rules, masks, _ceiling(session))
    counted = len(lattice) * rules.n_states <= _COUNTED
    tail = tails(lattice, clock, counted)
    if tail is None:
        return
    root = float(tail.joint_s[0, 0])
    if exact:
        _conclude(session, root, _ceiling(session))
    width = _WIDTH if exact else _FEW
    raises = [*_RAISES, math.inf]
    while raises and clock.left_s > 0 and not (exact and not session.open):
        ceiling = _ceiling(session)
        cutoff = min(math.nextafter(root * (1 + raises[0]), math.inf), ceiling)
        found = search_labels(lattice, tail, clock, cutoff, width)
        _offer(session, core, lattice, rules, found)
        if exact:
            _conclude(session, found.bound, ceiling)
        if found.complete:
            if found.stages or cutoff >= ceiling:
                return
            raises.pop(0)
        elif exact:
            width *= _WIDER
        else:
            raises.pop(0)


def _ceiling(session: Session) -> float:
    """Latency below which an assignment is worth finding."""
    cap = session.problem.latency_cap_s * (1 + RELATIVE)
    return min(cap, session.objective * (1 - RELATIVE / 2))


def _conclude(session: Session, bound: float, ceiling: float) -> None:
    """Take a bound on all assignments below the ceiling."""
    if bound < ceiling:
        session.prove(bound * _SAFE)
    elif session.best is None:
        session.prove_infeasible()
    else:
        session.prove(ceiling * _SAFE)


def _offer(session: Session, core: Core, lattice: Lattice, rules: Rules, found: Search) -> None:
    if found.stages is None:
        return
    stages = [0] * len(core.units)
    for stage, (before, after, _) in enumerate(found.stages):
        inside = lattice.masks[after] & ~lattice.masks[before]
        for unit in range(len(stages)):
            if inside >> unit & 1:
                stages[unit] = stage
    options = rules.options_of(session.problem, [kind for _, _, kind in found.stages])
    assignment = core.assignment(session.problem, session.units, stages, options)
    session.offer(scored(session.problem, *assignment, "labels"))
