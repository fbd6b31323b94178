"""Proven lower bounds on the objective, cheap enough to take before any search.

Each is a relaxation: the largest op, the load spread ideally over what the resources allow, the
critical path, and what the caller must spend on inputs and outputs. Linear programming only finds
good multipliers for the load bound; the bound itself is recomputed from them and holds for any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from partitioner.problem import Floats, Ints, LatencyModel, Objective, Problem
from partitioner.solvers.reduce import Units, beside, most_stages

__all__ = [
    "Prices",
    "caller_bound",
    "hangs_on_both_ends",
    "load_prices",
    "lower_bound",
    "repriced",
    "transfer_bounds",
]

# Sums of floats taken in another order than `evaluation` takes them differ by less than this.
_SLACK = 1.0 - 1e-12
# Op times that the relaxation holds; linear programming takes about a second for them.
_LARGEST = 60_000


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Multipliers of resources and stage slots for the load bound.

    With `resource` >= 0 and `slot` >= 0, a stage on option d with period T does at most
    ``T * (uses[d] @ resource + slot)`` of priced work, where an op's priced work is its cheapest
    ``time_s[op, d] / replicas[d] * (uses[d] @ resource + slot)``.

    Attributes
    ----------
    resource : array, shape (n_resources,)
        Price of one unit of each resource.
    slot : float
        Price of one stage.
    work : array, shape (n_units,)
        Priced work of each unit.
    total : float
        Price of all there is.
    """

    resource: Floats
    slot: float
    work: Floats
    total: float

    @property
    def bound_s(self) -> float:
        """Lower bound on the period, seconds."""
        return float(self.work.sum()) / self.total * _SLACK if self.total > 0 else 0.0

    def rates(self, problem: Problem) -> Floats:
        """Priced work that a second on each option is for one item, shape (n_options,)."""
        return np.asarray((problem.uses @ self.resource + self.slot) / problem.replicas)


def lower_bound(problem: Problem, units: Units, prices: tuple[Prices, ...]) -> float:
    """Best of the cheap bounds on the period or the latency, seconds; 0 for other objectives."""
    if problem.objective not in (Objective.PERIOD, Objective.LATENCY):
        return 0.0
    shortest = units.time_s.min(axis=1)
    host = float(problem.host_s.min())
    caller = caller_bound(problem, units)
    if problem.objective is Objective.PERIOD:
        alone = float(((units.time_s + problem.host_s) / problem.replicas).min(axis=1).max())
        loads = [price.bound_s for price in prices]
        return max(alone * _SLACK, caller * _SLACK, *loads)
    if problem.latency_model is LatencyModel.SERIAL or not problem.contiguous:
        return (float(shortest.sum()) + host) * _SLACK
    finish = np.zeros(len(units))
    for unit, before in enumerate(units.before):
        finish[unit] = shortest[unit] + max((finish[b] for b in before), default=0.0)
    return (float(finish.max()) + host) * _SLACK


def caller_bound(problem: Problem, units: Units) -> float:
    """Least time that the caller itself spends on one item, seconds."""
    caller, send, recv = problem.n_options, problem.send, problem.recv
    seconds = 0.0
    for flow in units.flows:
        amount = float(problem.amount[flow.tensor])
        if flow.producer < 0:
            runs = units.runs[list(flow.readers)].any(axis=0)
            cost = send.base_s[caller, :-1] + amount * send.per_unit_s[caller, :-1]
            seconds += float(cost[runs].min()) if runs.any() else 0.0
        elif flow.to_caller:
            runs = units.runs[flow.producer]
            cost = recv.base_s[:-1, caller] + amount * recv.per_unit_s[:-1, caller]
            seconds += float(cost[runs].min()) if runs.any() else 0.0
    return seconds


def load_prices(problem: Problem, units: Units) -> tuple[Prices, ...]:
    """Multipliers for the load bound: one price a stage, and those of the fractional relaxation.

    The relaxation spreads each op over the options in any fractions, options over the resources in
    any fractions, and minimizes the period. Of a large problem it sees the heaviest units and a
    seeded sample of the rest: multipliers from there serve all units.
    """
    slots = most_stages(problem)
    found = [_priced(problem, units, np.zeros(len(problem.capacity)), 1.0, slots)]
    duals = _duals(problem, units, slots)
    if duals is not None:
        found.append(_priced(problem, units, *duals, slots))
    return tuple(prices for prices in found if prices.total > 0)


def repriced(problem: Problem, units: Units, known: tuple[Prices, ...]) -> tuple[Prices, ...]:
    """The work that known multipliers price under other costs: a bound holds for any of them."""
    slots = most_stages(problem)
    found = (_priced(problem, units, price.resource, price.slot, slots) for price in known)
    return tuple(prices for prices in found if prices.total > 0)


