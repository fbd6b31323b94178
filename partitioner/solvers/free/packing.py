"""Lower bounds on the period of free assignments: slots as sets of units that must cover all.

A period T asks for as many sets as there are slots, each with a load of at most T, its forced
transfers counted, that hold every unit once. Two relaxations of that:

- *surrogate*: one set for each class of slots, used by all slots of the class, must hold the work
  of all units by weight; one integer program gives the least T.
- *columns*: sets may be used in fractions. Column generation finds weights for which no such
  cover exists; that refutes T. Sources: Gilmore and Gomory, "A linear programming approach to
  the cutting-stock problem" (Operations Research 1961); for steadying the weights Wentges,
  "Weighted Dantzig-Wolfe decomposition" (ITOR 1997).

Weights y refute T when ``sum(y) > sum over classes of count * max(y(S): load(S) <= T)``, whatever
way they were found. The maxima are integer programs, of which only the proven bounds are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import block_diag, coo_matrix, csr_matrix, hstack

from partitioner.problem import Floats
from partitioner.solvers.free.model import Edge, FreeModel
from partitioner.solvers.quiet import quiet

__all__ = ["Packing"]

# The period in the units of the programs, far above HiGHS's absolute tolerances.
_SCALE = 100.0
# Relative excess that makes a refutation, above what HiGHS's tolerances can blur.
_MARGIN = 1e-5
# Weight of the best weights so far against the newest ones.
_STEADY = 0.5
_GAP = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class _Class:
    """The sets that a slot of a class can hold.

    Attributes
    ----------
    count : int
        Slots of the class.
    rows : sparse array
        Rows that must be at most 0: an edge is cut when its ends are apart.
    load : array, shape (n_units + n_edge_variables,)
        Period of a slot by units and cut edges.
    fixed : float
        Period that a used slot has in any case.
    memory : array of the same shape
    memory_limit : float
        Bytes and their limit; inf for none.
    upper : array of the same shape
        0 where a unit cannot be in the slot.
    """

    count: int
    rows: Any
    load: Floats
    fixed: float
    memory: Floats
    memory_limit: float
    upper: Floats

    def period(self, units: Floats) -> float:
        """Load of a set of units, shape (n_units,), 0 or 1 each; exact where HiGHS is not."""
        n = len(units)
        ends = coo_matrix(self.rows)
        apart = np.asarray(self.rows[:, :n] @ units).reshape(-1)
        cut = np.zeros(len(self.load))
        variables = ends.col >= n
        np.maximum.at(cut, ends.col[variables], apart[ends.row[variables]])
        return self.fixed + float(self.load[:n] @ units) + float(self.load[n:] @ cut[n:])


class Packing:
    """Bounds of one problem, period objective.

    Parameters
    ----------
    model : FreeModel
        Slots, loads and terms.
    period_s : float
        Objective of a known assignment; only sets the programs' scale.
    left_s : callable
        Seconds left.
    """

    def __init__(self, model: FreeModel, period_s: float, left_s: Callable[[], float]) -> None:
        self._unit = period_s / _SCALE
        self._left_s = left_s
        self._n = len(model.slots_of)
        self._groups = model.classes
        self._classes = [_class(model, group, self._unit) for group in model.classes]
        self._columns: list[tuple[int, Floats, float]] = []

    def know(self, slot_of: Sequence[int]) -> None:
        """Take the sets of a known assignment as columns."""
        slots = np.asarray(slot_of)
        for number, (each, group) in enumerate(zip(self._classes, self._groups, strict=True)):
            for slot in group:
                units = (slots == slot).astype(float)
                self._columns.append((number, units, each.period(units)))

    def surrogate(self, work: Floats, time_s: float) -> tuple[float, Floats | None]:
        """Least period at which one set a class, used by all its slots, holds the whole work.

        Parameters
        ----------
        work : array, shape (n_units,)
            Weight of each unit.
        time_s : float
            Seconds to spend.

        Returns
        -------
        float
            Proven lower bound of the period, seconds; 0 when there was no time for any.
        array or None, shape (n_units,)
            1 for units in the set of the first class: with less weight there, the next bound may
            be higher.
        """
        total = float(work.sum())
        if total <= 0:
            return 0.0, None
        y = work * (_SCALE / total)
        n, sizes = self._n, [len(each.load) for each in self._classes]
        columns = sum(sizes)
        loads = block_diag([each.load[None, :] for each in self._classes])
        memory = block_diag([each.memory[None, :] for each in self._classes])
        cover = np.concatenate(
            [
                np.pad(y * each.count, (0, size - n))
                for each, size in zip(self._classes, sizes, strict=True)
            ]
        )
        edges = block_diag([each.rows for each in self._classes])
        blank = csr_matrix((edges.shape[0], 1))
        minus = csr_matrix(-np.ones((len(sizes), 1)))
        limits = [
            LinearConstraint(hstack([edges, blank]).tocsr(), -np.inf, 0.0),
            LinearConstraint(hstack([loads, minus]).tocsr(), -np.inf, 0.0),
            LinearConstraint(np.append(cover, 0.0)[None, :], y.sum() * (1 - 1e-9), np.inf),
            LinearConstraint(
                hstack([memory, csr_matrix((len(sizes), 1))]).tocsr(),
                -np.inf,
                np.array([each.memory_limit for each in self._classes]),
            ),
        ]
        integral = np.zeros(columns + 1)
        for start in np.cumsum([0, *sizes[:-1]]):
            integral[start : start + n] = 1
        upper = np.append(np.concatenate([each.upper for each in self._classes]), np.inf)
        with quiet:
            result: Any = milp(
                np.append(np.zeros(columns), 1.0),
                constraints=limits,
                integrality=integral,
                bounds=Bounds(0.0, upper),
                options={"time_limit": max(0.1, min(time_s, self._left_s())), "mip_rel_gap": 1e-6},
            )
        bound = getattr(result, "mip_dual_bound", None)
        if bound is None or not np.isfinite(bound):
            return 0.0, None
        chosen = None if result.x is None else np.asarray(result.x)[:n].round()
        return max(0.0, float(bound)) * (1 - _MARGIN) * self._unit, chosen

    def refutes(self, period_s: float, start: Floats, time_s: float) -> bool | None:
        """Whether no fractional cover has a period of at most `period_s`.

        Parameters
        ----------
        start : array, shape (n_units,)
            First weights.
        time_s : float
            Seconds to spend.

        Returns
        -------
        bool or None
            True: proven that no assignment has that period. False: a fractional one has. None:
            out of time.
        """
        limit = period_s / self._unit
        end = self._left_s() - time_s
        size = np.maximum(start, start.sum() * 1e-3 / self._n)
        size = size / max(size.sum(), 1e-300) * _SCALE
        center = y = start / max(float(start.sum()), 1e-300) * _SCALE
        highest = -np.inf
        while self._left_s() > max(end, 0.0):
            gain = float(y.sum())
            for number, each in enumerate(self._classes):
                most, chosen = self._price(each, y, limit, max(0.1, self._left_s() - end))
                gain -= each.count * most
                if chosen is not None:
                    self._columns.append((number, chosen, each.period(chosen)))
            if gain > _MARGIN * float(np.abs(y).sum()):
                return True
            if gain > highest:
                highest, center = gain, y
            found = self._weights(limit, size)
            if found is None:
                return False
            y = _STEADY * center + (1 - _STEADY) * found
        return None

    def _price(
        self, each: _Class, y: Floats, limit: float, time_s: float
    ) -> tuple[float, Floats | None]:
        """Bound on the weight of a set with a load within the limit, and a set."""
        n, room = self._n, limit - each.fixed
        if room < 0:
            return 0.0, None
        cost = np.zeros(len(each.load))
        cost[:n] = -y
        integral = np.zeros(len(cost))
        integral[:n] = 1
        with quiet:
            result: Any = milp(
                cost,
                constraints=[
                    LinearConstraint(each.rows, -np.inf, 0.0),
                    LinearConstraint(
                        np.array([each.load, each.memory]), -np.inf, [room, each.memory_limit]
                    ),
                ],
                integrality=integral,
                bounds=Bounds(0.0, each.upper),
                options={"time_limit": time_s, "mip_rel_gap": _GAP},
            )
        most = float(np.maximum(y, 0.0).sum())
        bound = getattr(result, "mip_dual_bound", None)
        if bound is not None and np.isfinite(bound):
            most = min(most, max(0.0, -float(bound)))
        return most, None if result.x is None else np.asarray(result.x)[:n].round()

    def _weights(self, limit: float, size: Floats) -> Floats | None:
        """Weights that the known sets leave; None when these sets cover all units."""
        known = [(c, units) for c, units, load in self._columns if load <= limit * (1 + 1e-9)]
        n, m = self._n, len(known)
        cover = csr_matrix(np.array([units for _, units in known]).reshape(m, n).T)
        identity = coo_matrix((np.ones(n), (np.arange(n), np.arange(n))), shape=(n, n))
        classes = np.array([c for c, _ in known])
        counts = coo_matrix(
            (np.ones(m), (classes, np.arange(m))), shape=(len(self._classes), m + 2 * n)
        )
        result: Any = linprog(
            np.concatenate([np.zeros(m), size, size]),
            A_ub=counts.tocsr(),
            b_ub=np.array([each.count for each in self._classes], dtype=float),
            A_eq=hstack([cover, identity, -identity]).tocsr(),
            b_eq=np.ones(n),
            method="highs",
        )
        if result.status != 0 or result.fun <= 1e-7 * float(size.sum()):
            return None
        return np.asarray(result.eqlin.marginals)


def _class(model: FreeModel, group: tuple[int, ...], unit_s: float) -> _Class:
    """The sets of a class of exchangeable slots, by its first one."""
    slot, n = group[0], len(model.slots_of)
    period, pool = model.slot_loads(slot)[0], model.pool_load(slot)
    upper = [float(slot in slots) for slots in model.slots_of]
    load, memory = [0.0] * n, [0.0] * n
    for unit in range(n):
        if upper[unit]:
            terms = model.unit_terms[unit][slot]
            load[unit] = sum(amount for index, amount in terms if index == period)
            memory[unit] = sum(amount for index, amount in terms if index == pool)
    rows: list[list[tuple[int, float]]] = []

    def cut(a: int, others: tuple[int, ...], costs: tuple[float, float]) -> None:
        """A variable that is 1 when a unit (-1: none) is on one side and others on the other."""
        for other in others:
            row = [(other, 1.0), (len(load), -1.0)]
            rows.append(row if a < 0 else [*row, (a, -1.0)])
        load.append(costs[0])
        memory.append(costs[1])
        upper.append(1.0)

    for edge in model.edges:
        enter, leave, made = _edge_costs(model, edge, slot, period, pool)
        if edge.producer >= 0:
            load[edge.producer] += made
        if max(enter) > 0:
            cut(edge.producer, tuple(r for r in edge.readers if upper[r]), enter)
        if leave > 0 and upper[edge.producer]:
            for reader in edge.readers:
                rows.append([(edge.producer, 1.0), (reader, -1.0), (len(load), -1.0)])
            load.append(leave)
            memory.append(0.0)
            upper.append(1.0)
    entries = [(r, c, v) for r, row in enumerate(rows) for c, v in row]
    matrix = coo_matrix(
        ([v for _, _, v in entries], ([r for r, _, _ in entries], [c for _, c, _ in entries])),
        shape=(max(1, len(rows)), len(load)),
    )
    limit = model.limit[pool] if pool >= 0 else np.inf
    bytes_unit = limit / _SCALE if np.isfinite(limit) and limit > 0 else 1.0
    fixed = sum(amount for index, amount in model.slot_terms[slot] if index == period)
    return _Class(
        count=len(group),
        rows=matrix.tocsr(),
        load=np.array(load) / unit_s,
        fixed=fixed / unit_s,
        memory=np.array(memory) / bytes_unit if pool >= 0 else np.zeros(len(load)),
        memory_limit=limit / bytes_unit if pool >= 0 else np.inf,
        upper=np.array(upper),
    )


def _edge_costs(
    model: FreeModel, edge: Edge, slot: int, period: int, pool: int
) -> tuple[tuple[float, float], float, float]:
    """Least that an edge charges a slot: (period, bytes) entering it, leaving it, made in it."""

    def part(terms: Any, load: int) -> float:
        return float(sum(amount for index, amount in terms if index == load))

    flow = edge.flow
    if flow is None:
        held = model.terms(edge, (-1, 1 << slot))
        return (0.0, part(held, pool)), 0.0, 0.0
    if edge.producer < 0:
        hop = model.hop(flow, -1, slot)
        return (part(hop, period), part(hop, pool)), 0.0, 0.0
    others = [s for s in range(model.n_slots) if s != slot]
    sources = [s for s in others if s in model.slots_of[edge.producer]]
    hops = [model.hop(flow, source, slot) for source in sources]
    enter = tuple(min((part(hop, load) for hop in hops), default=0.0) for load in (period, pool))
    made = model.sent_s(flow, slot, -1) if flow.to_caller else 0.0
    paid = made if model.problem.send_once else 0.0
    sent = min((model.sent_s(flow, slot, s) for s in others), default=0.0) - paid
    return (
        (enter[0], enter[1]),
        part(model.sending(slot, max(0.0, sent)), period),
        part(model.sending(slot, made), period),
    )
