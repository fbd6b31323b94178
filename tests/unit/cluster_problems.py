"""Seeded problems of two core clusters with replicas, small enough for exhaustive search."""

from __future__ import annotations

import random

import numpy as np
from problem_builder import build, uniform

from partitioner.problem import LatencyModel, Objective, Problem
from partitioner.solvers import with_replicas

_AIMS = (Objective.PERIOD, Objective.PERIOD, Objective.PERIOD, Objective.LATENCY, Objective.DEVICES)


def cluster_problem(seed: int) -> Problem:
    """Four to six ops on every number of each cluster's cores, up to three replicas, or all cores.

    Times shrink with the cores by Amdahl's law or, for some, as they please.
    """
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    n = chance.randint(4, 6)
    sizes = [chance.randint(1, 3), chance.randint(1, 2)]
    tensors = [(-1, (0,), 4.0, False)]
    for op in range(n):
        later = range(op + 1, n)
        readers = tuple(sorted(chance.sample(later, min(len(later), chance.choice([1, 1, 2])))))
        tensors.append((op, readers, float(chance.randint(1, 9)), not readers))
    counts = [(cluster, k) for cluster, size in enumerate(sizes) for k in range(1, size + 1)]
    one = rng.uniform(2, 20, (n, 1)) * np.array([1.0, chance.uniform(1.0, 4.0)])
    parallel = rng.uniform(0.3, 1.0, n)
    columns = [one[:, c] * (1 - parallel + parallel / k) for c, k in counts]
    columns.append(one[:, 1] * (1 - parallel + parallel / sum(sizes)))
    times = np.stack(columns, axis=1)
    if chance.random() < 0.4:
        times *= rng.uniform(0.6, 1.5, times.shape)
    uses = [[k * (c == other) for other in range(2)] for c, k in counts] + [sizes]
    m = len(uses)
    cost = uniform(m, chance.choice([0.0, 0.5]), chance.choice([0.0, 0.2]))
    fields: dict[str, object] = {
        "uses": np.array(uses),
        "capacity": np.array(sizes),
        "send": cost,
        "recv": cost,
        "max_stages": chance.choice([2, sum(sizes), sum(sizes)]),
        "objective": chance.choice(_AIMS),
        "latency_model": chance.choice([LatencyModel.SERIAL, LatencyModel.ATOMIC]),
        "send_once": chance.random() < 0.3,
    }
    if chance.random() < 0.3:
        fields |= {
            "constant_bytes": rng.integers(1, 10, n).astype(float),
            "constant_ops": tuple((op,) for op in range(n)),
            "pool_bytes": np.array([float(chance.randint(30, 120))]),
        }
    if chance.random() < 0.3 or fields["objective"] is Objective.DEVICES:
        fields["period_cap_s"] = float(times.sum(axis=0).min()) * chance.uniform(0.4, 0.9)
    if chance.random() < 0.2:
        fields["latency_cap_s"] = float(times.sum(axis=0).min()) * chance.uniform(1.0, 2.0)
    return with_replicas(build(times, tensors, **fields), 3).problem
