"""A planned pipeline in simulated time: no board, no compiler, the runtime's own wiring."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partitioner.errors import InputError
from partitioner.plan import Plan
from partitioner.runtime.trace import Records
from partitioner.runtime.wiring import wire
from partitioner.simulation.contention import Contention
from partitioner.simulation.events import by_events
from partitioner.simulation.line import Line, Service
from partitioner.simulation.moments import Floats, Orders
from partitioner.simulation.recurrence import by_recurrence
from partitioner.simulation.result import Latencies, QueueUse, Simulated, WorkerUse, summarize
from partitioner.simulation.work import draw_work

__all__ = [
    "Contention",
    "Latencies",
    "Line",
    "QueueUse",
    "Service",
    "Simulated",
    "WorkerUse",
    "simulate",
]


def simulate(
    plan: Plan | Line,
    *,
    items: int = 2000,
    seed: int = 0,
    jitter: float = 0.0,
    records: Sequence[Records] = (),
    contention: Contention | float | None = None,
    queue_slots: int | None = None,
    arrivals: float | Sequence[float] | None = None,
    window: int | None = None,
) -> Simulated:
    """Run a pipeline in simulated time by the runtime's rules.

    Queues are bounded, a worker sends when every consumer has room and gives its inputs' slots back
    only then, items go to replicas by the dispatch pattern and are put in order behind them, and
    tensors that skip stages have channels of their own. The caller copies in and out in one thread.

    Parameters
    ----------
    plan : Plan or Line
        A plan stands for `Line.of` it: its predicted busy times, stages in a chain.
    items : int
        How many items, at least 2.
    seed : int
        Of the random numbers.
    jitter : float
        Standard deviation of every time over its mean; times are lognormal.
    records : sequence of Records
        Measured times to draw from instead, for the workers they are of (`Trace.records`).
    contention : Contention or float, optional
        How much workers slow one another down. A number is what each takes while all the others
        are busy, over what it takes alone (`Contention.even`).
    queue_slots : int, optional
        Depth of every queue; default: the runtime's choice.
    arrivals : float or sequence of float, optional
        Seconds between two items, or when each arrives. Default: back to back.
    window : int, optional
        Most items on their way at once; default: as many as fit.

    Returns
    -------
    Simulated
        The first and last tenth of the items, or as many as the pipeline holds, are left out of
        what is called steady.

    Raises
    ------
    InputError
        If a number makes no sense.
    PlanError
        If the plan has no predicted times.
    """
    line = Line.of(plan) if isinstance(plan, Plan) else plan
    _require_counts(items, queue_slots, window)
    arrivals_s = _arrivals(arrivals, items)
    run_s, send_s = draw_work(line, items, seed, jitter, records)
    orders = Orders(
        run_s=run_s,
        send_s=send_s,
        arrivals_s=arrivals_s,
        window=window,
        caller_in_s=line.caller_in_s,
        caller_out_s=line.caller_out_s,
    )
    wiring = wire(line.spec, queue_slots, 1)
    if contention is None:
        moments = by_recurrence(wiring, orders)
    else:
        if not isinstance(contention, Contention):
            contention = Contention.even(line, contention)
        moments = by_events(wiring, orders, contention)
    return summarize(line, moments, arrivals_s, wiring.capacity)


def _require_counts(items: int, queue_slots: int | None, window: int | None) -> None:
    for name, value, least in (
        ("items", items, 2),
        ("queue_slots", queue_slots, 1),
        ("window", window, 1),
    ):
        if value is not None and value < least:
            raise InputError(f"simulation: {name} is {value}; at least {least} is needed")


def _arrivals(given: float | Sequence[float] | None, items: int) -> Floats | None:
    if given is None:
        return None
    if isinstance(given, int | float):
        if not 0 <= given < math.inf:
            raise InputError(f"simulation: arrivals are {given} s apart; give zero or more")
        times: Floats = np.arange(items) * np.float64(given)
    else:
        times = np.array(given, dtype=np.float64)
    if times.shape != (items,) or not np.isfinite(times).all() or times[0] < 0:
        raise InputError(
            f"simulation: arrivals are {times.shape} times; give {items} finite ones, "
            "zero or more, or one number of seconds between two items"
        )
    if (np.diff(times) < 0).any():
        raise InputError("simulation: arrivals go back in time; sort them")
    return times
