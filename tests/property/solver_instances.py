"""Seeded random problems for the solvers."""

from __future__ import annotations

import random

import numpy as np
from problem_builder import build, uniform

from partitioner.problem import Problem


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
