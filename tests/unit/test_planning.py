from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from partitioner import planning
from partitioner.cost import build_problem
from partitioner.errors import InfeasibleError, NoneFoundError, PartitionerError, PlanError
from partitioner.graph import OpGraph
from partitioner.machine import Device, Machine
from partitioner.plan import Plan
from partitioner.plan_check import verify_plan
from partitioner.planning import Choice, adopt, choose, make_plan
from partitioner.problem import Objective, Problem, Solution
from partitioner.profiling.table import Handover, Measurement, OpKey, Origin, ProfileTable
from partitioner.solvers import single

ProfileMaker = Callable[..., ProfileTable]


@pytest.fixture
def planned(graph: OpGraph, machine: Machine) -> Callable[..., Plan]:
    """The plan for a profile, with options of `build_problem` and `choose`."""

    def run(table: ProfileTable, strategy: str = "best", **options: Any) -> Plan:
        problem = build_problem(graph, table, machine, **options)
        return make_plan(graph, machine, table, problem, choose(problem, strategy=strategy))

    return run


@pytest.fixture
def equal_cores(profile_of: ProfileMaker) -> ProfileTable:
    """Equal cores that gain little from joining: 6 ms on one, 5 ms on both.

    One core 6.2 ms with x and y. Replicas: half of it, 3.1 ms. The best cut is in the middle: 3 ms
    and three ends of hops, 3.3 ms. Both cores: 5.2 ms.
    """
    one = (2.0, 1.0, 2.0, 1.0)
    return profile_of({"cores:0": one, "cores:1": one, "cores:0-1": (1.7, 0.8, 1.7, 0.8)})


@pytest.fixture
def unequal_cores(profile_of: ProfileMaker) -> ProfileTable:
    """A core that another 40 times slower can only hold up: 0.4 ms on the fast one.

    Alone 0.6 ms. Replicas: 1 / (1 / 0.6 + 1 / 16.2) = 0.5786 ms. The best cut gives the slow core
    one op: add_3 takes it 4 ms, receives skip and wide (0.2 ms), sends y (0.1 ms): 4.3 ms; so does
    conv_0: 4 ms, receives x (0.1 ms), sends skip, read by ops of one stage (0.1 ms): 4.2 ms.
    Both cores 0.24 ms of work: 0.44 ms.
    """
    return profile_of({"cores:0": (0.1,) * 4, "cores:1": (4.0,) * 4, "cores:0-1": (0.06,) * 4})


def shape(plan: Plan) -> list[tuple[str, list[str]]]:
    return [
        (" ".join(stage.ops), [place.device for place in stage.placements]) for stage in plan.stages
    ]


WHOLE = "conv_0 relu_1 conv_2 add_3"


def test_the_pipeline_wins(planned: Callable[..., Plan], profile: ProfileTable) -> None:
    # See the `profile` fixture.
    plan = planned(profile)
    assert plan.name == "pipeline"
    assert shape(plan) == [("conv_0 relu_1", ["cores:0"]), ("conv_2 add_3", ["cores:1"])]
    predicted = plan.predicted
    assert predicted is not None
    assert predicted.period_s == pytest.approx(2.3e-3)
    assert predicted.bound_s == pytest.approx(2.3e-3, rel=1e-5)
    assert predicted.status == "OPTIMAL"
    assert not predicted.estimated


def test_the_plan_says_where_its_time_and_bytes_go(plan: Plan) -> None:
    first, second = plan.stages
    assert (first.in_bytes, first.out_bytes) == (100, 800)
    assert (second.in_bytes, second.out_bytes) == (800, 200)
    assert first.leaves == (("skip", 400), ("mid", 400))
    assert second.leaves == (("y", 200),)
    place = first.placements[0]
    assert place.cpus == (0,)
    assert place.share == 1.0
    assert place.compute_s == pytest.approx(2e-3)
    assert place.copy_s == pytest.approx(0.3e-3)
    assert place.busy_s == pytest.approx(2.3e-3)


def test_alternatives_are_there_with_their_figures(plan: Plan) -> None:
    found = {other.name: other.period_s for other in plan.alternatives}
    assert found["single cores:0"] == pytest.approx(12.2e-3)
    assert found["single cores:1"] == pytest.approx(12.2e-3)
    assert found["single cores:0-1"] == pytest.approx(8.2e-3)
    (copies,) = (period for name, period in found.items() if name.startswith("replicas"))
    assert copies == pytest.approx(6.1e-3)


