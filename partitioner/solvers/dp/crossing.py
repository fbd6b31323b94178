"""What the tensors that cross a cut cost the stages on its two sides.

Whatever the stages, a tensor that is open at a cut was sent by one of those before it and is
received by one behind it, each at its cheapest; model inputs are received and outputs sent as well.
Wide cuts are thereby ruled out that the load of the ops alone would allow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitioner.problem import Floats, Problem
from partitioner.solvers.bounds import transfer_bounds
from partitioner.solvers.dp.cuts import Cuts
from partitioner.solvers.dp.weights import weighed
from partitioner.solvers.reduce import Units

__all__ = ["crossing"]


def crossing(
    problem: Problem, units: Units, cuts: Cuts, rates: Sequence[Floats]
) -> list[tuple[Floats, Floats]]:
    """Transfers borne before and after each downset at least, each shape (n_ideals,).

    Parameters
    ----------
    rates : sequence of array, shape (n_options,)
        What a second on each option counts; there is a pair of results for each of them.
    """
    moved = problem.amount[[flow.tensor for flow in cuts.moved]]
    outward = [flow for flow in units.flows if flow.to_caller]
    send = np.empty((problem.n_options, len(moved)))
    recv = np.empty_like(send)
    for option in range(problem.n_options):
        send[option], recv[option], _ = transfer_bounds(problem, option, moved)
    out = _to_caller(problem, problem.amount[[flow.tensor for flow in outward]])
    into = _from_caller(problem, problem.amount[[flow.tensor for flow in cuts.inputs]])
    if problem.send_once:
        # Where the caller gets the tensor too, that one send may be all.
        paid = _to_caller(problem, moved) * [flow.to_caller for flow in cuts.moved]
        send = np.maximum(0.0, send - paid)
    found = []
    for rate in rates:
        least_out, least_into, least_send, least_recv = (
            (rate[:, None] * cost).min(axis=0) for cost in (out, into, send, recv)
        )
        # What each unit sends out, and the inputs of which it is the first reader by number: where
        # it is done, a stage before the cut has received them.
        own = np.zeros((len(units), 2))
        np.add.at(own[:, 0], [flow.producer for flow in outward], least_out)
        np.add.at(own[:, 1], [flow.readers[0] for flow in cuts.inputs], least_into)
        sent, received = weighed(cuts.members, own).T
        weight = np.concatenate([least_into, least_recv, least_send])
        before = sent + received + cuts.transfers.leaving_before(weight)
        after = own[:, 0].sum() - sent + cuts.transfers.before(weight)
        found.append((before, after))
    return found


def _to_caller(problem: Problem, amount: Floats) -> Floats:
    """What an option pays to send tensors to the caller, shape (n_options, n_tensors)."""
    send, caller = problem.send, problem.n_options
    return np.asarray(
        send.base_s[:-1, caller, None] + np.outer(send.per_unit_s[:-1, caller], amount)
    )


def _from_caller(problem: Problem, amount: Floats) -> Floats:
    """What an option pays to receive tensors of the caller, shape (n_options, n_tensors)."""
    recv, caller = problem.recv, problem.n_options
    return np.asarray(
        recv.base_s[caller, :-1, None] + np.outer(recv.per_unit_s[caller, :-1], amount)
    )
