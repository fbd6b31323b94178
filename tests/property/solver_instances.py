"""Seeded random problems for the solvers."""

from __future__ import annotations

import random

import numpy as np
from problem_builder import build, uniform

from partitioner.problem import LatencyModel, Objective, Problem, TransferCost


def small(seed: int) -> Problem:
    """Up to 6 ops and 3 options with every feature drawn by chance."""
    chance = random.Random(seed)
    rng = np.random.default_rng(seed)
    n, m = chance.randint(2, 6), chance.randint(1, 3)
    tensors: list[tuple[int, tuple[int, ...], float, bool]] = []
    for op in range(n):
        later = list(range(op + 1, n))
        readers = tuple(sorted(chance.sample(later, min(len(later), chance.choice([0, 1, 1, 2])))))
        tensors.append((op, readers, chance.randint(1, 9), not readers or chance.random() < 0.2))
    for _ in range(chance.randint(0, 2)):
        readers = tuple(sorted(chance.sample(range(n), chance.randint(1, 2))))
        tensors.append((-1, readers, chance.randint(1, 9), False))
    equal = chance.random() < 0.3
    times = rng.uniform(1, 10, (n, 1 if equal else m)) * np.ones((1, m))
    times[rng.random((n, m)) < 0.04] = np.inf
    fields: dict[str, object] = {}

    def cost(level: float) -> TransferCost:
        if chance.random() < 0.35:
            return TransferCost.zero(m)
        if chance.random() < 0.5:
            return uniform(m, level * chance.random(), level * chance.random() / 3)
        size = (m + 1, m + 1)
        return TransferCost(rng.uniform(0, level, size), rng.uniform(0, level / 3, size))

    fields["send"], fields["recv"], fields["link"] = cost(1.0), cost(1.0), cost(2.0)
    if chance.random() < 0.3:
        fields["bus_of"] = rng.integers(-1, 2, (m + 1, m + 1))
    fields["send_once"] = chance.random() < 0.5
    fields["host_s"] = np.zeros(m) if equal else rng.uniform(0, 0.5, m)
    fields["max_stages"] = chance.randint(1, 4)
    if chance.random() < 0.3:
        # The last option takes all cores; or all options share one divisible cluster.
        if chance.random() < 0.5:
            uses = np.eye(m, dtype=np.int64)
            uses[-1] = 1
            fields["uses"] = uses
        else:
            fields["uses"] = np.arange(1, m + 1, dtype=np.int64)[:, None]
            fields["capacity"] = np.array([chance.randint(1, 4)])
    if chance.random() < 0.2:
        allowed = np.ones((n, m), dtype=bool)
        allowed[chance.randrange(n)] = False
        allowed[np.argmin(allowed.all(axis=1)), chance.randrange(m)] = True
        fields["allowed"] = allowed
    if n > 3 and chance.random() < 0.25:
        fields["colocate"] = (tuple(sorted(chance.sample(range(n), 2))),)
    if chance.random() < 0.4:
        pools = chance.randint(1, m)
        fields["pool_of"] = np.array([d % pools for d in range(m)])
        groups = [(op,) for op in range(n)] + [tuple(sorted(chance.sample(range(n), 2)))]
        sizes = rng.integers(1, 10, len(groups)).astype(float)
        fields["constant_ops"], fields["constant_bytes"] = tuple(groups), sizes
        fields["live_bytes"] = rng.integers(0, 10, n).astype(float)
        fields["queue_slots"] = chance.randint(0, 2)
        fields["pool_bytes"] = rng.uniform(0.6, 2.5, pools) * sizes.sum()
    objectives = [
        (Objective.PERIOD, LatencyModel.ATOMIC),
        (Objective.PERIOD, LatencyModel.ATOMIC),
        (Objective.LATENCY, LatencyModel.SERIAL),
        (Objective.LATENCY, LatencyModel.ATOMIC),
    ]
    fields["objective"], fields["latency_model"] = chance.choice(objectives)
    return build(times, tensors, **fields)


def network(seed: int, n: int, devices: int, *, equal: bool) -> Problem:
    """A chain of blocks with branches and skips, as networks have, on unequal devices."""
    chance = random.Random(seed)
    readers: list[set[int]] = [set() for _ in range(n)]
    tail, op = 0, 1
    while op < n:
        branches = min(chance.choice([1, 1, 2, 3, 4]), max(1, (n - op - 1) // 3))
        ends = []
        for _ in range(branches):
            last = tail
            for _ in range(chance.randint(1, 3)):
                if op >= n - 1:
                    break
                readers[last].add(op)
                last, op = op, op + 1
            ends.append(last)
        if op >= n:
            break
        for end in {*ends, *([tail] if chance.random() < 0.4 else [])}:
            readers[end].add(op)
        tail, op = op, op + 1
    rng = np.random.default_rng(seed)
    work = rng.lognormal(0, 1, (n, 1)) * 1e-3
    speed = np.ones(devices) if equal else rng.uniform(0.5, 2.0, devices)
    spread = 1.0 if equal else rng.uniform(0.8, 1.25, (n, devices))
    amounts = rng.integers(10_000, 1_000_000, n)
    tensors = [(i, tuple(sorted(readers[i])), float(amounts[i]), not readers[i]) for i in range(n)]
    tensors.append((-1, (0,), 600_000.0, False))
    return build(
        work * speed * spread,
        tensors,
        send=uniform(devices, 1e-5, 2e-10),
        recv=uniform(devices, 2e-5, 1e-10),
        send_once=True,
    )
