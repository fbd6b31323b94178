"""Times for a plan that nobody measured: a roofline guess, marked as such.

Each op takes the longer of its arithmetic and its memory traffic (Williams, Waterman and Patterson,
"Roofline", CACM 2009) on a nominal core. The figures are meant for balance, not for prediction.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.graph import OpGraph
from partitioner.machine import Device
from partitioner.profiling.table import Handover, Measurement, OpKey, Origin, ProfileTable

__all__ = ["estimate_profile"]

_FLOP_PER_S = 2.0e10
_BYTES_PER_S = 8.0e9
_KERNEL_S = 2.0e-6
_HOP_S = 3.0e-5
_COPY_BYTES_PER_S = 5.0e9


def estimate_profile(graph: OpGraph, devices: Sequence[Device], origin: Origin) -> ProfileTable:
    """A table for `graph` on `devices` without running anything.

    Parameters
    ----------
    graph : OpGraph
        The model's ops.
    devices : sequence of Device
        A core is as fast as its device's capacity says; k threads are k times as fast.
    origin : Origin
        Of this host.

    Returns
    -------
    ProfileTable
        With `estimated` set and zero runs in each row.
    """
    weights = [0.0] * len(graph.ops)
    for constant in graph.constants:
        for consumer in constant.consumers:
            weights[consumer] += constant.bytes
    rows: dict[OpKey, Measurement] = {}
    for op in graph.ops:
        touched = (*graph.inputs_of[op.id], *graph.outputs_of[op.id])
        traffic = weights[op.id] + sum(graph.tensors[t].bytes for t in touched)
        one_core_s = max(op.flops / _FLOP_PER_S, traffic / _BYTES_PER_S)
        for device in devices:
            rows[OpKey(op.signature, device.name, device.threads)] = Measurement(
                (_KERNEL_S + one_core_s / device.threads) / device.capacity
            )
    return ProfileTable(
        origin=origin,
        ops=rows,
        handover=Handover(_HOP_S, 1 / _COPY_BYTES_PER_S, _HOP_S, 0.0),
        estimated=True,
    )
