"""Seeded random problems, one drawn configuration each, and the names of what is in them.

A planted assignment is drawn with each problem; pins, colours, budgets and caps are laid about it,
so that most problems are feasible and many limits bind.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np
from problem_builder import build

from partitioner.evaluation import evaluate
from partitioner.problem import LatencyModel, Objective, Problem, TransferCost

# Pairs of features that exclude one another by definition.
EXCLUSIVE = (
    {"contiguous", "free"},
    {"serial latency", "atomic latency", "period alone"},
    {"sync", "sync with flags", "async", "bus", "mixed transfers", "free transfers"},
    {"free", "atomic latency"},  # the latency of a free assignment is the serial sum
    {"period alone", "latency cap"},  # the latency does count there
)

_OPS = {2: 3, 3: 7, 4: 16, 5: 22, 6: 22, 7: 14, 8: 10, 9: 6}


def drawn(seed: int) -> Problem:
    """A problem of 2 to 9 ops on 2 or 3 devices."""
    draw = Draw(seed)
    draw.graph()
    draw.devices()
    draw.times()
    draw.plant()
    draw.transfers()
    draw.rules()
    if draw.some(0.4):
        draw.memory()
    draw.aims()
    problem = build(draw.time_s, draw.tensors, **draw.fields)
    return draw.limited(problem)


class Draw:
    """The parts of a problem as they are drawn."""

    sizes = _OPS
    """Numbers of ops with their weights."""

    def __init__(self, seed: int) -> None:
        self.chance, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.whole = self.some(0.4)  # whole numbers: equal values abound
        self.fields: dict[str, object] = {"contiguous": not self.some(0.3)}

    def some(self, probability: float) -> bool:
        return self.chance.random() < probability

    def numbers(self, least: float, most: float, size: tuple[int, ...]) -> np.ndarray:
        values = self.rng.uniform(least, most, size)
        return np.ceil(values) if self.whole else values

    def graph(self) -> None:
        """Tensors between ops: a chain, a sparse or a dense graph, with inputs and outputs."""
        self.n = self.chance.choices(list(self.sizes), list(self.sizes.values()))[0]
        fans = self.chance.choice([[1], [0, 1, 1, 2], [1, 1, 2, 3]])
        self.tensors: list[tuple[int, tuple[int, ...], float, bool]] = []
        for op in range(self.n):
            for _ in range(1 + self.some(0.1)):
                later = range(op + 1, self.n)
                if len(fans) == 1:
                    later = later[:1]
                count = min(len(later), self.chance.choice(fans))
                readers = tuple(sorted(self.chance.sample(list(later), count)))
                out = not readers or self.some(0.15)
                self.tensors.append((op, readers, float(self.chance.randint(1, 9)), out))
        for _ in range(self.chance.randint(0, 2)):
            readers = tuple(sorted(self.chance.sample(range(self.n), self.chance.randint(1, 2))))
            self.tensors.append((-1, readers, float(self.chance.randint(1, 9)), False))

    def devices(self) -> None:
        """Options: devices or counts of a cluster's cores, replicas, one that takes any number."""
        cores, grouped, shared = self.some(0.3), self.some(0.3), self.some(0.22)
        devices = 3 if self.some(0.3) or (grouped and shared and not cores) else 2
        self.alike = self.some(0.3)
        if self.alike and self.some(0.5):
            devices = 3
        uses = np.eye(devices, dtype=np.int64)
        capacity = np.ones(devices, dtype=np.int64)
        replicas = [1] * devices
        if cores:
            # One more option: the first device is a cluster, and this takes two of its cores.
            capacity[0] = self.chance.randint(2, 4)
            uses = np.vstack([uses, 2 * uses[:1]])
            replicas.append(1)
        if grouped:
            count = min(int(capacity[0]), self.chance.choice([2, 2, 3])) if cores else 2
            group = count * uses[0] if cores else uses[0] + uses[1]
            uses = np.vstack([uses, group[None]])
            replicas.append(count)
        if shared:
            uses[devices - 1] = 0  # a device that any number of stages share
        self.m = len(uses)
        self.fields |= {"uses": uses, "capacity": capacity, "replicas": np.array(replicas)}
        self.uses, self.capacity = uses, capacity
        large = self.m > 3 or not uses.any(axis=1).all()
        if large and self.n > 7:
            self.cut_graph(7)
        most = min(self.n, 4)
        self.max_stages = self.chance.randint(1, most) if self.some(0.35) else most
        self.fields["max_stages"] = self.max_stages

    def cut_graph(self, n: int) -> None:
        """Keep the first ops."""
        self.n = n
        kept = []
        for producer, readers, amount, out in self.tensors:
            left = tuple(reader for reader in readers if reader < n)
            if producer < n and (left or producer >= 0):
                kept.append((producer, left, amount, out or (producer >= 0 and not left)))
        self.tensors = kept

    def times(self) -> None:
        """Times of ops by option, and of the host."""
        n, m = self.n, self.m
        times = self.numbers(1, 10, (n, m))
        if self.some(0.3):
            times = self.numbers(1, 10, (n, 1)) * self.numbers(1, 4, (1, m))
        if self.alike:
            times[:, 1] = times[:, 0]
        if self.some(0.1):
            times[self.chance.randrange(n)] = 0.0
        self.time_s = times
        if self.some(0.5):
            level = 3 if self.whole else 1
            self.fields["host_s"] = self.numbers(0, level, (m,))
            if self.alike:
                self.fields["host_s"] = np.full(m, level / 2)
            if self.some(0.5):
                self.fields["host_core"] = self.rng.integers(-1, 2, m)

    def plant(self) -> None:
        """A random assignment that breaks no rule of order or resources."""
        options: list[int] = []
        left = self.capacity.copy()
        most = self.chance.randint(1, self.max_stages)
        for _ in range(min(most, self.n)):
            fit = [d for d in range(self.m) if (self.uses[d] <= left).all()]
            if not fit:
                break
            options.append(self.chance.choice(fit))
            left -= self.uses[options[-1]]
        k = len(options)
        stages = list(range(k)) + [self.chance.randrange(k) for _ in range(self.n - k)]
        if self.fields["contiguous"]:
            stages.sort()
        else:
            self.chance.shuffle(stages)
        self.stage_of, self.options = stages, options

    def transfers(self) -> None:
        """Costs of moving tensors by one of the models."""
        m = self.m
        kind = self.chance.choice(["sync", "flags", "async", "bus", "mixed"])
        none = TransferCost.zero(m)
        send = recv = link = none
        if kind in ("sync", "mixed"):
            send = recv = self.cost(2.0)
            if kind == "mixed" or self.some(0.2):
                recv = self.cost(2.0)
        if kind == "flags":
            cost = self.cost(2.0)
            sends, takes = (self.rng.integers(0, 2, (m + 1, 1)) for _ in range(2))
            sends[self.chance.randrange(m)] = 1
            takes[self.chance.randrange(m)] = 1
            send = TransferCost(cost.base_s * sends, cost.per_unit_s * sends)
            recv = TransferCost(cost.base_s * takes.T, cost.per_unit_s * takes.T)
        if kind in ("async", "bus", "mixed"):
            link = self.cost(4.0)
        if kind == "bus" or (kind == "mixed" and self.some(0.5)):
            bus = np.zeros((m + 1, m + 1), dtype=np.int64)
            if not self.alike or self.some(0.5):
                bus = self.rng.integers(-1, 2, (m + 1, m + 1))
                bus[0, 1] = 0
            self.fields["bus_of"] = bus
        self.fields |= {"send": send, "recv": recv, "link": link, "send_once": self.some(0.4)}

    def cost(self, level: float) -> TransferCost:
        """Uniform or by pair of ends; the caller's may be free."""
        size = (self.m + 1, self.m + 1)
        shape = (1, 1) if self.alike or self.some(0.5) else size
        base = self.numbers(0, level, shape) * np.ones(size)
        unit = np.zeros(size)
        if self.some(0.6):
            unit = self.numbers(0, level / 3, shape) * np.ones(size)
        if self.some(0.5):
            for part in (base, unit):
                part[-1], part[:, -1] = 0, 0
        return TransferCost(base, unit)

    def rules(self) -> None:
        """Where ops cannot run, where they may not, and which share a stage."""
        n, m = self.n, self.m
        here = np.zeros((n, m), dtype=bool)
        for op, stage in enumerate(self.stage_of):
            here[op, self.options[stage]] = not self.some(0.02)
        if self.some(0.3):
            cannot = (self.rng.random((n, m)) < 0.25) & ~here
            if self.alike:
                cannot[:, :2] = False
                cannot[self.chance.randrange(n), :2] = self.some(0.1)
            self.time_s[cannot] = np.inf
        if self.some(0.3):
            allowed = np.ones((n, m), dtype=bool)
            for op in self.chance.sample(range(n), self.chance.randint(1, min(2, n))):
                allowed[op] = here[op] | (self.rng.random(m) < 0.3)
            self.fields["allowed"] = allowed
        if n > 2 and self.some(0.3):
            groups = [[op for op in range(n) if self.stage_of[op] == s] for s in set(self.stage_of)]
            if self.some(0.05):
                groups = [list(range(n))]
            groups = [group for group in groups if len(group) > 1]
            if groups:
                group = self.chance.choice(groups)
                size = self.chance.randint(2, min(3, len(group)))
                self.fields["colocate"] = (tuple(sorted(self.chance.sample(group, size))),)

    def memory(self) -> None:
        """Constants, working sets, queues and pools; the budgets come later."""
        n, m = self.n, self.m
        pools = self.chance.randint(1, m)
        self.fields["pool_of"] = np.array([d % pools for d in range(m)])
        self.fields["pool_bytes"] = np.ones(pools)
        groups = [(op,) for op in range(n)]
        if self.some(0.6):
            for _ in range(self.chance.randint(1, 2)):
                size = self.chance.randint(2, min(3, n))
                groups.append(tuple(sorted(self.chance.sample(range(n), size))))
        self.fields["constant_ops"] = tuple(groups)
        self.fields["constant_bytes"] = self.rng.integers(1, 10, len(groups)).astype(float)
        if self.some(0.6):
            self.fields["live_bytes"] = self.rng.integers(0, 10, n).astype(float)
        self.fields["queue_slots"] = self.chance.choice([0, 1, 2])

    def aims(self) -> None:
        """Objective, latency model and second objective."""
        aim = self.chance.choice(["period", "period", "serial", "atomic", "atomic"])
        atomic = aim == "atomic" or (aim == "period" and self.some(0.5))
        objective = Objective.PERIOD if aim == "period" else Objective.LATENCY
        self.fields["objective"] = objective
        self.fields["latency_model"] = LatencyModel.ATOMIC if atomic else LatencyModel.SERIAL
        if self.some(0.3):
            others = [each for each in Objective if each is not objective]
            self.fields["second"] = self.chance.choice(others)

    def limited(self, problem: Problem) -> Problem:
        """Budgets and caps about what the planted assignment takes."""
        found = evaluate(problem, self.stage_of, [(option,) for option in self.options])
        limits: dict[str, object] = {}
        if "pool_bytes" in self.fields:
            factors = self.rng.uniform(0.8, 1.4, len(found.pool_bytes))
            budgets = np.ceil(np.array(found.pool_bytes) * factors + 1)
            if self.some(0.3):
                budgets[self.chance.randrange(len(budgets))] = np.inf
            limits["pool_bytes"] = budgets
        for name, value in (("period", found.period_s), ("latency", found.latency_s)):
            if self.some(0.3) and np.isfinite(value):
                cap = value * self.chance.uniform(0.6, 1.2)
                limits[f"{name}_cap_s"] = float(np.ceil(cap)) if self.whole else cap
        return dataclasses.replace(problem, **limits)