def test_neighbours_are_no_better_and_sorted(plan: Plan) -> None:
    periods = [near.period_s for near in plan.neighbours]
    assert periods
    assert periods == sorted(periods)
    assert plan.predicted is not None
    assert periods[0] >= plan.predicted.period_s * (1 - 1e-9)


def test_replicas_win(planned: Callable[..., Plan], equal_cores: ProfileTable) -> None:
    plan = planned(equal_cores)
    assert plan.name == "replicas"
    assert shape(plan) == [(WHOLE, ["cores:0", "cores:1"])]
    assert [place.share for place in plan.stages[0].placements] == [0.5, 0.5]
    assert plan.predicted is not None
    assert plan.predicted.period_s == pytest.approx(3.1e-3)
    assert plan.predicted.bound_s <= plan.predicted.period_s
    assert plan.predicted.status == "OPTIMAL"


def test_replicas_share_items_by_speed(
    planned: Callable[..., Plan], unequal_cores: ProfileTable
) -> None:
    # The fast core takes 0.6 ms, the slow one 16.2 ms: 27 to 1.
    plan = planned(unequal_cores, "replicas")
    assert [p.share for p in plan.stages[0].placements] == pytest.approx([27 / 28, 1 / 28])
    assert plan.predicted is not None
    assert plan.predicted.period_s == pytest.approx(0.6e-3 * 27 / 28)


def test_all_cores_on_each_op_win(
    planned: Callable[..., Plan], unequal_cores: ProfileTable
) -> None:
    plan = planned(unequal_cores)
    assert plan.name == "single cores:0-1"
    assert shape(plan) == [(WHOLE, ["cores:0-1"])]
    assert plan.stages[0].placements[0].cpus == (0, 1)
    assert plan.predicted is not None
    assert plan.predicted.period_s == pytest.approx(0.44e-3)
    assert plan.predicted.status == "OPTIMAL"


@pytest.mark.parametrize(
    ("strategy", "period_ms"),
    # The arithmetic is in the fixture.
    [("best", 0.44), ("single", 0.44), ("replicas", 0.6 * 27 / 28), ("pipeline", 4.2)],
)
def test_strategies(
    planned: Callable[..., Plan], unequal_cores: ProfileTable, strategy: str, period_ms: float
) -> None:
    plan = planned(unequal_cores, strategy)
    predicted = plan.predicted
    assert predicted is not None
    assert predicted.period_s == pytest.approx(period_ms * 1e-3)
    # The bound is of what was asked for, so what is insisted on is optimal among its kind.
    assert predicted.bound_s == pytest.approx(period_ms * 1e-3)
    assert predicted.status == "OPTIMAL"
    kinds = {"pipeline": "pipeline", "replicas": "replicas"}
    assert plan.name == kinds.get(strategy, "single cores:0-1")


def test_a_pipeline_is_insisted_on(
    planned: Callable[..., Plan], unequal_cores: ProfileTable, equal_cores: ProfileTable
) -> None:
    # The slow core gets what costs least there; an even cut would take 8.3 ms.
    assert shape(planned(unequal_cores, "pipeline")) == [
        ("conv_0", ["cores:1"]),
        ("relu_1 conv_2 add_3", ["cores:0"]),
    ]
    plan = planned(equal_cores, "pipeline")
    assert [ops for ops, _ in shape(plan)] == ["conv_0 relu_1", "conv_2 add_3"]
    assert plan.predicted is not None
    assert plan.predicted.period_s == pytest.approx(3.3e-3)


def test_the_bound_never_exceeds_the_objective(
    planned: Callable[..., Plan],
    profile: ProfileTable,
    equal_cores: ProfileTable,
    unequal_cores: ProfileTable,
) -> None:
    for table in (profile, equal_cores, unequal_cores):
        for strategy in ("best", "pipeline", "single", "replicas"):
            for objective in (Objective.PERIOD, Objective.LATENCY):
                plan = planned(table, strategy, objective=objective)
                assert plan.objective == objective.value
                assert plan.predicted is not None
                value = plan.predicted.value(plan.objective)
                assert plan.predicted.bound_s <= value
                others = [other.value(plan.objective) for other in plan.alternatives]
                if strategy == "best":
                    assert value <= min(others) * (1 + 1e-9)


