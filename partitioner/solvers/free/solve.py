"""Free (non-contiguous) problems: quick starts, packing bounds, CP-SAT, in turn on one session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from partitioner.errors import InfeasibleError, NoneFoundError, ProblemError
from partitioner.problem import LatencyModel, Objective, Problem
from partitioner.solvers.bounds import load_prices, lower_bound
from partitioner.solvers.free.coarse import coarsened
from partitioner.solvers.free.cpsat import FreeRows, prove
from partitioner.solvers.free.model import FreeModel, free_model
from partitioner.solvers.free.packing import Packing
from partitioner.solvers.free.repartition import repartition
from partitioner.solvers.free.search import anneal, greedy
from partitioner.solvers.limits import RELATIVE, Clock
from partitioner.solvers.mincut import applies as cut_applies
from partitioner.solvers.pipeline import run_mincut, run_pipeline
from partitioner.solvers.reduce import reduce_ops
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session

__all__ = ["run_free", "run_free_cpsat", "run_rows"]

# Shares of the time limit.
_CONTIGUOUS, _WALK, _FIRST, _SURROGATE, _COLUMNS = 0.1, 0.06, 0.25, 0.22, 0.22
# Shares of what is left then, one after the other.
_AGAIN, _DIVIDE = 0.2, 0.15
# Share of the search in coarser problems; how dear a tensor is that is never cut in them, and how
# long a unit may get, as parts of the period.
_COARSE = 0.12
_DEAR, _GROWN = (0.15, 0.05), 0.4
_LIGHTER = 0.03
# Part of the gap that columns try to refute at once.
_PART = 0.1
# More hops are not looked at for packing than would take about the time that is left.
_HOPS_A_SECOND = 100_000
# A bound this near to the objective proves it; the programs' tolerances need what is left.
_NEAR = 0.98 * RELATIVE
_BITS, _MORE_BITS, _MOST_BITS = 30, 6, 42
_STEPS = 80_000
# Units that CP-SAT is as quick with as any search for a better start.
_FEW = 12
# Seconds a unit that the first walk takes at most, for CP-SAT needs no better start when small.
_WALK_UNIT_S = 0.02


def run_free(session: Session) -> None:
    """Solve a free problem as far as time allows.

    Raises
    ------
    ProblemError
        If the problem is contiguous.
    """
    if cut_applies(session.problem):
        run_mincut(session)
        if not session.open:
            return
    model = _modelled(session)
    if model is not None:
        with session.interruptible():
            _run(session, model)


def run_free_cpsat(session: Session) -> None:
    """Quick starts and CP-SAT alone.

    Raises
    ------
    ProblemError
        If the problem is contiguous.
    """
    model = _modelled(session)
    if model is not None:
        with session.interruptible():
            _bound(session)
            _start(session, model)
            _cpsat(session, model, session.clock.left_s)


def _modelled(session: Session) -> FreeModel | None:
    if session.problem.contiguous:
        raise ProblemError("this problem is contiguous; free methods would ignore its order")
    model = free_model(session.problem, session.units)
    if model.n_slots and all(model.slots_of):
        return model
    session.prove_infeasible()
    return None


def _run(session: Session, model: FreeModel) -> None:
    _bound(session)
    _start(session, model)
    limit, many = session.limits.time_limit_s, len(model.slots_of) > _FEW
    # From the contiguous optimum CP-SAT gets further than from what a walk has made of it.
    if session.open and many and session.best is not None:
        _cpsat(session, model, _FIRST * limit)
    if session.open and many:
        _walk(session, model)
        _coarse(session, _COARSE * limit)
    if session.open and (not many or session.best is None):
        _cpsat(session, model, _FIRST * limit)
    if session.open and session.problem.objective is Objective.PERIOD and session.best is not None:
        _pack(session, model)
    if session.open and session.best is not None:
        _improve(session, model)
    if session.open:
        _cpsat(session, model, session.clock.left_s)


def _bound(session: Session) -> None:
    """The bounds that hold whatever lies where."""
    problem = session.problem
    if problem.objective in (Objective.PERIOD, Objective.LATENCY):
        prices = load_prices(problem, session.units)
        session.prove(lower_bound(problem, session.units, prices))


def _start(session: Session, model: FreeModel) -> None:
    """The hint, each slot alone, units dealt out by size, the contiguous optimum."""
    problem, limits = session.problem, session.limits
    if limits.hint is not None:
        hint = limits.hint
        session.offer(scored(problem, hint.stage_of, hint.placements, "hint"))
    for slots in _quick(model):
        session.offer(scored(problem, *model.assignment(slots), "greedy"))
    if session.open and len(model.slots_of) > _FEW:
        _contiguous(session)


def _walk(session: Session, model: FreeModel) -> None:
    """A short walk from the best, or from each quick start until one has led somewhere."""
    problem, limits = session.problem, session.limits
    starts = list(_quick(model))
    if session.best is not None:
        known = model.slots((session.best.stage_of, session.best.placements))
        starts = starts if known is None else [known]
    time_s = min(_WALK * limits.time_limit_s, _WALK_UNIT_S * len(model.slots_of))
    for slots in starts:
        left_s = _part(session, time_s)
        for _, better in anneal(model, slots, limits.seed, left_s, _STEPS, session.bound):
            session.offer(scored(problem, *model.assignment(better), "annealing"))
        if session.best is not None:
            return


def _coarse(session: Session, time_s: float) -> None:
    """Search with the ends of dear tensors kept together, the dearest alone first."""
    problem, limits = session.problem, session.limits
    if problem.objective is not Objective.PERIOD or session.best is None:
        return
    each_s = time_s / len(_DEAR)
    sizes = {len(session.units)}
    for dear in _DEAR if session.open else ():
        smaller = coarsened(problem, session.units, session.objective, dear, _GROWN)
        units = reduce_ops(smaller)
        if len(units) in sizes:
            continue
        sizes.add(len(units))
        model = free_model(smaller, units)
        start = model.slots((session.best.stage_of, session.best.placements))
        if not all(model.slots_of) or start is None:
            continue
        left_s, walk_s = _part(session, each_s), _part(session, each_s / 2)
        for _, slots in anneal(model, start, limits.seed, walk_s, _STEPS, session.bound):
            session.offer(scored(problem, *model.assignment(slots), "coarse"))
        if session.open:
            # A bound of the coarser problem is none of this one.
            _cpsat(session, model, left_s(), bounds=False)


def _quick(model: FreeModel) -> Iterator[list[int]]:
    n = len(model.slots_of)
    for group in model.classes:
        if all(group[0] in slots for slots in model.slots_of):
            yield [group[0]] * n
    times = np.where(np.isfinite(model.units.time_s), model.units.time_s, 0.0).max(axis=1)
    by_size = greedy(model, np.argsort(-times, kind="stable").tolist())
    if by_size is not None:
        yield by_size


def _contiguous(session: Session) -> None:
    """Solve with an order of stages, which is often quick, for a start."""
    problem = session.problem
    ordered = replace(problem, contiguous=True, latency_model=LatencyModel.SERIAL, second=None)
    time_s = min(_CONTIGUOUS * session.limits.time_limit_s, session.clock.left_s)
    limits = replace(session.limits, time_limit_s=time_s, hint=None, progress=None)
    with suppress(InfeasibleError, NoneFoundError):
        inner = Session(ordered, limits, "contiguous")
        run_pipeline(inner)
        found = inner.result()
        session.offer(scored(problem, found.stage_of, found.placements, "contiguous"))


def _known(session: Session, model: FreeModel) -> list[int] | None:
    if session.best is None:
        return None
    return model.slots((session.best.stage_of, session.best.placements))


def _cpsat(session: Session, model: FreeModel, time_s: float, *, bounds: bool = True) -> None:
    """CP-SAT on the loads of a free problem."""
    ceiling = _ceiling(session.problem, model)
    run_rows(session, model, time_s, FreeRows, ceiling, bounds=bounds)


def run_rows(
    session: Session,
    model: FreeModel,
    time_s: float,
    rows_of: type[FreeRows],
    most: float,
    *,
    bounds: bool = True,
) -> None:
    """CP-SAT, anew with finer integers when a finished search leaves rounding open.

    Rounding of the objective, or of a limit that a solution breaks; with the finest integers,
    solutions refused are left out. `most` is an objective that every assignment meets that keeps
    the limits. Without `bounds`, for a model of another problem, once.
    """
    problem, limits = session.problem, session.limits
    left_s = _part(session, min(time_s, session.clock.left_s))
    refused: list[list[int]] = []
    without: list[list[int]] = []
    bits = _BITS

    def found(slots: list[int], bound: float) -> None:
        if bounds:
            session.prove(min(bound, session.objective) * (1 - 1e-9))
        candidate = scored(problem, *model.assignment(slots), "cpsat")
        if candidate is None:
            refused.append(slots)
        session.offer(candidate)

    while left_s() > 0:
        ceiling = session.objective if session.best is not None else most
        refused.clear()
        outcome = prove(
            model,
            ceiling=ceiling,
            floor=session.bound,
            start=_known(session, model),
            without=without,
            bits=bits,
            time_s=left_s(),
            limits=limits,
            found=found,
            rows_of=rows_of,
        )
        if not bounds:
            return
        if outcome.bound == float("inf"):
            if session.best is None:
                session.prove_infeasible()
            return
        session.prove(outcome.bound)
        if bits == _MOST_BITS:
            without += refused
        if not outcome.finished:
            return
        if not session.objective < ceiling / 2:
            # A much better incumbent alone makes the steps finer.
            if bits == _MOST_BITS and not refused:
                return
            bits = min(bits + _MORE_BITS, _MOST_BITS)


def _ceiling(problem: Problem, model: FreeModel) -> float:
    """An objective that every assignment meets that keeps the limits."""
    total = sum(max((a for t in terms for _, a in t), default=0.0) for terms in model.unit_terms)
    total += sum(a for terms in model.slot_terms for _, a in terms)
    ends = model.n_slots + 1
    for cost in (problem.send, problem.recv, problem.link):
        each = cost.base_s.max() + problem.amount * cost.per_unit_s.max()
        total += float(each.sum()) * ends
    total += float(problem.constant_bytes.sum() + problem.live_bytes.sum()) * ends
    total += problem.queue_slots * float(problem.tensor_bytes.sum()) * ends
    total = (total + problem.n_tensors * ends) * float(problem.replicas.max())
    return min([total, *(model.limit[load] for load in model.aim)])


def _pack(session: Session, model: FreeModel) -> None:
    """Raise the bound by packing: first by one set a class, then by columns where that is quick."""
    limit, clock = session.limits.time_limit_s, session.clock
    # What it takes to set up: hops between all slots, for each class of them.
    if len(model.classes) * len(model.edges) * model.n_slots > clock.left_s * _HOPS_A_SECOND:
        return
    packing = Packing(model, session.objective, _part(session, clock.left_s))
    prices = load_prices(session.problem, session.units)
    if not prices or session.objective <= 0:
        return
    work = max(prices, key=lambda price: price.bound_s).work
    before, easy = clock.left_s, session.bound
    bound, units = packing.surrogate(work, _SURROGATE * limit)
    session.prove(bound)
    quick = before - clock.left_s < _SURROGATE * limit / 2
    if not quick and units is not None and bound > (1 + _LIGHTER) * easy:
        # Less weight on the set that set the bound, such as an end of the graph with few
        # transfers, asks more of the others.
        bound, _ = packing.surrogate(work * (1 - _LIGHTER * units), _SURROGATE * limit)
        session.prove(bound)
    known = _known(session, model)
    if known is not None:
        packing.know(known)
    end = max(0.0, clock.left_s - _COLUMNS * limit)
    low, high = session.bound, session.objective * (1 - _NEAR)
    # Columns that are slow to price come to nothing in time.
    if not quick:
        return
    target = high
    while session.open and clock.left_s > end:
        refuted = packing.refutes(target, work, clock.left_s - end)
        if refuted:
            session.prove(target)
            low = target
        else:
            high = target
        target = low + _PART * (high - low)


def _improve(session: Session, model: FreeModel) -> None:
    """Walk, then divide the units of a few slots anew."""
    problem, limits, clock = session.problem, session.limits, session.clock
    start = _known(session, model)
    if start is None:
        return
    left_s = _part(session, _AGAIN * clock.left_s)
    for _, slots in anneal(model, start, limits.seed + 1, left_s, _STEPS, session.bound):
        session.offer(scored(problem, *model.assignment(slots), "improved"))
    start = _known(session, model) or start
    left_s = _part(session, _DIVIDE * clock.left_s)
    for _, slots in repartition(model, start, limits, left_s):
        session.offer(scored(problem, *model.assignment(slots), "improved"))


def _part(session: Session, time_s: float) -> Callable[[], float]:
    """Seconds left of so many from now, none once nothing is left to do."""
    clock = Clock(time_s)
    return lambda: clock.left_s if session.open else 0.0
