"""Where the threads of a running pipeline really are."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from partitioner import Partition, auto_partition
from partitioner.core_list import format_cpus
from partitioner.frontend import Grouped
from partitioner.host import allowed_cpus
from partitioner.plan import Placement, Stage
from partitioner.runtime.affinity import allowed, where
from partitioner.runtime.build import BuildCache
from partitioner.runtime.pipeline import Pipeline

SAMPLES = 1000
CPUS = allowed_cpus()[:4]

# One stage on all cores of a cluster; a stage a core; and, where there are cores for it, stages of
# several threads beside each other and a stage of two replicas.
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "all of the cores": ((len(CPUS),),),
    "a core each": ((1,), (1,)),
    "several, and one": ((max(2, len(CPUS) - 1),), (1,)),
    "two, and two replicas of one": ((2,), (1, 1)),
}


def divided(grouped: Grouped, shape: tuple[tuple[int, ...], ...], builds: BuildCache) -> Partition:
    """The network in stages of so many cores of one cluster: for each stage, of each replica."""
    cluster = f"cores:{format_cpus(CPUS)}"
    part = auto_partition(grouped, [cluster], profile="estimate", builds=builds)
    names = [op.name for op in grouped.graph.ops]
    ops = [tuple(part) for part in np.array_split(names, len(shape))]
    free = iter(CPUS)
    stages = tuple(
        Stage(
            tuple(map(str, mine)),
            tuple(
                Placement(cluster, tuple(next(free) for _ in range(count)), 1 / len(replicas))
                for count in replicas
            ),
        )
        for mine, replicas in zip(ops, shape, strict=True)
    )
    plan = replace(part.plan, stages=stages, predicted=None)
    return auto_partition(grouped, [cluster], plan=plan, builds=builds)


@contextmanager
def kept_busy(pipe: Pipeline, item: Mapping[str, Any]) -> Iterator[list[float]]:
    """Run an item over and over from another thread; yields when each was done, as it grows."""
    stop, done = threading.Event(), list[float]()

    def feed() -> None:
        endless = iter(lambda: item, None)
        for _ in pipe.map(itertools.takewhile(lambda _: not stop.is_set(), endless)):
            done.append(time.monotonic())

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_thread_is_on_its_stages_cores(
    shape: str, grouped: Grouped, builds: BuildCache
) -> None:
    counts = SHAPES[shape]
    needed = sum(map(sum, counts))
    if len(CPUS) < needed or needed < 2:
        pytest.skip(f"needs {max(needed, 2)} cores, this process may use {len(CPUS)}")
    part = divided(grouped, counts, builds)
    with part.pipeline() as pipe, kept_busy(pipe, part.samples(1)[0]) as done:
        own = {worker.pid: frozenset(worker.cpus) for worker in pipe.workers}
        seen: dict[int, dict[int, set[int]]] = {pid: {} for pid in own}
        before = len(done)
        for _ in range(SAMPLES):
            for pid, threads in seen.items():
                for tid, cpu in where([pid]).items():
                    threads.setdefault(tid, set()).add(cpu)
        assert len(done) > before, "nothing ran meanwhile"
        masks = {pid: allowed(pid) for pid in own}
    assert [len(worker.cpus) for worker in pipe.workers] == [n for one in counts for n in one]
    for pid, cpus in own.items():
        assert len(seen[pid]) >= len(cpus), "fewer threads than the stage has cores"
        assert set().union(*seen[pid].values()) <= cpus
        assert masks[pid].keys() <= seen[pid].keys()
        assert all(mask <= cpus for mask in masks[pid].values())
    lists = list(own.values())
    assert sum(map(len, lists)) == len(frozenset().union(*lists)), "a core belongs to two workers"


def test_a_thread_elsewhere_is_seen_there() -> None:
    """What the test above relies on, on threads that are known to be elsewhere."""
    if len(CPUS) < 2:
        pytest.skip("needs two cores")
    places: dict[int, int] = {}
    moved, leave = threading.Barrier(3), threading.Event()

    def stay(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        places[threading.get_native_id()] = cpu
        moved.wait()
        leave.wait()

    threads = [threading.Thread(target=stay, args=(cpu,)) for cpu in CPUS[:2]]
    for thread in threads:
        thread.start()
    moved.wait()
    found, masks = where([os.getpid()]), allowed(os.getpid())
    leave.set()
    for thread in threads:
        thread.join()
    assert {tid: found[tid] for tid in places} == places
    assert {tid: masks[tid] for tid in places} == {tid: {cpu} for tid, cpu in places.items()}
