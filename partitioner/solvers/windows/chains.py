"""The best cuts within their windows, where all options are equal: one cut of each, chained.

A tensor that can cross several cuts ties these together. At first its send counts at the first cut
after its producer where the windows put that into the stage before for certain, its receipt where
they put a reader into the stage behind. That makes the result a lower bound, as a rule a close one.
Where it leaves chains of interest, what they leave for each cut allows a second look: there only
cuts are dropped that agree on all that hangs on two cuts (see `ties`), which is charged to pairs of
cuts. The assignment is scored by whoever asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from partitioner.problem import Floats, Ints
from partitioner.solvers.limits import Clock
from partitioner.solvers.windows.fronts import Front, Window
from partitioner.solvers.windows.ties import Tie, surcharge, ties
from partitioner.solvers.windows.windows import Supposed, Windows

__all__ = ["Chain", "best_chain"]

_SAFE = 1e-9
_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """One cut of each window.

    Attributes
    ----------
    load : float
        Priced load of the fullest stage that was charged; inf when there is no chain.
    stage_of : array of int, shape (n_units,), or None
        Stage of each unit.
    complete : bool
        Whether no pipeline as supposed has a lower load.
    tied : bool
        Whether what hangs on two cuts was charged.
    """

    load: float
    stage_of: Ints | None
    complete: bool
    tied: bool = False


def best_chain(
    windows: Windows,
    order: Ints,
    supposed: Supposed,
    most_load: float,
    limit: int,
    clock: Clock,
) -> Chain:
    """The chain of cuts with the lowest load.

    Parameters
    ----------
    order : array of int, shape (n_units,)
        A topological order with few tensors open at a time.
    most_load : float
        Priced loads of interest are not above.
    limit : int
        Rows of a window's table; where there would be more, the result proves nothing.
    clock : Clock
        When to give up.
    """
    table = _Table(windows, order, supposed, most_load, limit, clock)
    cuts = len(supposed.cost)
    nothing: list[list[Tie]] = [[]] * cuts
    fronts = table.fronts(nothing, supposed.most, supposed.rest)
    found = table.chain(fronts, nothing)
    if found.stage_of is None or not found.complete:
        return found
    # What hangs on two cuts comes with the first of them; the last cut has no partner.
    joint = [ties(windows, supposed, cut) if cut + 1 < cuts else [] for cut in range(cuts)]
    close = table.chain(table.fronts(joint, *table.limits(fronts)), joint)
    if close.complete:
        return replace(close, tied=True)
    return found if close.stage_of is None else replace(found, stage_of=close.stage_of)


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The arguments of `best_chain`."""

    windows: Windows
    order: Ints
    supposed: Supposed
    most_load: float
    limit: int
    clock: Clock

    def fronts(self, joint: list[list[Tie]], most: Floats, rest: Floats) -> list[Front]:
        """Cuts of each window; none behind a window that has none."""
        found: list[Front] = []
        for cut in range(len(joint)):
            asked = [pair[0] for tie in joint[cut] for pair in tie.pairs]
            if cut:
                asked += [pair[1] for tie in joint[cut - 1] for pair in tie.pairs]
            window = Window(self.windows, self.order, self.supposed, cut, asked)
            found.append(window.front(most[cut], rest[cut], self.limit, self.clock))
            if not len(found[-1].left):
                break
        return found

    def chain(self, fronts: list[Front], joint: list[list[Tie]]) -> Chain:
        """The best chain of given cuts."""
        complete = all(front.complete for front in fronts)
        if fronts and not len(fronts[-1].left):
            return Chain(np.inf, None, fronts[-1].complete)
        values, via = self._values(fronts, joint)
        if not np.isfinite(values[-1]).any():
            return Chain(np.inf, None, complete)
        stage_of = np.zeros(len(self.windows.work), dtype=np.int64)
        chosen = 0
        for stage in reversed(range(1, len(values))):
            chosen = int(via[stage][chosen])
            stage_of += fronts[stage - 1].behind(chosen)
        return Chain(float(values[-1][0]), stage_of, complete)

    def limits(self, fronts: list[Front]) -> tuple[Floats, Floats]:
        """What chains of these cuts leave for the loads beside each, shape (n_cuts,) both.

        Every pipeline of interest has a chain of them that bears no more in any stage.
        """
        total = float(self.windows.work.sum())
        certain = _certain(self.windows, self.supposed)
        forth, _ = self._values(fronts, [[]] * len(fronts))
        alive = [np.isfinite(value) for value in forth[:-1]]
        value, left = np.zeros(1), np.array([total])
        for cut in reversed(range(len(fronts))):
            beside = fronts[cut].right + certain[cut + 1]
            # Sums in another order: a chain of interest forwards must be one backwards.
            value, _ = _step(value, left, beside, self.most_load * (1 + _SAFE), None)
            alive[cut] &= np.isfinite(value)
            value = np.where(alive[cut], value, np.inf)
            left = fronts[cut].left
        right = [0.0, *(float(f.right[a].min()) for f, a in zip(fronts, alive, strict=True))]
        left_ = [*(float(f.left[a].min()) for f, a in zip(fronts, alive, strict=True)), total]
        room = self.most_load + _SAFE * total - certain
        return room[:-1] - right[:-1], room[1:] - left_[1:] + total

    def _values(
        self, fronts: list[Front], joint: list[list[Tie]]
    ) -> tuple[list[Floats], list[Ints]]:
        """Least load of the fullest stage so far for each cut, inf where it is of no interest."""
        value, right = np.zeros(1), np.zeros(1)
        values: list[Floats] = []
        via: list[Ints] = []
        for stage, fixed in enumerate(_certain(self.windows, self.supposed)):
            inner = stage < len(fronts)
            left = fronts[stage].left if inner else np.array([float(self.windows.work.sum())])
            extra = None
            if inner and stage and joint[stage - 1]:
                extra = surcharge(joint[stage - 1], fronts[stage - 1], fronts[stage])
            value, best = _step(value, right, left + fixed, self.most_load, extra)
            values.append(value)
            via.append(best)
            right = fronts[stage].right if inner else right
        return values, via


