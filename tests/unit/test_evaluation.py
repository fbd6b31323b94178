"""Every expected number is worked out by hand in the comment above it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import LatencyModel, Problem, TransferCost

# Three ops in a chain on two devices: 2, 3, 5 s on dev0 and twice that on dev1. The input is of
# 1 unit, the tensors between of 4 and 6, the output of 2.
TIMES = np.array([[2.0, 4.0], [3.0, 6.0], [5.0, 10.0]])
CHAIN = [
    (-1, (0,), 1.0, False),
    (0, (1,), 4.0, False),
    (1, (2,), 6.0, False),
    (2, (), 2.0, True),
]
# Send 0.1 s + 0.01 s a unit, receive 0.2 s + 0.02 s a unit, whoever is at the ends.
SEND, RECV = uniform(2, 0.1, 0.01), uniform(2, 0.2, 0.02)


def one_way(m: int, entries: dict[tuple[int, int], float]) -> TransferCost:
    """Seconds a unit between the given ends only."""
    per_unit = np.zeros((m + 1, m + 1))
    for ends, value in entries.items():
        per_unit[ends] = value
    return TransferCost(np.zeros((m + 1, m + 1)), per_unit)


def test_chain_with_copies() -> None:
    problem = build(TIMES, CHAIN, send=SEND, recv=RECV, host_s=np.array([0.5, 0.25]))
    found = evaluate(problem, (0, 1, 1), ((1,), (0,)))
    assert found.feasible
    # Stage 0: op0 on dev1 4; receives the input 0.2 + 1 * 0.02 = 0.22; sends 4 units
    # 0.1 + 0.04 = 0.14; host 0.25: 4.61. Stage 1: ops 3 + 5 = 8; receives 4 units
    # 0.2 + 0.08 = 0.28; sends the output 0.1 + 0.02 = 0.12; host 0.5: 8.9.
    assert found.compute_s == ((4.0,), (8.0,))
    assert found.recv_s[0][0] == pytest.approx(0.22)
    assert found.send_s[0][0] == pytest.approx(0.14)
    assert found.busy_s[0][0] == pytest.approx(4.61)
    assert found.busy_s[1][0] == pytest.approx(8.9)
    assert found.period_s == pytest.approx(8.9)
    assert found.bottleneck == "stage 1"
    # The caller sends the input 0.1 + 0.01 = 0.11 and receives the output 0.2 + 0.04 = 0.24.
    assert dict(found.link_s) == {"caller": pytest.approx(0.35)}
    # One after the other, without a link: 4.61 + 8.9.
    assert found.latency_s == pytest.approx(13.51)


def listed(problem: Problem, stage_of: tuple[int, ...], options: tuple[int, ...]) -> float:
    free = dataclasses.replace(problem, contiguous=False, latency_model=LatencyModel.LIST)
    return evaluate(free, stage_of, [(option,) for option in options]).latency_s


# op0 feeds op1 and op2, op3 reads both; all tensors are of 1 unit, the last is an output.
BRANCHES = [
    (-1, (0,), 1.0, False),
    (0, (1, 2), 1.0, False),
    (1, (3,), 1.0, False),
    (2, (3,), 1.0, False),
    (3, (), 1.0, True),
]
BRANCH_TIMES = np.array([[1.0, 9.0, 9.0], [2.0, 9.0, 9.0], [9.0, 4.0, 9.0], [1.0, 9.0, 9.0]])


def test_list_latency_of_one_stage_is_the_sum() -> None:
    problem = build(BRANCH_TIMES, BRANCHES, send=uniform(3, 0.1, 0.01), recv=uniform(3, 0.2, 0.02))
    # 0.22 to receive the input, 1 + 2 + 9 + 1, 0.11 to send the output.
    assert listed(problem, (0, 0, 0, 0), (0,)) == pytest.approx(13.33)


def test_list_latency_overlaps_stages_op_by_op() -> None:
    problem = build(BRANCH_TIMES, BRANCHES, send=uniform(3, 0.1, 0), recv=uniform(3, 0.2, 0))
    # dev0: receives 0.2, op0 to 1.2, sends to 1.3, op1 to 3.3. dev1: receives to 1.5, op2 to 5.5,
    # sends to 5.6. dev0: waits, receives to 5.8, op3 to 6.8, sends the output to 6.9.
    assert listed(problem, (0, 0, 1, 0), (0, 1)) == pytest.approx(6.9)


def test_list_latency_keeps_the_order_of_ops() -> None:
    # op0 and op1 on dev0 go before op2 there although op1 waits for nobody and op2 is sooner done.
    tensors = [(0, (3,), 1.0, False), (1, (3,), 1.0, False), (2, (3,), 1.0, False)]
    times = np.array([[3.0, 9.0], [4.0, 9.0], [1.0, 9.0], [9.0, 2.0]])
    # 3 + 4 + 1 on dev0, then 2 on dev1.
    assert listed(build(times, tensors), (0, 0, 0, 1), (0, 1)) == pytest.approx(10.0)


@pytest.mark.parametrize(("once", "latency"), [(False, 6.3), (True, 5.9)])
def test_list_latency_sends_a_tensor_once_or_to_each(once: bool, latency: float) -> None:
    times = np.array([[1.0, 9.0, 9.0], [9.0, 4.0, 9.0], [9.0, 9.0, 4.0]])
    tensors = [(0, (1, 2), 1.0, False)]
    problem = build(times, tensors, send=uniform(3, 0.4, 0), recv=uniform(3, 0.5, 0))
    problem = dataclasses.replace(problem, send_once=once)
    # op0 to 1; sent to dev1 at 1.4 and to dev2 at 1.8, or to both at 1.4; 0.5 to receive, 4 to run.
    assert listed(problem, (0, 1, 2), (0, 1, 2)) == pytest.approx(latency)


def test_list_latency_receives_once_for_all_readers_of_a_stage() -> None:
    times = np.array([[1.0, 9.0], [9.0, 2.0], [9.0, 3.0]])
    problem = build(times, [(0, (1, 2), 1.0, False)], recv=uniform(2, 0.5, 0))
    # 1, then 0.5 to receive, 2 and 3.
    assert listed(problem, (0, 1, 1), (0, 1)) == pytest.approx(6.5)


@pytest.mark.parametrize(("bus", "latency"), [(-1, 6.5), (0, 8.0)])
def test_list_latency_has_links_carry_one_tensor_at_a_time(bus: int, latency: float) -> None:
    # op0 on dev0 feeds op1 on dev1 and op2 on dev2, each link takes 1.5 s.
    times = np.array([[1.0, 9.0, 9.0], [9.0, 3.0, 9.0], [9.0, 9.0, 4.0]])
    problem = build(times, [(0, (1, 2), 1.0, False)], link=uniform(3, 1.5, 0))
    problem = dataclasses.replace(problem, bus_of=np.full((4, 4), bus))
    # Links of their own: both arrive at 2.5, op2 ends at 6.5. One bus: the second arrives at 4.
    assert listed(problem, (0, 1, 2), (0, 1, 2)) == pytest.approx(latency)


def test_list_latency_of_a_host_and_of_an_output_on_its_link() -> None:
    times = np.array([[2.0, 9.0], [9.0, 3.0]])
    tensors = [(0, (1,), 1.0, True), (1, (), 1.0, False)]
    link = one_way(2, {(0, 2): 20.0})
    problem = build(times, tensors, host_s=np.array([0.5, 4.0]), link=link)
    # dev0: 0.5 + 2 = 2.5, and the output is on its way to 22.5. dev1: from 4 to 7.
    assert listed(problem, (0, 1), (0, 1)) == pytest.approx(22.5)
    without = dataclasses.replace(problem, link=TransferCost.zero(2))
    assert listed(without, (0, 1), (0, 1)) == pytest.approx(7.0)


def test_list_latency_needs_a_free_problem() -> None:
    with pytest.raises(ProblemError, match="set contiguous=False"):
        build(BRANCH_TIMES, BRANCHES, latency_model=LatencyModel.LIST)


def test_uncut_model_pays_the_caller_alone() -> None:
    found = evaluate(build(TIMES, CHAIN, send=SEND, recv=RECV), (0, 0, 0), ((0,),))
    # 2 + 3 + 5 = 10; the input in 0.22; the output out 0.12.
    assert found.period_s == found.latency_s == pytest.approx(10.34)


# op0's tensor of 4 units is read by op1 and op2, each in a stage of its own.
SKIP = [(0, (1, 2), 4.0, False), (1, (2,), 6.0, False), (2, (), 2.0, False)]
THREE = np.array([[2.0] * 3, [3.0] * 3, [5.0] * 3])


@pytest.mark.parametrize(("once", "sent"), [(False, 0.28), (True, 0.14)])
def test_a_skip_goes_straight_to_its_stage(once: bool, sent: float) -> None:
    problem = build(
        THREE, SKIP, send=uniform(3, 0.1, 0.01), recv=uniform(3, 0.2, 0.02), send_once=once
    )
    found = evaluate(problem, (0, 1, 2), ((0,), (1,), (2,)))
    # Stage 0 sends 0.1 + 0.04 = 0.14 to each of two stages, or once to a memory both read.
    assert found.send_s[0][0] == pytest.approx(sent)
    # Stage 1 receives the 4 units (0.28) and sends its 6 (0.16): nothing passes through it.
    assert found.recv_s[1][0] == pytest.approx(0.28)
    assert found.send_s[1][0] == pytest.approx(0.16)
    # Stage 2 receives both: 0.28 + 0.2 + 0.12 = 0.6.
    assert found.recv_s[2][0] == pytest.approx(0.6)


def test_a_tensor_is_received_once_by_a_stage_with_two_readers() -> None:
    problem = build(THREE, SKIP, recv=uniform(3, 0.2, 0.02))
    found = evaluate(problem, (0, 1, 1), ((0,), (1,)))
    assert found.recv_s[1][0] == pytest.approx(0.28)


def test_send_once_pays_the_dearest_reader() -> None:
    # To dev1 4 * 0.1 = 0.4 s, to dev2 4 * 0.3 = 1.2 s.
    send = one_way(3, {(0, 1): 0.1, (0, 2): 0.3})
    placements = ((0,), (1,), (2,))
    each = evaluate(build(THREE, SKIP, send=send), (0, 1, 2), placements)
    once = evaluate(build(THREE, SKIP, send=send, send_once=True), (0, 1, 2), placements)
    assert each.send_s[0][0] == pytest.approx(1.6)
    assert once.send_s[0][0] == pytest.approx(1.2)


def test_replicas_of_unequal_speed() -> None:
    found = evaluate(build(TIMES, CHAIN), (0, 0, 0), ((0, 1),))
    # 10 s on dev0 and 20 s on dev1: 1 / (1/10 + 1/20) = 20/3 a period; latency of the slower.
    assert found.busy_s == ((10.0, 20.0),)
    assert found.period_s == pytest.approx(20 / 3)
    assert found.latency_s == 20.0


def test_an_option_of_replicas_is_that_many_stages() -> None:
    problem = build(
        TIMES,
        CHAIN,
        send=SEND,
        recv=RECV,
        replicas=np.array([1, 3]),
        uses=np.array([[1], [3]]),
        capacity=np.array([4]),
        live_bytes=np.array([7.0, 0.0, 0.0]),
        queue_slots=2,
        pool_bytes=np.array([100.0]),
    )
    found = evaluate(problem, (0, 1, 1), ((1,), (0,)))
    # Stage 0 is busy 4 + 0.22 in + 0.14 out = 4.36 for an item, on one of three replicas.
    assert found.busy_s[0] == (pytest.approx(4.36),) * 3
    assert found.stage_period_s[0] == pytest.approx(4.36 / 3)
    # Stage 1: 8 + 0.28 + 0.12 = 8.4. An item passes one replica: 4.36 + 8.4.
    assert found.latency_s == pytest.approx(12.76)
    # Each replica holds the live 7 and two slots of the input of 1; stage 1 two slots of 4.
    assert found.pool_bytes == (3 * 9.0 + 8.0,)
    assert (found.memory_bytes, found.devices, found.copies) == (35.0, 4, 1)
    assert found.feasible


def test_a_host_core_adds_up_the_stages_it_drives() -> None:
    problem = build(TIMES, CHAIN, host_s=np.array([6.0, 5.0]), host_core=np.array([2, 2]))
    found = evaluate(problem, (0, 1, 1), ((1,), (0,)))
    # Stages 4 + 5 = 9 and 8 + 6 = 14; the core that drives both 6 + 5 = 11.
    assert found.period_s == 14.0
    assert dict(found.link_s) == {"host core 2": 11.0}
    # Items alternate between two replicas of one option, each with half of its 6.
    found = evaluate(problem, (0, 0, 0), ((0, 0),))
    assert dict(found.link_s) == {"host core 2": 6.0}


def test_caps_are_violated_when_exceeded() -> None:
    problem = build(TIMES, CHAIN, period_cap_s=9.0, latency_cap_s=13.0)
    assert evaluate(problem, (0, 1, 1), ((1,), (0,))).feasible  # 8 and 4 + 8
    # On dev1 the last two take 16, after 2.
    assert evaluate(problem, (0, 1, 1), ((0,), (1,))).violations == (
        "the period is 16 s; its cap is 9 s",
        "the latency is 18 s; its cap is 13 s",
    )


def test_free_stages_may_go_back() -> None:
    problem = build(TIMES, CHAIN, send=SEND, recv=RECV)
    back = ((0, 1, 0), ((0,), (1,)))
    assert "op 'op1' in stage 1 feeds 'op2'" in evaluate(problem, *back).violations[0]
    found = evaluate(dataclasses.replace(problem, contiguous=False), *back)
    assert found.feasible
    # Stage 0: 2 + 5, in 0.22 and 0.2 + 0.12, out 0.14 and 0.12: 7.8. Stage 1: 6, in 0.28,
    # out 0.16: 6.44. One item passes stage 0 twice: the sum.
    assert found.period_s == pytest.approx(7.8)
    assert found.latency_s == pytest.approx(14.24)
    assert found.copies == 2


def test_replicas_exchange_with_the_average_peer() -> None:
    # op0 on dev2 sends 4 units to one of dev0 (0.1 s a unit) and dev1 (0.3 s a unit) in turn.
    send = one_way(3, {(2, 0): 0.1, (2, 1): 0.3})
    found = evaluate(build(THREE, SKIP, send=send), (0, 1, 1), ((2,), (0, 1)))
    # (0.4 + 1.2) / 2
    assert found.send_s[0][0] == pytest.approx(0.8)


def test_memory() -> None:
    problem = build(
        THREE,
        SKIP,
        constant_bytes=np.array([100.0, 10.0, 1.0]),
        constant_ops=((0, 1), (1, 2), (2,)),
        live_bytes=np.array([7.0, 5.0, 9.0]),
        queue_slots=2,
        pool_of=np.array([0, 0, 1]),
        pool_bytes=np.array([250.0, 30.0]),
    )
    found = evaluate(problem, (0, 1, 1), ((0,), (2,)))
    # Stage 0: constant 100, live 7, nothing enters: 107. Stage 1: constants 100 (again, in its
    # own process) + 10 (once for two readers) + 1, live max(5, 9), 2 slots * 4 units: 128.
    assert found.stage_bytes == (107.0, 128.0)
    assert found.pool_bytes == (107.0, 128.0)
    assert found.violations == ("memory pool 1 needs 128 bytes; its budget is 30",)
    # Both in pool 0: 235 of 250. Replicas hold everything twice: 107 + 2 * 128 does not fit.
    assert evaluate(problem, (0, 1, 1), ((0,), (1,))).pool_bytes == (235.0, 0.0)


# op0 feeds op1 and op2, which both feed op3.
DIAMOND = [
    (0, (1, 2), 4.0, False),
    (1, (3,), 6.0, False),
    (2, (3,), 8.0, False),
    (3, (), 2.0, True),
]
FOUR = np.array([[1.0] * 4, [2.0] * 4, [5.0] * 4, [1.0] * 4])


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # Everything in a row: 1 + 2 + 5 + 1, links 0.4 + 0.4 + 0.6 + 0.8 and the output 0.2.
        (LatencyModel.SERIAL, 11.4),
        # The longer branch alone: 1 + 0.4 + 5 + 0.8 + 1 + 0.2.
        (LatencyModel.ATOMIC, 8.4),
    ],
)
def test_latency_of_a_diamond(model: LatencyModel, expected: float) -> None:
    problem = build(FOUR, DIAMOND, link=uniform(4, 0.0, 0.1), latency_model=model)
    found = evaluate(problem, (0, 1, 2, 3), ((0,), (1,), (2,), (3,)))
    assert found.latency_s == pytest.approx(expected)


def test_links_and_buses_carry_load_of_their_own() -> None:
    link = uniform(4, 0.0, 1.0)
    alone = build(FOUR, DIAMOND, link=link)
    found = evaluate(alone, (0, 1, 2, 3), ((0,), (1,), (2,), (3,)))
    # Links by themselves: 4, 4, 6, 8 s and the output 2 s; the 8 s one sets the period.
    assert dict(found.link_s)["link dev0 > dev1"] == 4.0
    assert (found.period_s, found.bottleneck) == (8.0, "link dev2 > dev3")
    bus = np.full((5, 5), -1)
    bus[:4, :4] = 0
    shared = build(FOUR, DIAMOND, link=link, bus_of=bus)
    found = evaluate(shared, (0, 1, 2, 3), ((0,), (1,), (2,), (3,)))
    # One bus for all but the output: 4 + 4 + 6 + 8.
    assert dict(found.link_s) == {"bus 0": 22.0, "link dev3 > caller": 2.0}
    assert (found.period_s, found.bottleneck) == (22.0, "bus 0")


def test_the_caller_can_be_the_bottleneck() -> None:
    # The caller spends 20 s a unit on the input of 1 unit.
    problem = build(TIMES, CHAIN, send=one_way(2, {(2, 0): 20.0}))
    found = evaluate(problem, (0, 0, 0), ((0,),))
    assert (found.period_s, found.bottleneck) == (20.0, "caller")


def test_times_are_infinite_where_replicas_cannot_run() -> None:
    times = np.where(TIMES == 3.0, np.inf, TIMES)
    problem = build(times, CHAIN, replicas=np.array([2, 1]), host_core=np.array([0, -1]))
    found = evaluate(problem, [0, 0, 0], [(0,)])
    assert found.period_s == np.inf
    assert found.violations


@pytest.mark.parametrize(
    ("stage_of", "placements", "says"),
    [
        ((1, 0, 1), ((0,), (1,)), "'op0' in stage 1 feeds 'op1' in the earlier stage 0"),
        ((0, 0, 1), ((0,), (0,)), "resource 0 is used 2 times; there are 1"),
        ((0, 0, 1), ((1,), (0,)), "'op1' of stage 0 cannot run on 'dev1'"),
        ((0, 1, 1), ((0,), (1,)), "ops op0, op1 must share a stage"),
        ((0, 1, 2), ((0,), (1,), (0,)), "3 stages; at most 2 are allowed"),
    ],
)
def test_violations_are_named(
    stage_of: tuple[int, ...], placements: tuple[tuple[int, ...], ...], says: str
) -> None:
    allowed = np.ones((3, 2), dtype=bool)
    allowed[1, 1] = False
    problem = build(TIMES, CHAIN, allowed=allowed, colocate=((0, 1),))
    found = evaluate(problem, stage_of, placements)
    assert not found.feasible
    assert any(says in violation for violation in found.violations)


@pytest.mark.parametrize(
    ("stage_of", "placements", "says"),
    [
        ((0, 0), ((0,),), "2 ops are assigned; the problem has 3"),
        ((0, 0, 1), ((0,),), "'op2' is in stage 1"),
        ((0, 0, 0), ((0,), (1,)), "stage 1 has no ops"),
        ((0, 0, 0), ((),), "stage 0 has no placement"),
        ((0, 0, 0), ((5,),), "placed on option 5"),
    ],
)
def test_what_is_no_assignment_is_refused(
    stage_of: tuple[int, ...], placements: tuple[tuple[int, ...], ...], says: str
) -> None:
    with pytest.raises(ProblemError, match=says):
        evaluate(build(TIMES, CHAIN), stage_of, placements)