def test_latency_prefers_both_cores_on_each_op(
    planned: Callable[..., Plan], equal_cores: ProfileTable
) -> None:
    # 5.2 ms; one core 6.2 ms, a cut 6.6 ms.
    plan = planned(equal_cores, objective=Objective.LATENCY)
    assert plan.name == "single cores:0-1"
    assert plan.predicted is not None
    assert plan.predicted.latency_s == pytest.approx(5.2e-3)
    assert plan.predicted.latency_model == "serial"


def test_estimates_are_marked(planned: Callable[..., Plan], profile: ProfileTable) -> None:
    plan = planned(replace(profile, estimated=True))
    assert plan.predicted is not None
    assert plan.predicted.estimated


def test_pins_are_kept(planned: Callable[..., Plan], profile: ProfileTable) -> None:
    plan = planned(profile, pins={"relu_1": "cores:1"})
    (home,) = (stage for stage in plan.stages if "relu_1" in stage.ops)
    assert home.placements[0].device == "cores:1"


def test_unknown_strategy(problem: Problem) -> None:
    with pytest.raises(PartitionerError, match=r"unknown strategy 'fast'; known are best: whichev"):
        choose(problem, strategy="fast")


def test_no_plan_of_the_kind(graph: OpGraph, machine: Machine, profile: ProfileTable) -> None:
    one_stage = build_problem(graph, profile, machine, max_stages=1)
    with pytest.raises(
        InfeasibleError,
        match=r"'pipeline' \(at least two stages, on cores of their own\) .* max_stages",
    ):
        choose(one_stage, strategy="pipeline")
    apart = build_problem(graph, profile, machine, pins={"conv_0": "cores:0", "add_3": "cores:1"})
    with pytest.raises(InfeasibleError, match="no plan of strategy 'single'"):
        choose(apart, strategy="single")


def test_memory_too_small(graph: OpGraph, machine: Machine, profile: ProfileTable) -> None:
    # conv_2 needs its 2000 B of weights and 1000 B of activations, whatever else is placed where.
    tight = build_problem(graph, profile, machine, memory_budgets={"host": 2500})
    with pytest.raises(InfeasibleError) as caught:
        choose(tight)
    text = str(caught.value)
    assert "'conv_2' alone needs 3000 bytes" in text
    assert "budget where it can run is 2500, short by 500; raise that budget" in text
    assert "constants need 3000 bytes" in text


def test_memory_decides(planned: Callable[..., Plan], equal_cores: ProfileTable) -> None:
    # Replicas hold the model twice: 2 (3000 + 1000 + 4 * 100) = 8800 B. The cut in the middle
    # takes 2300 + 6200 = 8500 B. One core 4400 B.
    plan = planned(equal_cores, memory_budgets={"host": 8799})
    assert shape(plan) == [("conv_0 relu_1", ["cores:0"]), ("conv_2 add_3", ["cores:1"])]
    assert plan.predicted is not None
    assert plan.predicted.status == "OPTIMAL"
    assert planned(equal_cores, memory_budgets={"host": 4400}).name == "single cores:0-1"


# A plan that a person edited


@pytest.fixture
def choice(problem: Problem) -> Choice:
    return choose(problem)


def moved(plan: Plan) -> Plan:
    first, second = plan.stages
    stages = (
        replace(first, ops=(*first.ops, second.ops[0])),
        replace(second, ops=second.ops[1:]),
    )
    return replace(plan, stages=stages).stripped()


def test_an_unedited_plan_keeps_its_predictions(
    plan: Plan,
    graph: OpGraph,
    machine: Machine,
    profile: ProfileTable,
    problem: Problem,
    choice: Choice,
) -> None:
    assert adopt(plan, graph, machine, profile, problem, choice) == plan


def test_a_plan_stripped_of_its_figures_gets_the_same_again(
    plan: Plan,
    graph: OpGraph,
    machine: Machine,
    profile: ProfileTable,
    problem: Problem,
    choice: Choice,
) -> None:
    again = adopt(plan.stripped(), graph, machine, profile, problem, choice)
    assert again.predicted is not None
    assert again.predicted.method == "given"
    assert replace(again, predicted=plan.predicted) == plan
    assert replace(again.predicted, method="") == replace(plan.predicted, method="")