def transfer_bounds(problem: Problem, option: int, amount: Floats) -> tuple[Floats, Floats, Floats]:
    """Least cost of tensors between a stage on `option` and any stage beside it.

    Parameters
    ----------
    option : int
        The option charged.
    amount : array, shape (k,)
        Units of each tensor.

    Returns
    -------
    send_s, recv_s, link_s : array, shape (k,)
        Sent from the option, received by it, on the way to it; 0 where none can stand beside it.
    """
    others = np.flatnonzero(np.all(problem.uses + problem.uses[option] <= problem.capacity, axis=1))
    if not len(others):
        return np.zeros(len(amount)), np.zeros(len(amount)), np.zeros(len(amount))

    def least(base_s: Floats, per_unit_s: Floats) -> Floats:
        return np.asarray((base_s[:, None] + np.outer(per_unit_s, amount)).min(axis=0))

    send, recv, link = problem.send, problem.recv, problem.link
    return (
        least(send.base_s[option, others], send.per_unit_s[option, others]),
        least(recv.base_s[others, option], recv.per_unit_s[others, option]),
        least(link.base_s[others, option], link.per_unit_s[others, option]),
    )


def hangs_on_both_ends(problem: Problem) -> bool:
    """Whether what a transfer between stages costs hangs on both their options."""
    fits = beside(problem)
    for cost, axis in ((problem.send, 1), (problem.recv, 0)):
        for part in (cost.base_s[:-1, :-1], cost.per_unit_s[:-1, :-1]):
            most = np.where(fits, part, 0.0).max(axis=axis)
            least = np.where(fits, part, np.inf).min(axis=axis)
            if (most > least).any():
                return True
    link = problem.link
    return bool(link.base_s[:-1, :-1].any() or link.per_unit_s[:-1, :-1].any())


def _priced(problem: Problem, units: Units, resource: Floats, slot: float, slots: int) -> Prices:
    rate = (problem.uses @ resource + slot) / problem.replicas
    # A unit that cannot run somewhere takes inf there, whatever the price.
    with np.errstate(invalid="ignore"):
        cost = units.time_s * rate
    cost[np.isnan(cost)] = np.inf
    work = cost.min(axis=1)
    return Prices(resource, slot, work, float(problem.capacity @ resource + slot * slots))


def _sample(units: Units) -> tuple[Ints, Floats]:
    """Units for the relaxation, and how many each stands for."""
    n, m = units.time_s.shape
    size = max(1, _LARGEST // m)
    everything = np.arange(n)
    if n <= size:
        return everything, np.ones(n)
    heaviest = np.argsort(-units.time_s.min(axis=1), kind="stable")
    top, rest = heaviest[: size // 4], heaviest[size // 4 :]
    drawn = np.random.default_rng(0).choice(rest, size - len(top), replace=False)
    many = len(rest) / len(drawn)
    return np.concatenate([top, drawn]), np.repeat([1.0, many], [len(top), len(drawn)])


def _duals(problem: Problem, units: Units, slots: int) -> tuple[Floats, float] | None:
    """Prices from the relaxation's dual, None when it has no use (nothing scarce, no solution)."""
    chosen, many = _sample(units)
    times = units.time_s[chosen] * many[:, None]
    n, m = times.shape
    scale = float(times.min(axis=1).max(initial=0.0))
    if not np.isfinite(scale) or scale <= 0:
        return None
    # Options far too slow for an op to matter would only spoil the numbers.
    ratio = times / scale / problem.replicas
    unit, option = np.nonzero(np.isfinite(ratio) & (times / scale <= 1e6))
    k = len(unit)
    columns = np.arange(k)
    n_resources = len(problem.capacity)
    assign = coo_matrix((np.ones(k), (unit, columns)), shape=(n, k + m + 1)).tocsr()
    # Rows: work of each option <= its share Z; resources; slots. Columns: fractions, Z, T.
    rows = [option, np.arange(m)]
    cols = [columns, k + np.arange(m)]
    data = [ratio[unit, option], -np.ones(m)]
    used_option, used_resource = np.nonzero(problem.uses)
    rows += [m + used_resource, m + np.arange(n_resources)]
    cols += [k + used_option, np.full(n_resources, k + m)]
    data += [
        problem.uses[used_option, used_resource].astype(float),
        -problem.capacity.astype(float),
    ]
    rows += [np.full(m, m + n_resources), np.array([m + n_resources])]
    cols += [k + np.arange(m), np.array([k + m])]
    data += [np.ones(m), np.array([-float(slots)])]
    limits = coo_matrix(
        (np.concatenate(data), (np.concatenate(rows), np.concatenate(cols))),
        shape=(m + n_resources + 1, k + m + 1),
    ).tocsr()
    cost = np.zeros(k + m + 1)
    cost[-1] = 1.0
    result: object = linprog(
        cost, A_ub=limits, b_ub=np.zeros(m + n_resources + 1), A_eq=assign, b_eq=np.ones(n)
    )
    if getattr(result, "status", 1) != 0:
        return None
    marginals = np.maximum(0.0, -np.asarray(result.ineqlin.marginals))  # type: ignore[attr-defined]  # scipy's result is untyped
    return marginals[m : m + n_resources], float(marginals[m + n_resources])
