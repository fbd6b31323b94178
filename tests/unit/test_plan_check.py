from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from partitioner.errors import PlanError
from partitioner.graph import OpGraph
from partitioner.machine import Device, Machine
from partitioner.plan import Placement, Plan, Stage
from partitioner.plan_check import assignment_of, device_for, stage_tensors, verify_plan

Checker = Callable[..., None]


@pytest.fixture
def check(plan: Plan, graph: OpGraph, machine: Machine) -> Checker:
    """Verify the plan with its stages given as (ops, device, cpus) rows instead."""

    def run(*rows: tuple[str, str, tuple[int, ...]], **changes: object) -> None:
        stages = tuple(
            Stage(tuple(ops.split()), (Placement(device, cpus),)) for ops, device, cpus in rows
        )
        verify_plan(replace(plan, stages=stages or plan.stages, **changes), graph, machine)

    return run


def test_good_plans(check: Checker) -> None:
    check()
    check(("conv_0 relu_1 conv_2 add_3", "cores:1", (1,)))
    check(("conv_0 relu_1 conv_2 add_3", "cores:0-1", (0, 1)))
    check(("conv_0", "cores:1", (1,)), ("relu_1 conv_2 add_3", "cores:0", (0,)))
    # Within a stage the order of the names is nothing: ops run in module order.
    check(("relu_1 conv_0", "cores:1", (1,)), ("add_3 conv_2", "cores:0", (0,)))


def test_another_model(check: Checker, graph: OpGraph) -> None:
    with pytest.raises(
        PlanError, match=rf"for model 'tiny' \(graph 0bad\), this is 'tiny' \(graph {graph.hash}\)"
    ):
        check(graph_hash="0bad")


def test_an_edge_that_goes_back_names_both_ops(check: Checker) -> None:
    with pytest.raises(
        PlanError, match=r"'conv_0' in stage 1 feeds 'relu_1' in the earlier stage 0; move one"
    ):
        check(("relu_1", "cores:0", (0,)), ("conv_0 conv_2 add_3", "cores:1", (1,)))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("conv_0 relu_1", "relu_1 conv_2 add_3", "'relu_1' is in stage 0 and again in stage 1"),
        ("conv_0 conv_0 relu_1", "conv_2 add_3", "'conv_0' is in stage 0 and again in stage 0"),
        ("conv_0", "conv_2", "2 of 4 ops are in no stage, the first is 'relu_1'"),
        ("conv_0 pool", "relu_1", r"stage 0 lists op 'pool', which .* its ops are conv_0, relu_1"),
        ("conv_0 relu_1 conv_2 add_3", "", "stage 1 has no ops; remove it"),
    ],
)
def test_each_op_once(check: Checker, first: str, second: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check((first, "cores:0", (0,)), (second, "cores:1", (1,)))


HALVES = ("conv_0 relu_1", "conv_2 add_3")


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            [("cores:0", (0,)), ("cores:7", (7,))],
            "needs a device that is absent: .*no device 'cores:7'; it has cores:0, cores:1",
        ),
        ([("cores:0", (0,)), ("cores:0", (0,))], "core 0 is given to stage 0 and again to stage 1"),
        ([("cores:0-1", (0, 1)), ("cores:1", (1,))], "core 1 is given to stage 0 and again"),
        ([("cores:0", (1,)), ("cores:1", (1,))], "wants core 1 of device 'cores:0', which has 0"),
        (
            [("cores:0", ()), ("cores:1", (1,))],
            "stage 0 has no cores of device 'cores:0'; give it some of 0",
        ),
        (
            [("cores:0-1", (0,)), ("cores:1", (1,))],
            "stage 0 is on 'cores:0-1', all cores joined, with core 0; give it all",
        ),
    ],
)
def test_placements(
    check: Checker, places: list[tuple[str, tuple[int, ...]]], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        check(*[(ops, *place) for ops, place in zip(HALVES, places, strict=True)])


def test_an_accelerator_serves_one_stage(plan: Plan, graph: OpGraph) -> None:
    machine = Machine("m", (Device("cuda:0", kind="cuda", memory="vram"),))
    stages = tuple(Stage(tuple(ops.split()), (Placement("cuda:0", ()),)) for ops in HALVES)
    with pytest.raises(PlanError, match="device 'cuda:0' is given to stage 0 and again to stage 1"):
        verify_plan(replace(plan, stages=stages), graph, machine)


def test_a_stage_without_placement(plan: Plan, graph: OpGraph, machine: Machine) -> None:
    bare = replace(plan.stages[1], placements=())
    with pytest.raises(PlanError, match="stage 1 has no placement; give it a device"):
        verify_plan(replace(plan, stages=(plan.stages[0], bare)), graph, machine)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_shares(plan: Plan, graph: OpGraph, machine: Machine, share: float) -> None:
    placement = Placement("cores:1", (1,), share=share)
    odd = replace(plan.stages[1], placements=(placement,))
    with pytest.raises(PlanError, match=f"stage 1: share {share} must be above 0 and at most 1"):
        verify_plan(replace(plan, stages=(plan.stages[0], odd)), graph, machine)


def test_pins(plan: Plan, graph: OpGraph, machine: Machine) -> None:
    pinned = replace(graph, ops=(*graph.ops[:3], replace(graph.ops[3], pinned_to="cores:0")))
    with pytest.raises(PlanError, match="'add_3' is pinned to 'cores:0' but stage 1 runs on"):
        verify_plan(plan, pinned, machine)


def test_devices_by_name(machine: Machine) -> None:
    assert device_for(machine, Placement("cores:1", (1,))) == machine.devices[1]
    assert device_for(machine, Placement("cores:0-1", (0, 1))) == machine.all_cores()


def test_assignment(plan: Plan, graph: OpGraph) -> None:
    assert assignment_of(plan, graph) == (0, 0, 1, 1)


def test_stage_tensors_go_straight_to_who_needs_them(graph: OpGraph) -> None:
    # skip (1) leaves stage 0 for both others; mid (2) and wide (3) go one stage on; y (4) leaves.
    assert stage_tensors(graph, (0, 1, 1, 2)) == (
        ((0,), (1,)),
        ((1,), (3,)),
        ((1, 3), (4,)),
    )
    assert stage_tensors(graph, (0, 0, 0, 0)) == (((0,), (4,)),)


def test_a_model_input_read_twice_enters_both_stages(graph: OpGraph) -> None:
    x = replace(graph.tensors[0], consumers=(0, 2))
    both = replace(graph, tensors=(x, *graph.tensors[1:]))
    entering = [enter for enter, _ in stage_tensors(both, (0, 0, 1, 1))]
    assert entering == [(0,), (0, 1, 2)]
