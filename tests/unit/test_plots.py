from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from partitioner.errors import PlanError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.graph import OpGraph
from partitioner.plan import Plan
from partitioner.planning import choose
from partitioner.problem import Problem, Solution
from partitioner.report.cuts import CutProfile, cut_profile
from partitioner.report.plots import plot_cuts, plot_graph, plot_op_times, plot_stages

# Every cut position


@pytest.fixture
def cuts(graph: OpGraph, problem: Problem) -> CutProfile:
    return cut_profile(graph, problem, ("cores:0", "cores:1"))


def solution(problem: Problem, stage_of: Sequence[int], options: Sequence[int]) -> Solution:
    placements = tuple((option,) for option in options)
    return Solution(tuple(stage_of), placements, evaluate(problem, stage_of, placements))


def test_each_position(cuts: CutProfile) -> None:
    # Ops take 1, 1, 5, 5 ms on the first core and 5, 5, 1, 1 on the second; an end of a hop 0.1.
    assert cuts.devices == ("cores:0", "cores:1")
    assert cuts.positions.tolist() == [1, 2, 3]
    # skip; skip and mid; skip and wide.
    assert cuts.cut_bytes.tolist() == [400, 800, 800]
    assert cuts.busy_s[0] == pytest.approx([1.2e-3, 2.3e-3, 7.3e-3])
    assert cuts.busy_s[1] == pytest.approx([7.2e-3, 2.3e-3, 1.3e-3])
    assert cuts.period_s == pytest.approx([7.2e-3, 2.3e-3, 7.3e-3])
    assert cuts.feasible.all()
    assert cuts.best == 2


def test_the_solver_is_no_worse(cuts: CutProfile, problem: Problem) -> None:
    assert cuts.best is not None
    chosen = choose(problem).solution.evaluation.period_s
    assert chosen <= cuts.period_s[cuts.best - 1] * (1 + 1e-6)


def test_one_core_cannot_hold_both_stages(graph: OpGraph, problem: Problem) -> None:
    shared = cut_profile(graph, problem, ("cores:0", "cores:0"))
    assert not shared.feasible.any()
    assert shared.best is None
    # Times are told all the same: 1 + 1 and 5 + 5 ms, each with three hops.
    assert shared.busy_s[:, 1] == pytest.approx([2.3e-3, 10.3e-3])


def test_the_best_is_a_feasible_one(graph: OpGraph, problem: Problem) -> None:
    together = replace(problem, colocate=((1, 2),))
    cuts = cut_profile(graph, together, ("cores:0", "cores:1"))
    assert cuts.feasible.tolist() == [True, False, True]
    assert cuts.best == 1


def test_values_are_frozen(cuts: CutProfile) -> None:
    with pytest.raises(ValueError, match="read-only"):
        cuts.period_s[0] = 0.0


def test_refused(graph: OpGraph, problem: Problem) -> None:
    with pytest.raises(ProblemError, match=r"no option 'gpu'; it has cores:0, cores:1, cores:0-1"):
        cut_profile(graph, problem, ("cores:0", "gpu"))
    renamed = replace(problem, op_names=("a", "b", "c", "d"))
    with pytest.raises(ProblemError, match=r"not those of graph 'tiny'; build it from this graph"):
        cut_profile(graph, renamed, ("cores:0", "cores:1"))


# Figures


