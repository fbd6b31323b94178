"""The simulator against what queueing theory and arithmetic say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from partitioner.errors import InputError, PlanError, ProfileError
from partitioner.graph import OpGraph
from partitioner.machine import Machine
from partitioner.plan import Placement, Plan, Predicted, Stage
from partitioner.profiling.table import ProfileTable
from partitioner.runtime.trace import Records
from partitioner.simulation import Contention, Line, Service, Simulated, simulate

MS = 1e-3


def plan_of(*stages: float | tuple[float, ...], nbytes: float = 1000.0) -> Plan:
    """Stages in a chain; milliseconds of each, or of each of its replicas. A core a replica."""
    made, core = [], 0
    for number, times in enumerate(stages):
        each = times if isinstance(times, tuple) else (times,)
        speed = sum(1 / time for time in each)
        placements = []
        for time in each:
            busy = time * MS
            placements.append(Placement(f"c{core}", (core,), 1 / time / speed, busy, 0.0, busy))
            core += 1
        made.append(Stage((f"op{number}",), tuple(placements), nbytes, nbytes))
    return Plan("m", "graph", "machine", "profile", "pipeline", "period", tuple(made), None)


# Without chance


def test_one_stage_takes_its_busy_time() -> None:
    shown = simulate(plan_of(3.0), items=100)
    assert shown.period_s == pytest.approx(3 * MS)
    assert shown.first_s == pytest.approx(3 * MS)
    assert shown.makespan_s == pytest.approx(300 * MS)
    (worker,) = shown.workers
    assert worker.utilisation == pytest.approx(1.0)
    assert (worker.items, worker.device) == (100, "c0")


def test_a_chain_takes_its_slowest_stage_an_item_and_all_of_them_for_one() -> None:
    shown = simulate(plan_of(1.0, 4.0, 2.0), items=500)
    assert shown.period_s == pytest.approx(4 * MS)
    assert shown.first_s == pytest.approx(7 * MS)
    assert [w.utilisation for w in shown.workers] == pytest.approx([0.25, 1.0, 0.5])
    assert shown.bottleneck.stage == 1
    first, second, last = shown.workers
    # What waits for what: the first for room behind it, the last for items.
    assert (first.blocked_s, first.wait_s) == pytest.approx((3 * MS, 0.0), abs=1e-12)
    assert (second.blocked_s, second.wait_s) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert (last.blocked_s, last.wait_s) == pytest.approx((0.0, 2 * MS), abs=1e-12)
    assert shown.makespan_s == pytest.approx((7 + 499 * 4) * MS)
    assert shown.fill_s == pytest.approx(7 * MS)


def test_queues_hold_their_slots_less_the_item_at_work() -> None:
    # Four slots between stages, of which the consumer keeps the one it works on.
    shown = simulate(plan_of(1.0, 4.0, 2.0), items=500)
    lengths = {queue.before: (queue.mean, queue.most) for queue in shown.queues}
    assert lengths["stage 1"] == (pytest.approx(3.0), 3)
    assert lengths["stage 2"] == (pytest.approx(0.0, abs=1e-9), 0)
    assert lengths["caller"] == (pytest.approx(0.0, abs=1e-9), 0)
    # The caller's queue is 64 deep.
    assert lengths["stage 0"] == (pytest.approx(63.0), 63)
    shallow = simulate(plan_of(1.0, 4.0, 2.0), items=500, queue_slots=2)
    lengths = {queue.before: (queue.mean, queue.most) for queue in shallow.queues}
    assert lengths["stage 1"] == (pytest.approx(1.0), 1)


def test_items_wait_where_the_queue_is() -> None:
    shown = simulate(plan_of(1.0, 4.0, 2.0), items=500)
    waits = {queue.before: queue.wait_s for queue in shown.queues}
    assert waits["stage 1"] == pytest.approx(3 * 4 * MS)
    # Back to back, an item's latency is the pipeline's content at the period's pace: 63 before the
    # first stage, one in it, one in the second and three before, then the last stage.
    assert shown.latency.p50_s == pytest.approx((63 + 1 + 1 + 3) * 4 * MS + 2 * MS)


def test_stages_overlap_even_with_one_slot() -> None:
    # The consumer gives the only slot back when it is done; by then the producer has its next
    # outputs ready in its own memory.
    two = simulate(plan_of(2.0, 2.0), items=200, queue_slots=1)
    assert two.period_s == pytest.approx(2 * MS)
    # With times that vary, a single slot costs: a long time on either side stops the other.
    deep, shallow = (
        simulate(plan_of(2.0, 2.0), items=2000, queue_slots=slots, jitter=0.5) for slots in (8, 1)
    )
    assert shallow.period_s > deep.period_s * 1.1


@pytest.mark.parametrize("count", [2, 3, 5])
def test_equal_replicas_share_items(count: int) -> None:
    shown = simulate(plan_of((6.0,) * count), items=600)
    assert shown.period_s == pytest.approx(6 * MS / count)
    assert shown.first_s == pytest.approx(6 * MS)
    assert [worker.items for worker in shown.workers] == [600 // count] * count


def test_unequal_replicas_share_items_by_speed() -> None:
    # 1 / (1 / 2 + 1 / 6) = 1.5 ms: three items of four go to the fast one.
    shown = simulate(plan_of((2.0, 6.0)), items=800)
    assert shown.period_s == pytest.approx(1.5 * MS)
    assert [worker.items for worker in shown.workers] == [600, 200]
    assert [worker.utilisation for worker in shown.workers] == pytest.approx([1.0, 1.0])


def test_order_is_restored_behind_replicas() -> None:
    # Three replicas whose times vary: the next stage takes hardly any time, and yet what was made
    # early lies before it until the items before have been made too.
    shown = simulate(plan_of((3.0, 3.0, 3.0), 0.01), items=3000, jitter=0.5)
    assert shown.workers[3].utilisation < 0.02
    assert shown.queues[1].wait_s > 1 * MS
    alone = simulate(plan_of(1.0, 0.01), items=3000, jitter=0.5)
    assert alone.queues[1].wait_s < 0.01 * MS


def test_a_skipped_stage_does_not_hold_the_others_up(
    plan: Plan, graph: OpGraph, machine: Machine, profile: ProfileTable
) -> None:
    first, second = plan.stages
    three = replace(
        plan,
        stages=(
            replace(first, ops=("conv_0",)),
            replace(first, ops=("relu_1",), placements=second.placements),
            replace(second, ops=("conv_2", "add_3"), placements=()),
        ),
    )
    machine = Machine(
        "three", (*machine.devices, replace(machine.devices[0], name="cores:2", cpus=(2,)))
    )
    place = replace(first.placements[0], device="cores:2", cpus=(2,))
    three = replace(
        three, stages=(*three.stages[:2], replace(three.stages[2], placements=(place,)))
    )
    line = Line.of(three, graph)
    # `skip` passes stage 1 by.
    assert [len(stage.inputs) for stage in line.spec.stages] == [1, 1, 2]
    shown = simulate(line, items=300)
    assert shown.period_s == pytest.approx(2.3 * MS)
    assert shown.first_s == pytest.approx(3 * 2.3 * MS)


def test_the_callers_copies_are_its_own_stage() -> None:
    spec = Line.of(plan_of(1.0)).spec
    line = Line(spec, (("c0",),), ((Service(1 * MS),),), caller_in_s=2 * MS, caller_out_s=1 * MS)
    shown = simulate(line, items=100)
    assert shown.period_s == pytest.approx(3 * MS)
    assert shown.first_s == pytest.approx(4 * MS)
    assert shown.workers[0].utilisation == pytest.approx(1 / 3)


def test_sends_wait_for_room_and_count_as_busy() -> None:
    spec = Line.of(plan_of(1.0, 1.0)).spec
    services = ((Service(1 * MS, 2 * MS),), (Service(4 * MS),))
    shown = simulate(Line(spec, (("c0",), ("c1",)), services), items=300)
    assert shown.period_s == pytest.approx(4 * MS)
    assert shown.workers[0].busy_s == pytest.approx(3 * MS)
    assert shown.workers[0].blocked_s == pytest.approx(1 * MS)


def test_a_window_bounds_what_is_on_its_way() -> None:
    # Three stages of 2 ms and two items under way: two items every 6 ms.
    shown = simulate(plan_of(2.0, 2.0, 2.0), items=300, window=2)
    assert shown.period_s == pytest.approx(3 * MS)
    assert shown.latency.max_s == pytest.approx(6 * MS)


def test_items_that_come_slowly_meet_an_empty_pipeline() -> None:
    shown = simulate(plan_of(1.0, 4.0, 2.0), items=300, arrivals=5 * MS)
    assert shown.period_s == pytest.approx(5 * MS)
    assert shown.latency.p50_s == pytest.approx(7 * MS)
    assert shown.latency.max_s == pytest.approx(7 * MS)
    assert shown.bottleneck.utilisation == pytest.approx(0.8)


def test_a_plans_own_figures_are_met(
    plan: Plan, graph: OpGraph, machine: Machine, profile: ProfileTable
) -> None:
    # See the `profile` fixture: two stages of 2.3 ms; the caller copies x in and y out.
    for line in (Line.of(plan), Line.of(plan, graph)):
        shown = simulate(line, items=300)
        assert shown.period_s == pytest.approx(2.3 * MS)
        assert shown.first_s == pytest.approx(4.6 * MS)
    priced = Line.priced(plan, graph, machine, profile)
    assert priced.services == (
        (Service(pytest.approx(2.1 * MS), pytest.approx(0.2 * MS)),),
        (Service(pytest.approx(2.2 * MS), pytest.approx(0.1 * MS)),),
    )
    assert (priced.caller_in_s, priced.caller_out_s) == pytest.approx((0.1 * MS, 0.1 * MS))
    assert simulate(priced, items=300).period_s == pytest.approx(2.3 * MS)


# With chance


def test_jitter_is_of_the_mean_and_deviation_asked_for() -> None:
    shown = simulate(plan_of(2.0), items=20000, jitter=0.3)
    assert shown.workers[0].busy_s == pytest.approx(2 * MS, rel=0.01)
    slow = simulate(plan_of(2.0), items=20000, jitter=0.3, arrivals=1.0)
    # Alone in the pipeline, an item's latency is its time: lognormal, so the 99th percentile is
    # exp(2.326 s - s^2 / 2) times the mean where s^2 = log(1 + 0.09).
    assert slow.latency.p99_s == pytest.approx(2 * MS * 1.898, rel=0.03)


def test_percentiles_grow_with_jitter() -> None:
    shown = [
        simulate(plan_of(1.0, 1.8, 1.0), items=5000, jitter=jitter, arrivals=2 * MS)
        for jitter in (0.0, 0.1, 0.3, 0.6)
    ]
    for name in ("p95_s", "p99_s", "max_s"):
        values = [getattr(one.latency, name) for one in shown]
        assert values == sorted(values)
        assert values[-1] > 2 * values[0]


def test_jitter_lets_shallow_queues_cost_throughput() -> None:
    periods = [
        simulate(plan_of(1.0, 1.0, 1.0), items=5000, jitter=0.4, queue_slots=slots).period_s
        for slots in (1, 2, 4, 32)
    ]
    assert periods == sorted(periods, reverse=True)
    assert periods[0] > 1.25 * MS
    assert periods[-1] < 1.05 * MS


def test_waiting_times_are_those_of_pollaczek_and_khinchine() -> None:
    # Poisson arrivals, one stage: mean wait = rate S^2 (1 + cv^2) / (2 (1 - load)).
    load, jitter, service = 0.7, 0.5, 1 * MS
    gaps = np.random.default_rng(7).exponential(service / load, 100_000)
    shown = simulate(plan_of(1.0), items=100_000, jitter=jitter, arrivals=list(np.cumsum(gaps)))
    wait = load / service * service**2 * (1 + jitter**2) / (2 * (1 - load))
    assert shown.latency.mean_s == pytest.approx(service + wait, rel=0.05)
    assert shown.workers[0].utilisation == pytest.approx(load, rel=0.02)


def test_the_seed_decides() -> None:
    def run(seed: int) -> Simulated:
        return simulate(plan_of(1.0, 2.0), items=200, jitter=0.2, seed=seed)

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_measured_records_are_drawn_from() -> None:
    rows = np.array(
        [
            # item, begin, ready, ran, room, sent; nanoseconds
            [0, 0, 0, 1_000_000, 1_000_000, 1_500_000],
            [1, 0, 0, 3_000_000, 9_000_000, 9_500_000],  # waiting for room is not busy
        ]
    )
    shown = simulate(plan_of(7.0, 0.1), items=4000, records=[Records(0, 0, "op0", rows)])
    # Runs of 1 and 3 ms, sends of 0.5 ms: 2.5 ms in the mean.
    assert shown.workers[0].busy_s == pytest.approx(2.5 * MS, rel=0.03)
    assert shown.workers[1].busy_s == pytest.approx(0.1 * MS)


def test_good_and_bad_spells_of_a_run_stay_together() -> None:
    def spells(stage: int, first: float, second: float) -> Records:
        run_ms = np.repeat([first, second] * 8, 200)
        rows = np.zeros((len(run_ms), 6), np.int64)
        rows[:, 3:] = (run_ms * 1e6).astype(np.int64)[:, None]
        return Records(stage, 0, "", rows)

    # Two stages, 2 ms each in the mean. When they are slow at the same time, the period is that.
    plan = plan_of(9.0, 9.0)
    together = simulate(plan, items=8000, records=[spells(0, 1, 3), spells(1, 1, 3)])
    assert together.period_s == pytest.approx(2 * MS, rel=0.1)
    # When they are slow in turn, one of them always is, but for what the queue evens out.
    in_turn = simulate(plan, items=8000, records=[spells(0, 1, 3), spells(1, 3, 1)])
    assert in_turn.period_s > 2.6 * MS


# With contention


def test_workers_that_are_always_busy_slow_one_another_down_all_the_time() -> None:
    shown = simulate(plan_of(2.0, 2.0), items=300, contention=1.5)
    assert shown.period_s == pytest.approx(3 * MS)


def test_contention_lasts_as_long_as_the_other_is_busy() -> None:
    # The second works 1.5 ms an item, always beside the first, whose 2 ms are done at two thirds
    # of the pace during those: 1.5 / 1.5 + (P - 1.5) = 2, so P = 2.5 ms.
    shown = simulate(plan_of(2.0, 1.0), items=300, contention=1.5)
    assert shown.period_s == pytest.approx(2.5 * MS)
    assert shown.workers[1].busy_s == pytest.approx(1.5 * MS)


def test_contention_between_named_devices_is_one_sided() -> None:
    line = Line.of(plan_of(2.0, 2.0))
    only = Contention.between(line, {("c1", "c0"): 1.25})
    shown = simulate(line, items=300, contention=only)
    # The first works 2 ms an item, in which the second gets 1.6 ms done; 0.4 ms are left.
    assert shown.period_s == pytest.approx(2.4 * MS)
    assert shown.workers[0].busy_s == pytest.approx(2 * MS)


def test_contention_is_shared_among_the_others_by_cores() -> None:
    plan = plan_of(2.0, 2.0, 2.0)
    wide = replace(plan.stages[2].placements[0], cpus=(2, 3, 4))
    plan = replace(plan, stages=(*plan.stages[:2], replace(plan.stages[2], placements=(wide,))))
    made = Contention.even(Line.of(plan), 1.8)
    assert made.extra == pytest.approx(
        np.array([[0.0, 0.2, 0.6], [0.2, 0.0, 0.6], [0.4, 0.4, 0.0]])
    )
    by_stage = Contention.even(Line.of(plan), (1.0, 1.0, 1.5))
    assert by_stage.extra[:2].max() == 0.0
    # Both others work 2 ms an item, at the same time: 2 / 1.5 ms get done, the rest is left.
    shown = simulate(plan, items=300, contention=by_stage)
    assert shown.period_s == pytest.approx((2 + 2 - 2 / 1.5) * MS)


def test_contention_from_a_profile(
    plan: Plan, graph: OpGraph, machine: Machine, profile: ProfileTable
) -> None:
    with pytest.raises(ProfileError, match="no times taken while other cores were busy"):
        Contention.measured(plan, graph, machine, profile)
    # Beside busy cores, ops take core 0 half as long again, and core 1 (by noise) less.
    factors = {"cores:0": 1.5, "cores:1": 0.9}
    beside = {
        key: replace(row, median_s=row.median_s * factors[key.device])
        for key, row in profile.ops.items()
        if key.device in factors
    }
    found = Contention.measured(plan, graph, machine, replace(profile, contended=beside))
    # 2 ms of ops and 0.1 ms of copies before the hand-over become 3.1 ms.
    assert found.extra == pytest.approx(np.array([[0.0, 3.1 / 2.1 - 1], [0.0, 0.0]]))


# What is printed, and what is refused


def test_the_table_says_what_was_seen() -> None:
    text = str(simulate(plan_of(1.0, (8.0, 8.0)), items=400))
    lines = text.splitlines()
    assert lines[0].split()[:4] == ["stage", "device", "items", "busy"]
    assert [line.split()[0] for line in lines[2:5]] == ["0.0", "1.0", "1.1"]
    assert "period 4 ms (250.0 items/s), most utilised stage 1" in text
    assert "latency p50" in text
    assert "first result after 9 ms" in text


def test_stages_that_take_no_time() -> None:
    nothing = Line(Line.of(plan_of(1.0)).spec, (("c0",),), ((Service(0.0),),))
    for contention in (None, 1.2):
        shown = simulate(nothing, items=50, contention=contention)
        assert shown.period_s == shown.makespan_s == 0.0
        assert "(inf items/s)" in str(shown)


def test_dispatch_patterns_of_any_lengths() -> None:
    # Cycles of 128 and 125 items or so in a row: their common one is longer than the run.
    plan = plan_of((1.0, 1.37), (1.0, 1.53), (1.0, 1.71))
    shown = simulate(plan, items=400)
    assert shown.period_s == pytest.approx(1 / (1 + 1 / 1.71) * MS, rel=0.02)


def test_data_holds_the_figures() -> None:
    data = simulate(plan_of(1.0, 2.0), items=50).to_data()
    assert data["period_s"] == pytest.approx(2 * MS)
    assert [worker["stage"] for worker in data["workers"]] == [0, 1]
    assert data["latency"]["p50_s"] > 0


def test_stages_side_by_side_are_said_to_be_taken_as_a_chain() -> None:
    predicted = Predicted(2e-3, 2e-3, 2e-3, "OPTIMAL", "dp", "stage 0")
    plan = replace(plan_of(2.0, 1.0), predicted=predicted)
    assert "taken as a chain" in str(simulate(plan, items=10))
    whole = replace(plan, predicted=replace(predicted, latency_s=3e-3))
    assert simulate(whole, items=10).notes == ()


def test_a_bottleneck_at_the_caller_is_kept() -> None:
    predicted = Predicted(5e-3, 3e-3, 5e-3, "OPTIMAL", "dp", "caller")
    plan = replace(plan_of(2.0, 1.0), predicted=predicted)
    assert simulate(plan, items=100).period_s == pytest.approx(5e-3)


def test_edited_plans_need_times(plan: Plan) -> None:
    with pytest.raises(PlanError, match=r"stage 0 has no predicted time.*with a profile, which"):
        simulate(plan.stripped())


def test_a_profile_without_hand_over(
    plan: Plan, graph: OpGraph, machine: Machine, profile: ProfileTable
) -> None:
    with pytest.raises(ProfileError, match="no hand-over cost"):
        Line.priced(plan, graph, machine, replace(profile, handover=None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"items": 1}, "items is 1; at least 2"),
        ({"queue_slots": 0}, "queue_slots is 0; at least 1"),
        ({"window": 0}, "window is 0; at least 1"),
        ({"jitter": -0.1}, "jitter is -0.1"),
        ({"jitter": float("nan")}, "jitter is nan"),
        ({"arrivals": -1.0}, "arrivals are -1.0 s apart"),
        ({"arrivals": float("inf")}, "arrivals are inf s apart"),
        ({"arrivals": [3.0, *range(19)]}, "arrivals go back in time"),
        ({"arrivals": [*range(19), float("inf")]}, "give 20 finite ones"),
        ({"arrivals": [0.0, 1.0]}, r"arrivals are \(2,\) times; give 20"),
        ({"contention": 0.5}, "each 1 or more"),
        ({"records": [Records(4, 0, "", np.zeros((1, 6), np.int64))]}, "records of stage 4"),
        ({"records": [Records(0, 0, "", np.zeros((0, 6), np.int64))]}, "0 records of stage 0"),
    ],
)
def test_wrong_numbers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(plan_of(1.0, 2.0), **{"items": 20, **options})


def test_wrong_contention() -> None:
    line = Line.of(plan_of(1.0, 2.0))
    with pytest.raises(InputError, match="2, one a stage"):
        Contention.even(line, (1.0, 1.0, 1.0))
    with pytest.raises(InputError, match=r"devices \(c0, c1\)"):
        Contention.between(line, {("c0", "gpu"): 2.0})
    with pytest.raises(InputError, match="contention of 3 workers, the pipeline has 2"):
        simulate(line, contention=Contention(np.zeros((3, 3))))
