"""Seeded problems shaped like real networks, of any size, for the scale benchmark.

Shapes, all of single operators and none with trained weights:

- ``chain``: bottleneck blocks in a row, each with a skip around it (ResNet);
- ``inception``: modules of four branches of unequal length that a concat joins;
- ``nasnet``: cells that read the two cells before them, with five pairs of separable convolutions
  or poolings each and a concat of what is left unread (NASNet-A);
- ``dense``: layers that read all layers before them in their block (DenseNet);
- ``transformer``: encoder layers of 30 operators; one attention mask is read by all of them.

Op times are heavy-tailed: products and convolutions draw from a log-normal with median 0.6 ms and
sigma 0.7, everything else from one with median 40 us and sigma 0.6. Activations have a median of
400 kB (sigma 0.5; a concat is as large as what it joins, up to 2 MB), and a copy costs either end
15 us and 0.25 ns a byte (4 GB/s), so that it takes about 0.1 ms: 30 to 40 % of a mean op at each
end, which is what a hand-over through shared memory costs small boards. Transfers are ``sync`` with
both ends charged, one send for every reading stage. Every heavy op has weights; each device holds
twice its fair share of them.

Devices: ``equal``; ``classes``, half of them big and half little, 2 to 4 times slower by op;
``unequal``, each with a speed of its own between 1 and 4, and each op up to 15 % off that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from partitioner.problem import Problem, TransferCost

DEVICES = ("equal", "classes", "unequal")
BASE_S, PER_BYTE_S = 15e-6, 0.25e-9
# Operators of a transformer's layer.
LAYER = 30
_LARGEST = 2e6


@dataclass
class _Graph:
    """A graph that grows op by op; every op makes one tensor."""

    chance: random.Random
    heavy: list[bool] = field(default_factory=list)
    size: list[float] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.heavy)

    def op(self, *inputs: int, heavy: bool = False, join: bool = False) -> int:
        """Add an op that reads the results of others; `join` makes a tensor as large as those."""
        new = len(self.heavy)
        own = 4e5 * self.chance.lognormvariate(0.0, 0.5)
        joined = sum(self.size[i] for i in inputs)
        self.size.append(min(_LARGEST, joined if join else own))
        self.heavy.append(heavy)
        self.readers.append([])
        for i in dict.fromkeys(inputs):
            self.readers[i].append(new)
        return new

    def row(self, start: int, kinds: str) -> int:
        """Ops in a row: ``c`` a heavy one, anything else a light one."""
        for kind in kinds:
            start = self.op(start, heavy=kind == "c")
        return start


def _chain(g: _Graph, n: int) -> None:
    tail = g.op(heavy=True)
    while len(g) < n:
        tail = g.op(g.op(tail, g.row(tail, "cbrcbrcb")))


def _inception(g: _Graph, n: int) -> None:
    tail = g.op(heavy=True)
    while len(g) < n:
        deep = g.chance.choice(("crcrcr", "crcrcrcrcr"))
        ends = [g.row(tail, kinds) for kinds in ("cr", "crcr", deep, "pcr")]
        tail = g.op(*ends, join=True)


def _nasnet(g: _Graph, n: int) -> None:
    before = last = g.op(heavy=True)
    while len(g) < n:
        # Two inputs are brought to one shape; five blocks each join two states by an addition.
        states = [g.row(before, "rcb"), g.row(last, "rcb")]
        unread = set(states)
        for _ in range(5):
            ends = []
            for _ in range(2):
                state = g.chance.choice(states)
                unread.discard(state)
                ends.append(g.row(state, g.chance.choice(("rccbrccb", "rccbrccb", "p", ""))))
            state = g.op(*ends)
            states.append(state)
            unread.add(state)
        before, last = last, g.op(*sorted(unread), join=True)


def _dense(g: _Graph, n: int) -> None:
    tail = g.op(heavy=True)
    while len(g) < n:
        features = [tail]
        for _ in range(g.chance.randint(6, 24)):
            features.append(g.row(g.op(*features, join=True), "brcbrc"))
        tail = g.row(g.op(*features, join=True), "brcp")


def _transformer(g: _Graph, n: int) -> None:
    mask, tail = g.op(), g.op()
    while len(g) < n:
        normed = g.row(tail, "n")
        query, key, value = (g.row(normed, "cbst") for _ in range(3))
        scores = g.op(g.row(g.op(query, key, heavy=True), "s"), mask)
        mixed = g.row(g.op(g.row(scores, "x"), value, heavy=True), "tscb")
        tail = g.op(tail, mixed)
        tail = g.op(tail, g.row(tail, "ncbgcb"))


SHAPES: dict[str, Callable[[_Graph, int], None]] = {
    "chain": _chain,
    "inception": _inception,
    "nasnet": _nasnet,
    "dense": _dense,
    "transformer": _transformer,
}


def problem(shape: str, n_ops: int, devices: int, kind: str = "equal", seed: int = 0) -> Problem:
    """A seeded problem.

    Parameters
    ----------
    shape : str
        One of `SHAPES`.
    n_ops : int
        Number of ops; the network ends there.
    devices : int
        Number of devices.
    kind : str
        One of `DEVICES`.
    seed : int
        Seed of everything drawn.

    Returns
    -------
    Problem
        Minimizes the period.
    """
    g = _Graph(random.Random(f"{shape} {n_ops} {seed}"))
    SHAPES[shape](g, n_ops)
    rng = np.random.default_rng((seed, n_ops, devices))
    heavy = np.array(g.heavy[:n_ops])
    draw = rng.standard_normal(n_ops)
    work = np.where(heavy, 0.6e-3 * np.exp(0.7 * draw), 40e-6 * np.exp(0.6 * draw))
    readers = [tuple(r for r in found if r < n_ops) for found in g.readers[:n_ops]]
    size = np.array([*g.size[:n_ops], 6e5])
    weights = np.where(heavy, rng.lognormal(13.0, 0.8, n_ops), 0.0)
    weighty = np.flatnonzero(weights)
    share = float(weights.sum()) / devices + float(weights.max())
    either = np.full((devices + 1, devices + 1), 1.0)
    copy = TransferCost(BASE_S * either, PER_BYTE_S * either)
    return Problem(
        op_names=tuple(f"op{i}" for i in range(n_ops)),
        option_names=tuple(f"dev{d}" for d in range(devices)),
        time_s=work[:, None] * _slowness(rng, heavy, devices, kind),
        allowed=np.ones((n_ops, devices), dtype=np.bool_),
        host_s=np.full(devices, 20e-6),
        uses=np.eye(devices, dtype=np.int64),
        capacity=np.ones(devices, dtype=np.int64),
        pool_of=np.arange(devices),
        pool_bytes=np.full(devices, 2 * share),
        producer=np.array([*range(n_ops), -1]),
        consumers=(*readers, (0,)),
        to_caller=np.array([*(not found for found in readers), False]),
        amount=size,
        tensor_bytes=size,
        send=copy,
        recv=copy,
        link=TransferCost.zero(devices),
        bus_of=np.full((devices + 1, devices + 1), -1),
        constant_bytes=weights[weighty],
        constant_ops=tuple((int(op),) for op in weighty),
        live_bytes=size[:-1],
        max_stages=devices,
    )


def _slowness(rng: np.random.Generator, heavy: np.ndarray, devices: int, kind: str) -> np.ndarray:
    """Factor on each op's time by device, shape (n_ops, devices)."""
    n = len(heavy)
    if kind == "equal":
        return np.ones((n, devices))
    if kind == "classes":
        little = rng.uniform(2.0, 4.0, (n, 1))
        return np.where(np.arange(devices) < devices // 2, 1.0, little)
    speed = np.exp(rng.uniform(0.0, np.log(4.0), devices))
    return speed * rng.uniform(0.85, 1.15, (n, devices))
