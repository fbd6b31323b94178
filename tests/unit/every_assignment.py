"""Every contiguous assignment of a small problem, and small problems with every feature."""

from __future__ import annotations

from itertools import product

import numpy as np
from problem_builder import build, uniform

from partitioner.evaluation import evaluate
from partitioner.problem import Evaluation, LatencyModel, Problem, TransferCost

Assignment = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


def feasible(problem: Problem) -> list[tuple[Assignment, Evaluation]]:
    """All feasible assignments with their scores."""
    found = []
    most = min(problem.max_stages, problem.n_ops)
    for stage_of in product(range(most), repeat=problem.n_ops):
        stages = max(stage_of) + 1
        if len(set(stage_of)) < stages:
            continue
        if any(stage_of[u] > stage_of[v] for u, v in problem.edges):
            continue
        for options in product(range(problem.n_options), repeat=stages):
            if (problem.uses[list(options)].sum(axis=0) > problem.capacity).any():
                continue
            placements = tuple((option,) for option in options)
            evaluation = evaluate(problem, stage_of, placements)
            if evaluation.feasible:
                found.append(((stage_of, placements), evaluation))
    return found


def graph(rng: np.random.Generator, n: int) -> list[tuple[int, tuple[int, ...], float, bool]]:
    """Tensors of a random graph of n ops with one or two inputs."""
    tensors: list[tuple[int, tuple[int, ...], float, bool]] = []
    for op in range(n):
        later = np.arange(op + 1, n)
        count = min(len(later), int(rng.integers(0, 3)))
        readers = tuple(sorted(int(v) for v in rng.choice(later, count, replace=False)))
        tensors.append((op, readers, float(rng.integers(1, 9)), not readers or rng.random() < 0.2))
    tensors.append((-1, (0,), float(rng.integers(1, 9)), False))
    return tensors


def drawn(seed: int, **fields: object) -> Problem:
    """Up to 5 ops on up to 3 options; replicas, host cores, memory and costs drawn by chance."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(3, 6)), int(rng.integers(2, 4))
    whole = rng.random() < 0.4
    times = rng.integers(1, 9, (n, m)) if whole else rng.uniform(1, 9, (n, m))

    def cost(level: float) -> TransferCost:
        kind = rng.integers(3)
        if kind == 0:
            return TransferCost.zero(m)
        if kind == 1:
            return uniform(m, level * rng.random(), level * rng.random() / 3)
        size = (m + 1, m + 1)
        return TransferCost(rng.uniform(0, level, size), rng.uniform(0, level / 3, size))

    replicas = rng.integers(1, 3, m)
    groups = [(op,) for op in range(n)] + [tuple(sorted(rng.choice(n, 2, replace=False).tolist()))]
    sizes = rng.integers(1, 10, n + 1) * (1.0 if whole else rng.random())
    drawn_fields: dict[str, object] = {
        "send": cost(1.0),
        "recv": cost(1.0),
        "link": cost(2.0),
        "send_once": bool(rng.random() < 0.5),
        "host_s": rng.uniform(0, 2, m),
        "host_core": rng.integers(-1, 2, m),
        "replicas": replicas,
        "uses": np.eye(m, dtype=np.int64) * replicas[:, None],
        "capacity": np.full(m, 2),
        "constant_ops": tuple(groups),
        "constant_bytes": sizes,
        "live_bytes": rng.integers(0, 5, n).astype(float),
        "queue_slots": int(rng.integers(0, 3)),
        "pool_of": np.arange(m) % 2,
        "pool_bytes": rng.uniform(1.5, 5.0, 2) * sizes.sum(),
        "max_stages": 3,
        "latency_model": LatencyModel.SERIAL if rng.random() < 0.5 else LatencyModel.ATOMIC,
    }
    if rng.random() < 0.3:
        drawn_fields["bus_of"] = rng.integers(-1, 2, (m + 1, m + 1))
    return build(times, graph(rng, n), **{**drawn_fields, **fields})
