from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from partitioner.cost import build_problem, op_keys, options_of
from partitioner.cost.estimate import estimate_profile
from partitioner.errors import DeviceError, GraphError, ProblemError, ProfileError
from partitioner.evaluation import evaluate
from partitioner.graph import Constant, OpGraph
from partitioner.machine import Device, Link, Machine, MemoryPool
from partitioner.problem import LatencyModel, Objective, Problem
from partitioner.profiling.table import Handover, Measurement, OpKey, Origin, ProfileTable

ProfileMaker = Callable[..., ProfileTable]


def test_options_are_the_devices_and_all_cores(machine: Machine) -> None:
    assert [device.name for device in options_of(machine)] == ["cores:0", "cores:1", "cores:0-1"]
    assert options_of(Machine.of("cores:0")) == (Device("cores:0", cpus=(0,)),)


def test_keys_of_what_planning_needs(graph: OpGraph, machine: Machine) -> None:
    keys = op_keys(graph, options_of(machine))
    assert len(keys) == 12
    assert OpKey("k2", "cores:1", 1) in keys
    assert OpKey("k2", "cores:0-1", 2) in keys


def test_times_with_host_time_an_op(
    graph: OpGraph, machine: Machine, profile: ProfileTable
) -> None:
    table = replace(profile, host_s={("cores:1", 1): 1e-5})
    problem = build_problem(graph, table, machine)
    assert problem.option_names == ("cores:0", "cores:1", "cores:0-1")
    np.testing.assert_allclose(
        problem.time_s * 1e3,
        [[1, 5.01, 2], [1, 5.01, 2], [5, 1.01, 2], [5, 1.01, 2]],
    )
    assert problem.allowed.all()
    assert problem.max_stages == 2


def test_the_joined_cores_exclude_each_of_them(problem: Problem) -> None:
    assert problem.uses.tolist() == [[1, 0], [0, 1], [1, 1]]
    assert problem.capacity.tolist() == [1, 1]


def test_tensors_and_constants(problem: Problem) -> None:
    assert problem.producer.tolist() == [-1, 0, 1, 2, 3]
    assert problem.consumers == ((0,), (1, 3), (2,), (3,), ())
    assert problem.to_caller.tolist() == [False, False, False, False, True]
    assert problem.tensor_bytes.tolist() == [100, 400, 400, 400, 200]
    assert problem.constant_bytes.tolist() == [1000, 2000]
    assert problem.constant_ops == ((0,), (2,))


def test_period_of_the_cut_by_hand(problem: Problem) -> None:
    # See the `profile` fixture: each stage 2 ms of ops and three ends of hops.
    cut = evaluate(problem, (0, 0, 1, 1), ((0,), (1,)))
    assert cut.period_s == pytest.approx(2.3e-3)
    assert cut.compute_s == ((pytest.approx(2e-3),), (pytest.approx(2e-3),))
    assert cut.feasible


def test_bytes_are_priced(graph: OpGraph, machine: Machine, profile: ProfileTable) -> None:
    table = replace(profile, handover=Handover(1e-4, 1e-6, 2e-4, 1e-7))
    cut = evaluate(build_problem(graph, table, machine), (0, 0, 1, 1), ((0,), (1,)))
    # Stage 0 sends skip and mid: 2 (0.1 ms + 400 us); receives x: 0.2 ms + 10 us.
    assert cut.send_s[0][0] == pytest.approx(2 * (1e-4 + 400e-6))
    assert cut.recv_s[0][0] == pytest.approx(2e-4 + 10e-6)


def test_latency_runs_serially(graph: OpGraph, machine: Machine, profile: ProfileTable) -> None:
    problem = build_problem(graph, profile, machine, objective=Objective.LATENCY)
    assert problem.latency_model is LatencyModel.SERIAL
    # Two stages of 2.3 ms.
    assert evaluate(problem, (0, 0, 1, 1), ((0,), (1,))).latency_s == pytest.approx(4.6e-3)


def test_times_beside_busy_cores(graph: OpGraph, machine: Machine, profile: ProfileTable) -> None:
    key = OpKey("k0", "cores:0", 1)
    slow = replace(
        profile,
        contended={key: Measurement(1.7e-3, 0.0, 9)},
        contended_host_s={("cores:0", 1): 1e-4},
    )
    quiet = build_problem(graph, slow, machine)
    busy = build_problem(graph, slow, machine, contended=True)
    assert quiet.time_s[0, 0] == pytest.approx(1.0e-3)
    assert busy.time_s[0, 0] == pytest.approx(1.8e-3)
    # What has no such time keeps the one it has.
    assert np.array_equal(busy.time_s[:, 1:], quiet.time_s[:, 1:])
    with pytest.raises(ProfileError, match="no times taken while other cores were busy"):
        build_problem(graph, profile, machine, contended=True)


def test_missing_times(
    graph: OpGraph, machine: Machine, profile_of: ProfileMaker, profile: ProfileTable
) -> None:
    lacking = replace(profile, ops={k: v for k, v in profile.ops.items() if k.device != "cores:1"})
    with pytest.raises(
        ProfileError, match=r"lacks 4 of the times that 'tiny' needs, .* 'conv_0' on 'cores:1'"
    ):
        build_problem(graph, lacking, machine)
    with pytest.raises(ProfileError, match="no hand-over cost; profile again"):
        build_problem(graph, replace(profile, handover=None), machine)


