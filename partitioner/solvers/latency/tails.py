"""Lower bounds on the time from a ready tensor to the end of everything, by going backward.

For every downset and every wire open there, whatever stages come after: each wire is followed on
its own along the stages that read it, as if the others were there in time. That makes it a bound,
and, where the graph is nearly a chain, nearly the truth. A second bound is for all open wires ready
at once, as they are when one stage makes them all: the stage that follows is the same for all.
"""

from __future__ import annotations

import numpy as np

from partitioner.problem import Floats, Ints
from partitioner.solvers.latency.lattice import Lattice, Moves
from partitioner.solvers.limits import Clock

__all__ = ["Tails", "tails"]


class Tails:
    """Bounds by downset, state of the resources and slot of the downset.

    Parameters
    ----------
    lattice : Lattice
        The downsets.
    counted : bool
        Whether to tell states apart; without, any stage can be had any number of times.

    Attributes
    ----------
    seconds : array, shape (n_downsets, n_states, n_slots)
        Least time from a wire's being ready to the end; inf when the rest cannot be placed, 0 in
        slots that are not used.
    joint_s : array, shape (n_downsets, n_states)
        Least time to the end from all open wires' being ready.
    reach_s : array, shape (n_kinds, n_downsets, n_states)
        Load of the downset as a far end, and its joint tail.
    """

    def __init__(self, lattice: Lattice, counted: bool) -> None:
        self._lattice = lattice
        states = lattice.rules.n_states if counted else 1
        kinds = len(lattice.rules.kinds)
        self._counted = counted
        self.seconds: Floats = np.zeros((len(lattice), states, lattice.n_slots))
        self.joint_s: Floats = np.zeros((len(lattice), states))
        self.reach_s: Floats = np.full((kinds, len(lattice), states), np.inf)
        self.reach_s[:, -1] = lattice.load_s[:, -1, None]
        once = np.zeros((2, 1), dtype=np.int64)
        self._steps = [step if counted or not step.size else once for step in lattice.rules.steps]

    def state(self, state: int) -> int:
        """The row of a state of the resources."""
        return state if self._counted else 0

    def settle(self, downset: int) -> None:
        """Set the bounds of a downset, those after it being set."""
        lattice = self._lattice
        n_open = len(lattice.open_at(downset))
        # The last column is for all wires at once.
        best = np.full((self.seconds.shape[1], n_open + 1), np.inf)
        near, far = lattice.above(downset)
        for k, kind in enumerate(lattice.rules.kinds):
            if not self._steps[k].size:
                continue
            if kind.single:
                self._near(downset, k, lattice.singles(downset), best)
                continue
            self._near(downset, k, near, best)
            targets = lattice.fitting(downset, k, far)
            if targets.size:
                source, target = self._steps[k]
                least = self.reach_s[k][targets].min(axis=0)[target]
                value = np.maximum(0.0, least + lattice.far_s(downset, k))
                np.minimum.at(best, source, value[:, None])
        self.seconds[downset, :, :n_open] = best[:, :-1]
        self.joint_s[downset] = best[:, -1]
        self.reach_s[:, downset] = lattice.load_s[:, downset, None] + best[:, -1]

    def _near(self, downset: int, k: int, targets: Ints, best: Floats) -> None:
        targets = self._lattice.fitting(downset, k, targets)
        if not targets.size:
            return
        moves = self._lattice.priced(downset, k, targets)
        if not moves.targets.size:
            return
        source, target = self._steps[k]
        after = self.seconds[moves.targets][:, target]
        through = moves.busy_s[:, None] + self.own(moves, after, target)
        joint = np.zeros_like(through)
        for slot in range(best.shape[1] - 1):
            value = after_wire(after, moves, slot)
            np.maximum(value, through, out=value, where=moves.taken[slot][:, None])
            np.maximum(joint, value, out=joint)
            np.minimum.at(best[:, slot], source, value.min(axis=0))
        np.minimum.at(best[:, -1], source, joint.min(axis=0))

    def own(self, moves: Moves, after: Floats, states: Ints) -> Floats:
        """Longest tail of each stage's own wires, shape (n_moves, len(states)).

        Parameters
        ----------
        after : array, shape (n_moves, len(states), n_slots)
            Tails at the targets.
        states : array of int
            Rows of the states after the stages.
        """
        longest = np.where(moves.fresh[:, None, :], after, 0.0).max(axis=2)
        alone = (moves.place < 0).all(axis=0)
        longest[alone] = self.joint_s[moves.targets[alone]][:, states]
        return np.asarray(longest)


def after_wire(after: Floats, moves: Moves, slot: int) -> Floats:
    """Tail of a wire that was open before at the targets, 0 where it is open no more."""
    place: Ints = moves.place[slot].astype(np.int64)
    value = after[np.arange(len(place)), :, place]
    return np.asarray(np.where((place >= 0)[:, None], value, 0.0))


def tails(lattice: Lattice, clock: Clock, counted: bool) -> Tails | None:
    """Bounds for all downsets, None when time is over first."""
    found = Tails(lattice, counted)
    for downset in range(len(lattice) - 2, -1, -1):
        if clock.left_s <= 0:
            return None
        found.settle(downset)
    return found
