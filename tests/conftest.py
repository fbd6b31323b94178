"""Small values that many unit tests share: a model of four ops, two cores, its times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import settings

from partitioner.cost import build_problem, options_of
from partitioner.graph import Constant, Op, OpGraph, Tensor
from partitioner.host import HostInfo, host_info
from partitioner.machine import Device, Machine
from partitioner.plan import Plan
from partitioner.planning import choose, make_plan
from partitioner.problem import Problem
from partitioner.profiling.table import Handover, Measurement, OpKey, Origin, ProfileTable

# The same examples in every run, and no deadline: a busy machine is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("repeatable")

HOP_S = 1e-4
"""What each end of a hop costs in `profile`, whatever the size."""


@pytest.fixture
def graph() -> OpGraph:
    """conv_0 > relu_1 > conv_2 > add_3, where conv_0's output skips to add_3."""
    return OpGraph(
        name="tiny",
        ops=(
            Op(0, "conv_0", "conv", ("Conv_0",), "k0", live_bytes=500),
            Op(1, "relu_1", "relu", ("Relu_1",), "k1", live_bytes=900),
            Op(2, "conv_2", "conv", ("Conv_2", "Bias_2"), "k2", live_bytes=1000),
            Op(3, "add_3", "add", ("Add_3",), "k3", live_bytes=600),
        ),
        tensors=(
            Tensor(0, "x", None, (0,), (25,), "float32", 100),
            Tensor(1, "skip", 0, (1, 3), (100,), "float32", 400),
            Tensor(2, "mid", 1, (2,), (100,), "float32", 400),
            Tensor(3, "wide", 2, (3,), (100,), "float32", 400),
            Tensor(4, "y", 3, (), (50,), "float32", 200),
        ),
        constants=(Constant("w0", (0,), 1000), Constant("w2", (2,), 2000)),
        inputs=(0,),
        outputs=(4,),
    )


@pytest.fixture
def machine() -> Machine:
    """Two cores; what a stage may use are each of them, and both together."""
    return Machine("pair", (Device("cores:0", cpus=(0,)), Device("cores:1", cpus=(1,))))


@pytest.fixture
def origin() -> Origin:
    """Where the times are from."""
    host = HostInfo(cpu="Test CPU", arch="x86_64", system="Linux", cores=2, features="abcd1234")
    return Origin(host=host, tvm="0.27.0", lowering="feed", targets=(("cores:0", "llvm"),))


ProfileMaker = Callable[[Mapping[str, tuple[float, ...]]], ProfileTable]


@pytest.fixture
def profile_of(graph: OpGraph, machine: Machine, origin: Origin) -> ProfileMaker:
    """A table from milliseconds: for each option ("cores:0", ...) one time an op."""

    def make(times_ms: Mapping[str, tuple[float, ...]]) -> ProfileTable:
        threads = {device.name: device.threads for device in options_of(machine)}
        return ProfileTable(
            origin=origin,
            ops={
                OpKey(op.signature, name, threads[name]): Measurement(ms * 1e-3, 0.0, 10)
                for name, row in times_ms.items()
                for op, ms in zip(graph.ops, row, strict=True)
            },
            handover=Handover(HOP_S, 0.0, HOP_S, 0.0),
        )

    return make


@pytest.fixture
def profile(profile_of: ProfileMaker) -> ProfileTable:
    """Each core is good at one half of the model, so that cutting between pays.

    Cut between relu_1 and conv_2: stage 0 computes 1 + 1 ms, receives x (0.1 ms), sends skip and
    mid (0.2 ms); stage 1 computes 1 + 1 ms, receives two (0.2 ms), sends y (0.1 ms): 2.3 ms each.
    One core takes 12 ms and 0.2 ms for x and y, replicas on both half of that, 6.1 ms, and both
    cores on each op 8.2 ms.
    """
    return profile_of(
        {
            "cores:0": (1.0, 1.0, 5.0, 5.0),
            "cores:1": (5.0, 5.0, 1.0, 1.0),
            "cores:0-1": (2.0, 2.0, 2.0, 2.0),
        }
    )


@pytest.fixture
def problem(graph: OpGraph, profile: ProfileTable, machine: Machine) -> Problem:
    """What is solved for these."""
    return build_problem(graph, profile, machine)


@pytest.fixture
def plan(graph: OpGraph, machine: Machine, profile: ProfileTable, problem: Problem) -> Plan:
    """The best plan: conv_0 and relu_1 on core 0, conv_2 and add_3 on core 1."""
    return make_plan(graph, machine, profile, problem, choose(problem))


@pytest.fixture(autouse=True)
def _own_host() -> Iterator[None]:
    """What one test pretends of the host is not remembered for the next."""
    host_info.cache_clear()
    yield
    host_info.cache_clear()