def features(problem: Problem) -> frozenset[str]:
    """Names of what a problem has, read from its arrays."""
    p = problem
    latency = p.objective is Objective.LATENCY or np.isfinite(p.latency_cap_s)
    latency = latency or p.second is Objective.LATENCY
    atomic = p.latency_model is LatencyModel.ATOMIC and p.contiguous
    listed = p.latency_model is LatencyModel.LIST
    units = p.capacity.sum() if p.uses.any(axis=1).all() else p.n_ops
    columns = {column.tobytes() for column in np.ascontiguousarray(p.time_s.T)}
    found = {
        "contiguous": p.contiguous,
        "free": not p.contiguous,
        "period alone": not latency,
        "serial latency": latency and not (atomic or listed),
        "atomic latency": latency and atomic,
        "list latency": latency and listed,
        "second objective": p.second is not None,
        "period cap": np.isfinite(p.period_cap_s),
        "latency cap": np.isfinite(p.latency_cap_s),
        "send once": p.send_once,
        "host time": p.host_s.any(),
        "host cores": (p.host_core >= 0).any(),
        "memory": np.isfinite(p.pool_bytes).any(),
        "shared constants": any(len(ops) > 1 for ops in p.constant_ops),
        "working sets": p.live_bytes.any(),
        "queues": p.queue_slots > 0 and np.isfinite(p.pool_bytes).any(),
        "pins": not p.allowed.all(),
        "unsupported": np.isinf(p.time_s).any(),
        "colours": len(p.colocate) > 0,
        "replicas": (p.replicas > 1).any(),
        "core counts": (p.capacity > 1).any(),
        "shared device": not p.uses.any(axis=1).all(),
        "few stages": p.max_stages < min(p.n_ops, units),
        "equal times": len(columns) < p.n_options,
        _transfer_model(p): True,
    }
    return frozenset(name for name, there in found.items() if there)


def _transfer_model(problem: Problem) -> str:
    charged, link = (
        any(part.any() for cost in costs for part in (cost.base_s, cost.per_unit_s))
        for costs in ((problem.send, problem.recv), (problem.link,))
    )
    if charged and link:
        return "mixed transfers"
    if link:
        return "bus" if (problem.bus_of >= 0).any() else "async"
    if not charged:
        return "free transfers"
    ends = [problem.send.base_s + problem.send.per_unit_s]
    ends.append((problem.recv.base_s + problem.recv.per_unit_s).T)
    silent = [not row.any() for end in ends for row in end[:-1]]
    return "sync with flags" if any(silent) else "sync"
