"""What a stage costs that hangs on both of its cuts.

A tensor whose producer or reader lies in the windows of both cuts of a stage is charged to it by
where both cuts put the unit. Each such charge falls due when some units are before the first cut
and others not, and likewise for the second. Cuts that agree on these conditions differ by the same
amounts whatever the other cut is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from partitioner.problem import Bools, Floats, Ints
from partitioner.solvers.windows.windows import Supposed, Windows

__all__ = ["Asked", "Cut", "Tie", "sends_to", "surcharge", "ties"]


class Cut(Protocol):
    """Some cuts within one window."""

    def holds(self, units: Sequence[int]) -> Bools:
        """Which of the units each cut has before it, shape (n_cuts, n_units)."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """That the units `all_of` are before a cut, and those in `not_all` are not all so (if any)."""

    all_of: tuple[int, ...] = ()
    not_all: tuple[int, ...] = ()

    def met(self, cut: Cut) -> Bools:
        """Cuts of which it is true, shape (n_cuts,)."""
        found = cut.holds(self.all_of).all(axis=1)
        if self.not_all:
            found &= ~cut.holds(self.not_all).all(axis=1)
        return np.asarray(found)


@dataclass(frozen=True, slots=True)
class Tie:
    """A charge that falls due when one of the pairs is true of a stage's first and last cut."""

    charge: float
    pairs: tuple[tuple[Asked, Asked], ...]


def sends_to(windows: Windows, supposed: Supposed, cut: int, flow: int) -> tuple[Ints, int, bool]:
    """Readers of a tensor in the stage after a cut or before for certain, and those behind.

    Returns
    -------
    next_ : array of int
        Readers that are before the next cut for certain.
    times : int
        Sends that the stage before the cut pays at least, if the tensor is made there and read
        after the cut.
    again : bool
        Whether there is one more if one of `next_` is after the cut.
    """
    flows = windows.flows
    readers = flows.reader[flows.last[flow] : flows.last[flow + 1]]
    if cut + 1 == len(supposed.cost):
        return readers, 1, False
    next_ = readers[supposed.before[cut + 1][readers]]
    behind = readers[supposed.after[cut + 1][readers]]
    if windows.send_once or not len(behind):
        return next_, 1, False
    fixed = behind[~supposed.free[:, behind].any(axis=0)]
    stages = supposed.after[:, fixed].sum(axis=0)
    return next_, max(1, len(np.unique(stages))), True


def ties(windows: Windows, supposed: Supposed, cut: int) -> list[Tie]:
    """Charges to the stage between a cut and the next one that hang on both."""
    first, last = supposed.free[cut], supposed.free[cut + 1]
    # No stage costs as much as one whose second cut is not after its first.
    never = 4.0 * float(windows.work.sum() + windows.send.sum() + windows.recv.sum())
    shared = np.flatnonzero(first & last).tolist()
    found = [Tie(never, ((Asked((unit,)), Asked((), (unit,))),)) for unit in shared]
    flows = windows.flows
    for flow in np.flatnonzero(supposed.weight[cut + 1]).tolist():
        maker = int(flows.producer[flow])
        send = float(windows.send[flow])
        if not first[maker] or not send:
            continue
        readers = flows.reader[flows.last[flow] : flows.last[flow + 1]]
        next_, times, again = sends_to(windows, supposed, cut + 1, flow)
        outside = Asked((), (maker,))
        sent = Asked((maker,), tuple(readers.tolist()))
        found.append(Tie(send * times, ((outside, sent),)))
        if again and len(next_):
            found.append(Tie(send, ((outside, Asked((maker,), tuple(next_.tolist()))),)))
    for flow in np.flatnonzero(supposed.weight[cut]).tolist():
        maker = int(flows.producer[flow])
        readers = flows.reader[flows.last[flow] : flows.last[flow + 1]]
        sure = readers[supposed.before[cut + 1][readers]]
        open_ = readers[last[readers]]
        if windows.recv[flow] and len(open_) and not supposed.after[cut][sure].any():
            made = (maker, *sure.tolist())
            pairs = ((Asked(made, (r,)), Asked((r,))) for r in open_.tolist())
            found.append(Tie(float(windows.recv[flow]), tuple(pairs)))
    return found


def surcharge(found: Sequence[Tie], before: Cut, after: Cut) -> tuple[Ints, Ints, Floats]:
    """What pairs of cuts cost besides.

    Returns
    -------
    first, last : array of int
        Kind of each cut in `before`, and of each in `after`.
    charge : array, shape (n_kinds_first, n_kinds_last)
        What their stage costs more.
    """
    sides = []
    for side, cut in enumerate((before, after)):
        columns = [pair[side].met(cut) for tie in found for pair in tie.pairs]
        bits = np.stack(columns, axis=1) if columns else np.zeros((len(cut.holds(())), 0), np.bool_)
        packed = np.packbits(bits, axis=1)
        _, row, kind = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        sides.append((kind.reshape(-1), bits[row].astype(np.float64)))
    (first, some), (last, other) = sides
    charge = np.zeros((len(some), len(other)))
    column = 0
    for tie in found:
        part = slice(column, column + len(tie.pairs))
        charge += tie.charge * np.minimum(some[:, part] @ other[:, part].T, 1.0)
        column = part.stop
    return first, last, charge