def test_an_edited_plan_is_scored_again(
    plan: Plan,
    graph: OpGraph,
    machine: Machine,
    profile: ProfileTable,
    problem: Problem,
    choice: Choice,
) -> None:
    scored = adopt(moved(plan), graph, machine, profile, problem, choice)
    predicted = scored.predicted
    assert predicted is not None
    # conv_2 takes core 0 another 5 ms: 7 ms, receives x, sends skip and wide (0.3 ms).
    assert predicted.period_s == pytest.approx(7.3e-3)
    assert predicted.bound_s == pytest.approx(2.3e-3, rel=1e-5)
    assert predicted.status == "FEASIBLE"
    assert predicted.gap("period") == pytest.approx(5 / 7.3, rel=1e-4)
    assert predicted.bottleneck == "stage 0"
    assert scored.alternatives == plan.alternatives
    assert scored.stages[0].leaves == (("skip", 400), ("wide", 400))


def test_an_edited_plan_over_its_memory(
    plan: Plan, graph: OpGraph, machine: Machine, profile: ProfileTable
) -> None:
    # Moved, conv_2 makes stage 0 need 3000 + 1000 + 4 * 100 B and stage 1 600 + 4 * 800: 8200 B.
    budget = {"host": 8199}
    tight = build_problem(graph, profile, machine, memory_budgets=budget)
    with pytest.raises(PlanError, match=r"1 rule\(s\).*needs 8200 bytes; its budget is 8199; edit"):
        adopt(moved(plan), graph, machine, profile, tight, choose(tight))


def test_an_edited_plan_against_a_pin(
    plan: Plan, graph: OpGraph, machine: Machine, profile: ProfileTable
) -> None:
    pinned = build_problem(graph, profile, machine, pins={"conv_2": "cores:1"})
    with pytest.raises(PlanError, match=r"op 'conv_2' of stage 0 cannot run on 'cores:0'"):
        adopt(moved(plan), graph, machine, profile, pinned, choose(pinned))


def test_an_edited_plan_that_breaks_order(
    plan: Plan,
    graph: OpGraph,
    machine: Machine,
    profile: ProfileTable,
    problem: Problem,
    choice: Choice,
) -> None:
    backwards = replace(plan, stages=plan.stages[::-1])
    with pytest.raises(PlanError, match="'conv_0' in stage 1 feeds 'add_3' in the earlier stage 0"):
        adopt(backwards, graph, machine, profile, problem, choice)


def test_nothing_is_proven_of_what_the_solver_does_not_search(
    plan: Plan,
    graph: OpGraph,
    machine: Machine,
    profile: ProfileTable,
    problem: Problem,
    choice: Choice,
) -> None:
    # A bound far above what the plan takes stands for a plan outside the solver's space.
    high = replace(choice, bound_s=1.0)
    predicted = adopt(plan.stripped(), graph, machine, profile, problem, high).predicted
    assert predicted is not None
    assert predicted.status == "FEASIBLE"
    assert predicted.bound_s == 0.0