def _step(
    value: Floats,
    right: Floats,
    left: Floats,
    most: float,
    extra: tuple[Ints, Ints, Floats] | None,
) -> tuple[Floats, Ints]:
    """Least of max(value, right + left + extra) over the former, inf above `most`; where it is."""
    best = np.full(len(left), np.inf)
    via = np.zeros(len(left), dtype=np.int64)
    some = np.flatnonzero(value <= most)
    wanted = np.flatnonzero(left + right[some].min(initial=np.inf) <= most)
    rows = max(1, _BLOCK // max(1, len(some)))
    for low in range(0, len(wanted), rows):
        part = wanted[low : low + rows]
        load = right[None, some] + left[part, None]
        if extra is not None:
            first, last, charge = extra
            load += charge[first[None, some], last[part, None]]
        np.maximum(load, value[None, some], out=load)
        via[part] = some[load.argmin(axis=1)]
        best[part] = load.min(axis=1)
    best[best > most] = np.inf
    return best, via


def _certain(windows: Windows, supposed: Supposed) -> Floats:
    """Load that each stage has whatever the cuts: host time and inputs."""
    found = np.full(len(supposed.cost) + 1, windows.host)
    flows = windows.flows
    earliest = supposed.after.sum(axis=0)
    fixed = np.asarray(~supposed.free.any(axis=0))
    for flow in np.flatnonzero(flows.producer < 0).tolist():
        readers = flows.reader[flows.last[flow] : flows.last[flow + 1]]
        found[np.unique(earliest[readers[fixed[readers]]])] += windows.recv[flow]
    return found