def test_pins(graph: OpGraph, machine: Machine, profile: ProfileTable) -> None:
    in_graph = replace(graph, ops=(replace(graph.ops[0], pinned_to="cores:0"), *graph.ops[1:]))
    problem = build_problem(in_graph, profile, machine, pins={"Bias_2": "cores:1"})
    assert problem.allowed.tolist() == [
        [True, False, False],
        [True, True, True],
        [False, True, False],
        [True, True, True],
    ]
    with pytest.raises(
        GraphError, match=r"'relu_1' is pinned to 'gpu'; the devices are cores:0, cores:1, cores:0-"
    ):
        build_problem(graph, profile, machine, pins={"relu_1": "gpu"})
    with pytest.raises(GraphError, match="no op or source node 'pool'"):
        build_problem(graph, profile, machine, pins={"pool": "cores:0"})


def test_groups_caps_and_second_objective(
    graph: OpGraph, machine: Machine, profile: ProfileTable
) -> None:
    problem = build_problem(
        graph,
        profile,
        machine,
        colocate=[["conv_0", "conv_2"]],
        second=Objective.COPIES,
        period_cap_s=0.5,
        latency_cap_s=0.25,
    )
    assert problem.colocate == ((0, 2),)
    assert problem.second is Objective.COPIES
    assert (problem.period_cap_s, problem.latency_cap_s) == (0.5, 0.25)
    with pytest.raises(GraphError, match="nothing"):
        build_problem(graph, profile, machine, colocate=[["conv_0", "nothing"]])
    with pytest.raises(ProblemError, match="period_cap_s is nan"):
        build_problem(graph, profile, machine, period_cap_s=float("nan"))


def test_budgets_by_pool_or_device(graph: OpGraph, profile: ProfileTable) -> None:
    split = Machine(
        "split",
        (Device("cores:0", cpus=(0,), memory="fast"), Device("cores:1", cpus=(1,))),
        (MemoryPool("fast", 50), MemoryPool("host")),
    )
    problem = build_problem(graph, profile, split)
    assert problem.option_names == ("cores:0", "cores:1")
    assert problem.pool_of.tolist() == [0, 1]
    assert problem.pool_bytes.tolist() == [50, np.inf]
    given = build_problem(graph, profile, split, memory_budgets={"host": 70, "cores:0": 60})
    assert given.pool_bytes.tolist() == [60, 70]
    with pytest.raises(
        DeviceError, match=r"names 'ram'; the pools are fast, host, the devices cores:0, cores:1"
    ):
        build_problem(graph, profile, split, memory_budgets={"ram": 1})
    with pytest.raises(ProblemError, match="memory budgets must be zero or more"):
        build_problem(graph, profile, split, memory_budgets={"host": -1})


def test_stage_memory_by_hand(problem: Problem) -> None:
    # Stage 0: w0, the larger of 500 and 900 alive, x four times. Stage 1: w2, 1000, and skip and
    # mid four times.
    cut = evaluate(problem, (0, 0, 1, 1), ((0,), (1,)))
    assert cut.stage_bytes == (1000 + 900 + 4 * 100, 2000 + 1000 + 4 * 800)


def test_max_stages(graph: OpGraph, machine: Machine, profile: ProfileTable) -> None:
    assert build_problem(graph, profile, machine, max_stages=1).max_stages == 1
    with pytest.raises(ProblemError, match="max_stages is 0; it must be at least 1"):
        build_problem(graph, profile, machine, max_stages=0)


def test_estimate_is_a_roofline(graph: OpGraph, machine: Machine, origin: Origin) -> None:
    # conv_0: 2e7 floating-point operations, 1 ms at 20 GFLOP/s. relu_1 moves 800 B.
    heavy = replace(
        graph,
        ops=(replace(graph.ops[0], flops=2e7), *graph.ops[1:]),
        constants=(Constant("w2", (2,), 8_000_000),),
    )
    table = estimate_profile(heavy, options_of(machine), origin)
    assert table.estimated
    assert {row.runs for row in table.ops.values()} == {0}
    kernel_s = 2e-6
    one, both = (OpKey("k0", "cores:0", 1), OpKey("k0", "cores:0-1", 2))
    assert table.time_s(one) == pytest.approx(kernel_s + 1e-3)
    assert table.time_s(both) == pytest.approx(kernel_s + 0.5e-3)
    assert table.time_s(OpKey("k1", "cores:0", 1)) == pytest.approx(kernel_s + 800 / 8e9)
    # conv_2 reads 8 MB of weights and 800 B of tensors at 8 GB/s.
    assert table.time_s(OpKey("k2", "cores:1", 1)) == pytest.approx(kernel_s + 8_000_800 / 8e9)
    assert table.missing(op_keys(heavy, options_of(machine))) == ()
    assert build_problem(heavy, table, machine).n_ops == 4


def test_estimates_are_longer_on_slow_cores(graph: OpGraph, origin: Origin) -> None:
    devices = (Device("big", cpus=(0, 1)), Device("little", cpus=(2, 3), capacity=0.4))
    machine = Machine("m", devices)
    table = estimate_profile(graph, options_of(machine), origin)
    for op in graph.ops:
        for threads in (1, 2):
            big_s = table.time_s(OpKey(op.signature, "big", threads))
            little_s = table.time_s(OpKey(op.signature, "little", threads))
            assert little_s == pytest.approx(big_s / 0.4)
        # All four cores wait for the slow ones.
        together = OpKey(op.signature, "cores:0-3", 4)
        assert table.time_s(together) < table.time_s(OpKey(op.signature, "little", 2))


def test_a_listed_link_takes_its_own_time(
    graph: OpGraph, profile: ProfileTable, machine: Machine
) -> None:
    slow = Machine(
        machine.name, machine.devices, machine.memories, (Link("cores:0", "cores:1", 1e-3, 1e6),)
    )
    problem = build_problem(graph, profile, slow)
    there, back = (0, 1), (1, 0)
    for cost in (problem.send, problem.recv):
        assert cost.seconds(*there, 2000) == pytest.approx(1e-3 + 2e-3)
        assert cost.seconds(*back, 2000) < 1e-3
