"""Exact latency of the model 'atomic': labels over downsets, the dominated ones dropped.

A label at a downset says when each wire open there is ready, and which resources are taken. A
stage more makes a label at a larger downset. Of two labels the one that is later nowhere and has
taken no more makes the other needless (multi-criteria shortest paths: Hansen, 1980); one whose
wires cannot reach the end before the cut-off, by `tails`, is needless too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from partitioner.problem import Bools, Floats, Ints
from partitioner.solvers.latency.lattice import Lattice, Moves
from partitioner.solvers.latency.tails import Tails, after_wire
from partitioner.solvers.limits import Clock

__all__ = ["Search", "search_labels"]

# Pairs of labels and moves treated at a time, and labels compared at a time: bounds memory.
_PAIRS, _COMPARED = 200_000, 400
# Sums taken in another order differ by less than this, relatively.
_SLACK = 1 + 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Result of one search.

    Attributes
    ----------
    stages : list of (int, int, int) or None
        Downset before, downset after and kind of each stage of the best chain; None when there is
        none below the cut-off.
    latency_s : float
        Its latency by the labels; inf without one.
    bound : float
        No chain of these downsets is below it.
    complete : bool
        Whether no label was dropped but for good reason.
    """

    stages: list[tuple[int, int, int]] | None
    latency_s: float
    bound: float
    complete: bool


@dataclass(slots=True)
class _Labels:
    """Labels of one downset, one a row.

    `ready_s` (n, n_open), `end_s` (n,) the least latency they still allow, `state` (n,) of the
    resources, `parent` (n, 3): downset and row they come from, and kind of the stage between.
    """

    ready_s: Floats
    end_s: Floats
    state: Ints
    parent: Ints

    def rows(self, chosen: Ints | Bools) -> _Labels:
        return _Labels(
            self.ready_s[chosen], self.end_s[chosen], self.state[chosen], self.parent[chosen]
        )


@dataclass(slots=True)
class _Progress:
    """What a search knows so far."""

    cutoff_s: float
    lost_s: float = float("inf")
    waiting: dict[int, list[_Labels]] = field(default_factory=dict)
    settled: dict[int, _Labels] = field(default_factory=dict)


def search_labels(
    lattice: Lattice, tail: Tails, clock: Clock, cutoff_s: float, width: int
) -> Search:
    """Find the chain of downsets of least latency.

    Parameters
    ----------
    lattice, tail
        The downsets, and bounds for them.
    clock : Clock
        The search ends when it does, with a bound from the labels it has left.
    cutoff_s : float
        Only chains below it are of interest.
    width : int
        Labels kept at one downset; those beyond are dropped and their bound counts.

    Returns
    -------
    Search
        Its bound is at most `cutoff_s`.
    """
    now = _Progress(cutoff_s)
    last = len(lattice) - 1
    n_open = len(lattice.open_at(0))
    root_s = float(tail.joint_s[0, tail.state(0)])
    if root_s >= cutoff_s:
        return Search(None, float("inf"), cutoff_s, True)
    now.waiting[0] = [
        _Labels(
            np.zeros((1, n_open)),
            np.array([root_s]),
            np.zeros(1, dtype=np.int64),
            np.full((1, 3), -1, dtype=np.int64),
        )
    ]
    for downset in range(last):
        if downset not in now.waiting:
            continue
        if clock.left_s <= 0:
            break
        labels = _settled(lattice, tail, now, downset, width)
        for moves in _moves(lattice, tail, downset, labels, cutoff_s):
            _extend(lattice, tail, now, downset, labels, moves)
    return _result(now, last)


def _result(now: _Progress, last: int) -> Search:
    ends = now.waiting.pop(last, [])
    left = min(
        (float(part.end_s.min()) for parts in now.waiting.values() for part in parts),
        default=float("inf"),
    )
    lost = min(now.lost_s, left)
    latency, stages = float("inf"), None
    for part in ends:
        row = int(part.end_s.argmin())
        if part.end_s[row] < latency:
            latency = float(part.end_s[row])
            stages = list(_chain(now, last, part.parent[row]))[::-1]
    return Search(stages, latency, min(latency, lost, now.cutoff_s), lost >= now.cutoff_s)


def _chain(now: _Progress, last: int, parent: Ints) -> Iterator[tuple[int, int, int]]:
    after = last
    while parent[0] >= 0:
        before, row, kind = (int(value) for value in parent)
        yield before, after, kind
        after, parent = before, now.settled[before].parent[row]


def _settled(lattice: Lattice, tail: Tails, now: _Progress, downset: int, width: int) -> _Labels:
    """The labels of a downset that are worth extending."""
    parts = now.waiting.pop(downset)
    labels = _Labels(
        np.concatenate([part.ready_s for part in parts]),
        np.concatenate([part.end_s for part in parts]),
        np.concatenate([part.state for part in parts]),
        np.concatenate([part.parent for part in parts]),
    )
    _raise(lattice, downset, labels)
    n_open = labels.ready_s.shape[1]
    states = np.array([tail.state(int(state)) for state in labels.state])
    reach = (labels.ready_s + tail.seconds[downset, states, :n_open]).max(axis=1, initial=0.0)
    joint = labels.ready_s.min(axis=1, initial=np.inf) + tail.joint_s[downset, states]
    labels.end_s = np.maximum(labels.end_s, np.maximum(reach, joint))
    labels = labels.rows(labels.end_s < now.cutoff_s)
    labels = labels.rows(_undominated(lattice, labels))
    if len(labels.end_s) > width:
        order = np.argsort(labels.end_s, kind="stable")
        now.lost_s = min(now.lost_s, float(labels.end_s[order[width]]))
        labels = labels.rows(order[:width])
    now.settled[downset] = labels
    return labels