def test_a_search_cut_short_proves_nothing(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uncut(problem: Problem, **options: object) -> Solution:
        if not problem.allowed.all():
            raise NoneFoundError("out of time")
        found = single(problem, 2)
        assert found is not None
        return found

    monkeypatch.setattr(planning, "solve", uncut)
    found = choose(problem, strategy="pipeline")
    # The equal split is the best pipeline left; how good it is nobody knows.
    assert len(found.solution.placements) == 2
    assert found.bound_s == 0.0


# One cluster of which stages take parts


@pytest.fixture
def quad() -> Machine:
    return Machine("quad", (Device("big", cpus=(4, 5, 6, 7)),))


def on_quad(graph: OpGraph, origin: Origin, times_ms: dict[int, tuple[float, ...]]) -> ProfileTable:
    """A table from milliseconds an op by the number of cores."""
    return ProfileTable(
        origin=origin,
        ops={
            OpKey(op.signature, "big", cores): Measurement(ms * 1e-3, 0.0, 10)
            for cores, row in times_ms.items()
            for op, ms in zip(graph.ops, row, strict=True)
        },
        handover=Handover(1e-4, 0.0, 1e-4, 0.0),
    )


def test_stages_share_a_cluster(graph: OpGraph, origin: Origin, quad: Machine) -> None:
    # conv_0 and relu_1 gain from three cores, conv_2 and add_3 from none.
    alone = (6.0, 3.0, 2.0, 1.0)
    table = on_quad(
        graph,
        origin,
        {1: alone, 2: (4.0, 2.0, 2.0, 1.0), 3: (2.0, 1.0, 2.0, 1.0), 4: (2.0, 1.0, 2.0, 1.0)},
    )
    problem = build_problem(graph, table, quad)
    choice = choose(problem, replicas=1, strategy="pipeline")
    plan = make_plan(graph, quad, table, problem, choice)
    assert shape(plan) == [("conv_0 relu_1", ["big"]), ("conv_2 add_3", ["big"])]
    assert [stage.placements[0].cpus for stage in plan.stages] == [(4, 5, 6), (7,)]
    assert plan.predicted is not None
    # 3 ms and three ends of hops.
    assert plan.predicted.period_s == pytest.approx(3.3e-3)
    assert plan.predicted.status == "OPTIMAL"
    verify_plan(plan, graph, quad)


def test_a_stage_has_replicas_on_a_cluster(graph: OpGraph, origin: Origin, quad: Machine) -> None:
    # Nothing gains from a second core, and conv_0 cannot be cut.
    table = on_quad(graph, origin, dict.fromkeys((1, 2, 3, 4), (6.0, 1.0, 0.5, 0.5)))
    problem = build_problem(graph, table, quad, pins=None, max_stages=2)
    choice = choose(problem, strategy="pipeline")
    plan = make_plan(graph, quad, table, problem, choice)
    assert shape(plan) == [("conv_0", ["big"] * 3), ("relu_1 conv_2 add_3", ["big"])]
    assert [place.cpus for place in plan.stages[0].placements] == [(4,), (5,), (6,)]
    assert [place.share for place in plan.stages[0].placements] == pytest.approx([1 / 3] * 3)
    # 2 ms and two ends of hops; conv_0 is done with an item in 6.2 ms, with three in as long.
    assert plan.predicted is not None
    assert plan.predicted.period_s == pytest.approx(2.2e-3)
    assert adopt(plan, graph, quad, table, problem, choice) == plan


@pytest.mark.parametrize(("most", "period_ms"), [(4, 8.2 / 4), (3, 2.2), (2, 3.1), (1, 6.2)])
def test_replicas_are_limited(
    graph: OpGraph, origin: Origin, quad: Machine, most: int, period_ms: float
) -> None:
    # The whole model on each core, or conv_0 alone on as many as it may have.
    table = on_quad(graph, origin, dict.fromkeys((1, 2, 3, 4), (6.0, 1.0, 0.5, 0.5)))
    choice = choose(build_problem(graph, table, quad), replicas=most)
    assert choice.solution.evaluation.period_s == pytest.approx(period_ms * 1e-3)
    for solution in (choice.solution, *(other for _, other in choice.others)):
        assert max(map(len, solution.placements)) <= most


def test_cores_that_a_person_chose_are_kept(graph: OpGraph, origin: Origin, quad: Machine) -> None:
    table = on_quad(graph, origin, dict.fromkeys((1, 2, 3, 4), (6.0, 1.0, 0.5, 0.5)))
    problem = build_problem(graph, table, quad, max_stages=2)
    choice = choose(problem, strategy="pipeline", replicas=1)
    plan = make_plan(graph, quad, table, problem, choice)
    first, second = plan.stages
    places = (replace(first.placements[0], cpus=(7,)), replace(second.placements[0], cpus=(4, 6)))
    stages = (replace(first, placements=places[:1]), replace(second, placements=places[1:]))
    edited = replace(plan, stages=stages).stripped()
    found = adopt(edited, graph, quad, table, problem, choice)
    assert [stage.placements[0].cpus for stage in found.stages] == [(7,), (4, 6)]
    assert found.predicted is not None


def test_a_plan_says_what_lies_between_measured_times(
    graph: OpGraph, origin: Origin, quad: Machine
) -> None:
    table = on_quad(graph, origin, {1: (6.0,) * 4, 2: (3.0,) * 4, 3: (1.0,) * 4, 4: (5.0,) * 4})
    rows = {
        key: replace(row, runs=0, interpolated=True) if key.threads == 3 else row
        for key, row in table.ops.items()
    }
    problem = build_problem(graph, table, quad)
    for known, count in ((table, 0), (replace(table, ops=rows), 4)):
        plan = make_plan(graph, quad, known, problem, choose(problem, strategy="single"))
        assert [len(place.cpus) for place in plan.stages[0].placements] == [3]
        assert plan.predicted is not None
        assert plan.predicted.interpolated == count
        said = "measured op times, 4 of them between measured numbers of threads)"
        assert (said in str(plan)) == (count > 0)
