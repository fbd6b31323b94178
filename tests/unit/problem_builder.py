"""Problems for tests, from a few arrays."""

from __future__ import annotations

import dataclasses

import numpy as np

from partitioner.problem import Problem, TransferCost


def build(
    times: np.ndarray,
    tensors: list[tuple[int, tuple[int, ...], float, bool]],
    **fields: object,
) -> Problem:
    """A problem with free transfers, a core an option and no limits, except for `fields`.

    `tensors` holds (producer, consumers, amount, to_caller).
    """
    n, m = times.shape
    sizes = np.array([amount for _, _, amount, _ in tensors], dtype=float)
    base = Problem(
        op_names=tuple(f"op{i}" for i in range(n)),
        option_names=tuple(f"dev{d}" for d in range(m)),
        time_s=times.astype(float),
        allowed=np.ones((n, m), dtype=bool),
        host_s=np.zeros(m),
        uses=np.eye(m, dtype=np.int64),
        capacity=np.ones(m, dtype=np.int64),
        pool_of=np.zeros(m, dtype=np.int64),
        pool_bytes=np.array([np.inf]),
        producer=np.array([producer for producer, _, _, _ in tensors], dtype=np.int64),
        consumers=tuple(consumers for _, consumers, _, _ in tensors),
        to_caller=np.array([out for _, _, _, out in tensors], dtype=bool),
        amount=sizes,
        tensor_bytes=sizes,
        send=TransferCost.zero(m),
        recv=TransferCost.zero(m),
        link=TransferCost.zero(m),
        bus_of=np.full((m + 1, m + 1), -1, dtype=np.int64),
        constant_bytes=np.zeros(0),
        constant_ops=(),
        live_bytes=np.zeros(n),
        max_stages=m,
    )
    return dataclasses.replace(base, **fields)


def uniform(m: int, base_s: float, per_unit_s: float) -> TransferCost:
    """The same cost between any two ends."""
    ones = np.ones((m + 1, m + 1))
    return TransferCost(base_s * ones, per_unit_s * ones)