def _moves(
    lattice: Lattice, tail: Tails, downset: int, labels: _Labels, cutoff_s: float
) -> Iterator[Moves]:
    """Stages that may follow a downset and still end below the cut-off."""
    near, far = lattice.above(downset)
    for k, kind in enumerate(lattice.rules.kinds):
        if kind.single:
            targets = lattice.singles(downset)
        else:
            # A stage to a far downset reads all that is open, so it starts when the last is ready.
            start = labels.ready_s.max(axis=1, initial=0.0)
            least = np.full(len(far), np.inf)
            for state, after in zip(*lattice.rules.steps[k], strict=True):
                first = start[labels.state == state].min(initial=np.inf)
                np.minimum(least, first + tail.reach_s[k][far, tail.state(after)], out=least)
            targets = np.concatenate(
                [near, far[least + lattice.far_s(downset, k) < cutoff_s * _SLACK]]
            )
        targets = lattice.fitting(downset, k, targets)
        moves = lattice.priced(downset, k, targets)
        if moves.targets.size:
            yield moves


def _raise(lattice: Lattice, downset: int, labels: _Labels) -> None:
    """Let wires be as late as whatever their readers have to wait for in any case."""
    wires = lattice.rules.wires
    mask = lattice.masks[downset]
    opened = lattice.open_at(downset)
    unread = lattice.unread(downset)
    before = labels.ready_s.copy()
    for slot, w in enumerate(opened):
        implied = np.full(len(before), np.inf)
        for reader in wires[w].readers:
            if not mask >> reader & 1:
                reached = [s for s in range(len(opened)) if unread[s] & lattice.needs[reader]]
                np.minimum(implied, before[:, reached].max(axis=1), out=implied)
        labels.ready_s[:, slot] = np.maximum(before[:, slot], implied)


def _undominated(lattice: Lattice, labels: _Labels) -> Ints:
    """Rows that no other row makes needless, best first."""
    used = lattice.rules.used[labels.state]
    key = np.column_stack([labels.end_s, labels.ready_s, used.astype(np.float64)])
    order = np.lexsort(key.T[::-1])
    key = key[order]
    kept: list[int] = []
    for row in range(len(key)):
        # Rows are sorted, so only earlier ones can be better or equal everywhere.
        mine = key[row]
        if not any(
            (key[kept[i : i + _COMPARED]] <= mine).all(axis=1).any()
            for i in range(0, len(kept), _COMPARED)
        ):
            kept.append(row)
    return order[kept]


def _extend(
    lattice: Lattice, tail: Tails, now: _Progress, downset: int, labels: _Labels, moves: Moves
) -> None:
    """Make a label of each label and move, where it can still end below the cut-off."""
    source, target = lattice.rules.steps[moves.kind]
    for state, after_state in zip(source, target, strict=True):
        rows = np.flatnonzero(labels.state == state)
        if not len(rows):
            continue
        row_after = np.array([tail.state(int(after_state))])
        after = tail.seconds[moves.targets][:, row_after]
        through = moves.busy_s + tail.own(moves, after, row_after)[:, 0]
        stays = [after_wire(after, moves, slot)[:, 0] for slot in range(len(moves.taken))]
        step = max(1, _PAIRS // len(moves.targets))
        for i in range(0, len(rows), step):
            some = rows[i : i + step]
            ready = labels.ready_s[some]
            start = np.zeros((len(some), len(moves.targets)))
            for slot, taken in enumerate(moves.taken):
                np.maximum(start, ready[:, [slot]], out=start, where=taken[None, :])
            end = np.maximum(labels.end_s[some, None], start + through)
            for slot, stay in enumerate(stays):
                np.maximum(end, ready[:, [slot]] + stay, out=end)
            row, move = np.nonzero(end < now.cutoff_s)
            if len(row):
                finish = (start + moves.busy_s)[row, move]
                _put(
                    lattice,
                    now,
                    downset,
                    moves,
                    _Made(ready[row], end[row, move], finish, some[row], move, int(after_state)),
                )


@dataclass(frozen=True, slots=True)
class _Made:
    """Labels just made: what their parents had ready, their ends, and when their stages finish."""

    ready_s: Floats
    end_s: Floats
    finish_s: Floats
    parent_row: Ints
    move: Ints
    state: int


def _put(lattice: Lattice, now: _Progress, downset: int, moves: Moves, made: _Made) -> None:
    order = np.argsort(moves.targets[made.move], kind="stable")
    targets, first = np.unique(moves.targets[made.move[order]], return_index=True)
    for target, rows in zip(targets, np.split(order, first[1:]), strict=True):
        move = made.move[rows[0]]
        n_open = len(lattice.open_at(int(target)))
        ready = np.repeat(made.finish_s[rows, None], n_open, axis=1)
        for slot, place in enumerate(moves.place[:, move]):
            if place >= 0:
                ready[:, place] = made.ready_s[rows, slot]
        parent = np.column_stack(
            [
                np.full(len(rows), downset),
                made.parent_row[rows],
                np.full(len(rows), moves.kind),
            ]
        )
        state = np.full(len(rows), made.state, dtype=np.int64)
        now.waiting.setdefault(int(target), []).append(
            _Labels(ready, made.end_s[rows], state, parent)
        )