def drawn(figure: Figure) -> tuple[Axes, ...]:
    """The panels, after the figure could be drawn."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=30)
    assert file.getvalue().startswith(b"\x89PNG")
    return tuple(figure.axes)


def legend(axes: Axes) -> list[str]:
    shown = axes.get_legend()
    assert shown is not None
    return [text.get_text() for text in shown.get_texts()]


def line(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    (found,) = (one for one in axes.lines if str(one.get_label()).startswith(label))
    return np.asarray(found.get_xdata()).tolist(), np.asarray(found.get_ydata()).tolist()


def test_cuts_with_the_choice_marked(cuts: CutProfile, problem: Problem) -> None:
    above, below = drawn(plot_cuts(cuts, solution(problem, (0, 0, 1, 1), (0, 1))))
    assert above.get_ylabel() == "over the cut [kB]"
    assert [bar.get_height() for bar in above.patches] == pytest.approx([0.4, 0.8, 0.8])
    assert below.get_xlabel() == "ops in the first stage"
    assert below.get_ylabel() == "time an item [ms]"
    assert legend(below) == [
        "stage 0 on cores:0",
        "stage 1 on cores:1",
        "period",
        "solver's choice: 2 ops, 2.3 ms",
    ]
    assert line(below, "stage 1") == ([1, 2, 3], pytest.approx([7.2, 2.3, 1.3]))
    assert line(below, "period") == ([1, 2, 3], pytest.approx([7.2, 2.3, 7.3]))
    assert line(below, "solver's choice") == ([2], pytest.approx([2.3]))


def test_cuts_without_a_choice(cuts: CutProfile) -> None:
    _, below = drawn(plot_cuts(cuts))
    assert not any("choice" in text for text in legend(below))


def test_megabytes(cuts: CutProfile) -> None:
    above, _ = drawn(plot_cuts(replace(cuts, cut_bytes=np.array([5e5, 2e6, 1e6]))))
    assert above.get_ylabel() == "over the cut [MB]"
    assert [bar.get_height() for bar in above.patches] == pytest.approx([0.5, 2, 1])


@pytest.mark.parametrize(
    ("stage_of", "options", "label"),
    [
        ((0, 0, 0, 0), (0,), "solver's choice: uncut, 12.2 ms"),
        ((0, 0, 1, 2), (0, 1, 0), "solver's choice: 3 stages, 5.3 ms"),
    ],
)
def test_what_has_no_position_is_a_line(
    cuts: CutProfile,
    problem: Problem,
    stage_of: tuple[int, ...],
    options: tuple[int, ...],
    label: str,
) -> None:
    _, below = drawn(plot_cuts(cuts, solution(problem, stage_of, options)))
    assert legend(below)[-1] == label
    assert len(set(line(below, label)[1])) == 1


def test_cuts_that_are_not_feasible(graph: OpGraph, problem: Problem) -> None:
    _, below = drawn(plot_cuts(cut_profile(graph, problem, ("cores:0", "cores:0"))))
    assert "no cut is feasible" in below.get_title()
    assert "period" not in legend(below)


def test_ops_that_cannot_run_leave_a_gap(problem: Problem, graph: OpGraph) -> None:
    times = problem.time_s.copy()
    times[3, 0] = np.inf
    partly = replace(problem, time_s=times)
    (axes,) = drawn(plot_op_times(partly))
    assert legend(axes)[0] == "cores:0: 7 ms in all"
    assert np.isnan(axes.patches[3].get_height())
    _, below = drawn(plot_cuts(cut_profile(graph, partly, ("cores:1", "cores:0"))))
    assert np.isnan(line(below, "stage 1")[1]).all()
    assert "no cut is feasible" in below.get_title()


def test_graph(graph: OpGraph) -> None:
    (axes,) = drawn(plot_graph(graph))
    assert axes.get_title() == "tiny: 4 ops, area after their floating-point work"
    (ops,) = axes.collections
    assert np.asarray(ops.get_offsets())[:, 0].tolist() == [0, 1, 2, 3]
    assert axes.get_legend() is None
    # skip to add_3 passes over two layers; the others go to the next.
    assert len(axes.texts) == 4


def test_graph_by_stage(graph: OpGraph) -> None:
    (axes,) = drawn(plot_graph(graph, (0, 0, 1, 1)))
    assert legend(axes) == ["stage 0: 2 ops", "stage 1: 2 ops", "crosses the cut"]


def test_branches_are_drawn_apart(graph: OpGraph) -> None:
    x, skip, mid, wide, y = graph.tensors
    branched = replace(
        graph,
        tensors=(
            x,
            replace(skip, consumers=(1, 2)),
            replace(mid, consumers=(3,)),
            wide,
            y,
        ),
    )
    (axes,) = drawn(plot_graph(branched))
    places = np.asarray(axes.collections[0].get_offsets()).tolist()
    assert places == [[0, 0], [1, -0.5], [1, 0.5], [2, 0]]


def test_area_follows_the_work(graph: OpGraph) -> None:
    ops = tuple(replace(op, flops=flops) for op, flops in zip(graph.ops, (4, 0, 2, 0), strict=True))
    (axes,) = drawn(plot_graph(replace(graph, ops=ops)))
    areas = np.asarray(axes.collections[0].get_sizes())
    assert areas[0] > areas[2] > areas[1] == areas[3] > 0


def test_op_times(problem: Problem) -> None:
    (axes,) = drawn(plot_op_times(problem))
    assert axes.get_ylabel() == "time an item [ms]"
    assert legend(axes) == [
        "cores:0: 12 ms in all",
        "cores:1: 12 ms in all",
        "cores:0-1: 8 ms in all",
    ]
    assert [bar.get_height() for bar in axes.patches[:4]] == pytest.approx([1, 1, 5, 5])


def test_stages_predicted(plan: Plan) -> None:
    (axes,) = drawn(plot_stages(plan))
    assert legend(axes) == ["period, predicted", "ops, predicted", "copies, predicted"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([2, 2, 0.3, 0.3])
    assert line(axes, "period, predicted")[0] == pytest.approx([2.3, 2.3])
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "stage 0\ncores:0",
        "stage 1\ncores:1",
    ]


def test_stages_beside_the_measured_ones(plan: Plan) -> None:
    (axes,) = drawn(plot_stages(plan, (2.4e-3, 2.2e-3), 2.5e-3))
    assert "busy, measured" in legend(axes)
    assert [bar.get_width() for bar in axes.patches[4:]] == pytest.approx([2.4, 2.2])
    assert line(axes, "period, measured")[0] == pytest.approx([2.5, 2.5])


def test_a_replica_is_drawn_with_its_share(plan: Plan) -> None:
    first, second = plan.stages
    halves = tuple(replace(p, share=0.5) for p in (*first.placements, *second.placements))
    (axes,) = drawn(
        plot_stages(replace(plan, stages=(replace(first, placements=halves),)), (4e-3,))
    )
    # 2 ms of ops, 0.3 of copies and 4 ms measured, of every second item.
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([1, 1, 0.15, 0.15, 2, 2])


def test_an_edited_plan_has_nothing_to_draw(plan: Plan) -> None:
    with pytest.raises(PlanError, match="no figures to draw"):
        plot_stages(plan.stripped())
