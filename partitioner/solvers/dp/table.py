"""Dynamic programming over ideals: the best pipeline for every downset and set of used options.

A pipeline is a chain of downsets; the state after some stages is the downset done and what the
stages occupy, up to exchanging equal options. Method: Tarnawski et al., "Efficient Algorithms for
Device Placement of DNN Graph Operators" (NeurIPS 2020), section 5.1; the chain case is PipeDream's
(Narayanan et al., SOSP 2019, section 3.1).

What a stage pays for a transfer may hang on options of other stages, which a state does not hold.
There the table takes the least it can be, so that its value is a lower bound over the downsets
given; callers re-score its pipelines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from partitioner.problem import Bools, Floats, LatencyModel, Objective, Problem
from partitioner.solvers.bounds import Prices
from partitioner.solvers.dp.crossing import crossing
from partitioner.solvers.dp.cuts import Cuts
from partitioner.solvers.dp.ideals import all_ideals, membership
from partitioner.solvers.dp.pricing import Pricing, TooLargeError, Transition, pricing
from partitioner.solvers.dp.reach import Reach
from partitioner.solvers.dp.sends import sent_to_each
from partitioner.solvers.dp.spans import SpanCosts, Spans
from partitioner.solvers.dp.weights import weighed
from partitioner.solvers.limits import RELATIVE, Clock, Limits
from partitioner.solvers.occupancy import Key, Occupancy
from partitioner.solvers.reduce import Units, most_stages, stages_of

__all__ = [
    "Search",
    "Step",
    "Table",
    "TooLargeError",
    "applies",
    "exact_cuts",
    "longest_period",
    "run_table",
    "search_cuts",
]

_QUANTA = float(1 << 40)
_FAR = 1 << 62
_ROUNDING = 1e-9
# Makes up for sums of floats in another order.
_UNDER = 1 - 1e-12


@dataclass(frozen=True, slots=True)
class Table:
    """What dynamic programming found.

    Attributes
    ----------
    bound : float
        No pipeline over the downsets given has a lower objective; inf when there is none at all
        (below the cut-off).
    assignment : tuple or None
        Stage of each op and placements, of the pipeline that attains `bound` where costs separate.
    """

    bound: float
    assignment: tuple[tuple[int, ...], tuple[tuple[int], ...]] | None


@dataclass(slots=True)
class State:
    """Best value for each downset, and the (state, option) pairs that led here."""

    value: Floats
    via: list[tuple[Key, int]] = field(default_factory=list)


def applies(problem: Problem) -> bool:
    """Whether the table can be made, so that its value is a lower bound.

    Stages must follow one another and the objective add up stage by stage, which the atomic
    latency, with its overlap, does not. A cap on the latency is more than a state holds: it is
    left to the re-scoring, which is no use where nothing else keeps the stages apart.
    """
    objective, capped = problem.objective, np.isfinite(problem.latency_cap_s)
    if not problem.contiguous:
        return False
    if objective is Objective.LATENCY:
        return problem.latency_model is LatencyModel.SERIAL
    return objective is Objective.PERIOD or not capped


def exact_cuts(
    problem: Problem, units: Units, limits: Limits, cutoff: float, prices: tuple[Prices, ...]
) -> Cuts:
    """All downsets that a pipeline better than `cutoff` can cut at.

    Raises
    ------
    TooLargeError
        If there are too many; CP-SAT has no such limit.
    """
    slots = most_stages(problem)
    period_s = longest_period(problem, cutoff)
    if prices and np.isfinite(period_s):
        # The first of the prices is one for each stage: after a cut there must be one more.
        most = period_s * (slots - 1) * (1 + RELATIVE)
        ideals = all_ideals(units, limits.max_ideals, prices[0].work, most)
    else:
        ideals = all_ideals(units, limits.max_ideals)
    if ideals is None:
        raise TooLargeError(
            f"dynamic programming: the graph has more than {limits.max_ideals} downsets to cut at, "
            "which is too many for its table; use method 'cpsat' or 'auto'"
        )
    return _reachable(problem, units, ideals, cutoff, prices)


def run_table(
    problem: Problem,
    units: Units,
    ideals: list[int],
    limits: Limits,
    clock: Clock,
    cutoff: float,
    prices: tuple[Prices, ...],
) -> Table:
    """Best pipeline that cuts at the given downsets only, which hold both trivial ones.

    Parameters
    ----------
    cutoff : float
        Only values below are of interest.

    Raises
    ------
    TooLargeError
        If time or the limit on the table's size run out.
    """
    cuts = _reachable(problem, units, ideals, cutoff, prices)
    search = search_cuts(problem, units, cuts, limits, clock, cutoff, prices)
    best, trail = search.best()
    if trail is None:
        return Table(best, None)
    placements = tuple((option,) for option in search.options(trail))
    return Table(best, (stages_of(units, search.stage_of_unit(trail)), placements))


def search_cuts(
    problem: Problem,
    units: Units,
    cuts: Cuts,
    limits: Limits,
    clock: Clock,
    cutoff: float,
    prices: tuple[Prices, ...],
) -> Search:
    """The filled table over the given downsets.

    Raises
    ------
    TooLargeError
        If time or the limit on the table's size run out.
    """
    # Whole numbers, so that a downset never sorts behind one that holds it through rounding.
    total = float(prices[-1].work.sum()) if prices else 0.0
    quanta = _QUANTA / total if total > 0 else 0.0
    pieces = (prices[-1].work * quanta if quanta else np.zeros(len(units))).astype(np.int64)
    work = weighed(cuts.members, pieces[:, None])[:, 0]
    order = np.lexsort((cuts.members.sum(axis=1), work))
    cuts, work = cuts.take(order), work[order]
    period_s = longest_period(problem, cutoff)
    copies = crossing(problem, units, cuts, [price.rates(problem) for price in prices])
    reach = Reach(problem, cuts.members, prices, period_s, copies)
    windows = {
        group[0]: _window(problem, reach, group[0], prices, quanta, period_s)
        for group in reach.occupancy.classes.classes
    }
    if not problem.send_once:
        cuts = sent_to_each(cuts, units, pieces, max(most for _, most in windows.values()))
    costs = SpanCosts(problem, units, cuts, work, cutoff=cutoff, limit_s=period_s)
    search = Search(problem, units, cuts, cutoff, reach)
    prices_of = pricing(units, reach, costs, windows, limits.max_pairs, clock)
    search.run(prices_of, clock)
    return search


def longest_period(problem: Problem, cutoff: float) -> float:
    """Longest period of an assignment below the cut-off and within the cap."""
    cap_s = problem.period_cap_s * (1 + _ROUNDING)
    return min(cutoff, cap_s) if problem.objective is Objective.PERIOD else cap_s


def _reachable(
    problem: Problem, units: Units, ideals: list[int], cutoff: float, prices: tuple[Prices, ...]
) -> Cuts:
    """The downsets that a pipeline below the cut-off may cut at."""
    members = membership(ideals, len(units))
    period_s = longest_period(problem, cutoff)
    cuts = Cuts.of(units, members[Reach(problem, members, prices, period_s).ever()])
    # What hangs on the tensors is looked at where there are fewer downsets.
    copies = crossing(problem, units, cuts, [price.rates(problem) for price in prices])
    keep = Reach(problem, cuts.members, prices, period_s, copies).ever()
    if problem.objective is Objective.LATENCY:
        before, after = _moving(problem, units, cuts)
        least = float(units.time_s.min(axis=1).sum())
        keep &= (least + before + after) * _UNDER < cutoff
        keep[[0, -1]] = True
    return cuts.take(np.flatnonzero(keep))


def _moving(problem: Problem, units: Units, cuts: Cuts) -> tuple[Floats, Floats]:
    """Seconds of transfers before and after each downset at least, shape (n_ideals,) both."""
    return crossing(problem, units, cuts, [np.ones(problem.n_options)])[0]


def _window(
    problem: Problem,
    reach: Reach,
    option: int,
    prices: tuple[Prices, ...],
    quanta: float,
    period_s: float,
) -> tuple[int, int]:
    """Least and most whole units of priced work that a stage on the option holds."""
    if not quanta or not np.isfinite(period_s):
        return 0, _FAR
    rate = float(problem.uses[option] @ prices[-1].resource) + prices[-1].slot
    # Each unit's work was rounded down.
    off = len(prices[-1].work)
    most = rate * period_s * (1 + RELATIVE) * quanta + off
    least = reach.least_work(option) * quanta - off
    return max(0, int(least)), int(min(most, _FAR))


@dataclass(frozen=True, slots=True)
class Step:
    """A stage of a pipeline: the state and downset after it, its class of options."""

    key: Key
    ideal: int
    option: int


class Search:
    """The table, state by state.

    Attributes
    ----------
    occupancy : Occupancy
        The states there may be.
    states : dict
        Those that pipelines of interest reach.
    spans : dict
        Stages that lead from a state, on the first option of a class, to another.
    members : array of bool, shape (n_ideals, n_units)
        The downsets, the empty one first and the whole last.
    """

    def __init__(
        self,
        problem: Problem,
        units: Units,
        cuts: Cuts,
        cutoff: float,
        reach: Reach,
    ) -> None:
        self._problem = problem
        self.occupancy: Occupancy = reach.occupancy
        self.spans: dict[Transition, Spans] = {}
        self._cutoff = cutoff
        self._reach = reach
        self._sum = problem.objective is not Objective.PERIOD
        self.members = cuts.members
        self._n = len(cuts.members)
        # What the ops outside a downset, and what they receive and put out, still add at least.
        self._least = np.zeros(self._n)
        if problem.objective is Objective.LATENCY:
            own = ~cuts.members @ units.time_s.min(axis=1)
            self._least = (own + _moving(problem, units, cuts)[1]) * _UNDER
        elif problem.objective is Objective.MEMORY:
            self._least = ~cuts.members @ units.constant_bytes * _UNDER

    def run(self, pricing: Pricing, clock: Clock) -> None:
        """Fill the table.

        Parameters
        ----------
        pricing : callable
            Gives the stages that lead from a state to another, from the downsets reached there.
        clock : Clock
            When to give up.

        Raises
        ------
        TooLargeError
            If time ran out.
        """
        start = np.full(self._n, np.inf)
        start[0] = 0.0
        occupancy = self.occupancy
        self.states = {occupancy.start: State(start)}
        heap = [(*occupancy.rank(occupancy.start), occupancy.start)]
        while heap:
            key = heappop(heap)[-1]
            if clock.left_s <= 0:
                raise TooLargeError("dynamic programming: time ran out before its table ended")
            for option, larger in occupancy.after(key):
                fresh = larger not in self.states
                if self._extend(key, option, larger, pricing) and fresh:
                    heappush(heap, (*occupancy.rank(larger), larger))

    @property
    def size(self) -> int:
        """Stages of interest, once for each pair of states that they lead from and to."""
        return sum(len(spans.start) for spans in self.spans.values())

    def best(self) -> tuple[float, list[Step] | None]:
        """Best value and the stages that attain it."""
        value, key = np.inf, None
        for each, state in self.states.items():
            if state.value[-1] < value:
                value, key = float(state.value[-1]), each
        return value, None if key is None else self._trail(key)

    def joined(self, reached: Floats, cost: Floats) -> Floats:
        """Value of pipelines of value `reached` with a stage more."""
        return reached + cost if self._sum else np.maximum(reached, cost)

    def _extend(self, key: Key, option: int, larger: Key, pricing: Pricing) -> bool:
        """Add a stage on `option` to every pipeline of state `key`."""
        value = self.states[key].value
        wanted = np.flatnonzero(self._open(larger))
        done = np.flatnonzero(np.isfinite(value))
        spans = self.spans[key, option, larger] = pricing((key, option, larger), done)
        low, high = max(int(wanted[0]), int(done[0])), int(wanted[-1]) + 1
        first = spans.first[low : high + 1]
        part = slice(int(first[0]), int(first[-1]))
        if part.start == part.stop:
            return False
        before, cost = value[spans.start[part]], spans.cost[part]
        total = self.joined(before, cost)
        filled = np.flatnonzero(np.diff(first))
        best = np.full(self._n, np.inf)
        best[low + filled] = np.minimum.reduceat(total, first[filled] - first[0])
        best[~self._open(larger)] = np.inf
        best[best + self._least >= self._cutoff] = np.inf
        if not np.isfinite(best).any():
            return False
        state = self.states.setdefault(larger, State(np.full(self._n, np.inf)))
        np.minimum(state.value, best, out=state.value)
        state.via.append((key, option))
        return True

    def _open(self, key: Key) -> Bools:
        """Downsets whose rest may still fit what is left."""
        useful = self._reach.fits_rest(key)
        useful[-1] = True
        return useful

    def _trail(self, key: Key) -> list[Step]:
        """The stages of the best pipeline, found again from the last to the first."""
        trail: list[Step] = []
        ideal = self._n - 1
        while key != self.occupancy.start:
            state = self.states[key]
            value = state.value[ideal]
            for before, option in state.via:
                spans = self.spans[before, option, key]
                part = slice(spans.first[ideal], spans.first[ideal + 1])
                reached = self.states[before].value[spans.start[part]]
                cost = spans.cost[part]
                total = self.joined(reached, cost)
                match = np.flatnonzero(total == value)
                if len(match):
                    trail.append(Step(key, ideal, option))
                    key, ideal = before, int(spans.start[part][match[0]])
                    break
        return trail[::-1]

    def stage_of_unit(self, trail: list[Step]) -> list[int]:
        """Stage of each unit."""
        stages = np.zeros(self.members.shape[1], dtype=np.int64)
        for stage in reversed(range(len(trail))):
            stages[self.members[trail[stage].ideal]] = stage
        return stages.tolist()

    def options(self, trail: list[Step]) -> list[int]:
        """A real option for each stage: states hold use only up to exchanging equal options."""
        used = np.zeros_like(self._problem.capacity)
        classes = self.occupancy.classes
        chosen = []
        for step in trail:
            group = next(group for group in classes.classes if group[0] == step.option)
            option = next(
                option
                for option in group
                if np.all(used + self._problem.uses[option] <= self._problem.capacity)
                and classes.canonical((used + self._problem.uses[option]).tolist()) == step.key[0]
            )
            used = used + self._problem.uses[option]
            chosen.append(option)
        return chosen
