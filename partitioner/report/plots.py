"""Figures of a model, its profile, its cuts and its stages: values in, matplotlib figures out.

matplotlib is an extra (``pip install partitioner[notebook]``), so functions import it when called.
The figures belong to no window and no global state: show them in a notebook, or ``savefig``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from partitioner.errors import PlanError
from partitioner.graph import OpGraph
from partitioner.plan import Plan
from partitioner.problem import Problem, Solution
from partitioner.report.cuts import CutProfile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_cuts", "plot_graph", "plot_op_times", "plot_stages"]

# Okabe and Ito's colours, which the colour-blind can tell apart: one a stage or device.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_MARK = "#B00020"
_GREY = "#777777"


def plot_graph(graph: OpGraph, stage_of: Sequence[int] | None = None) -> Figure:
    """Draw the ops from left to right, their area after their arithmetic, coloured by stage.

    Parameters
    ----------
    graph : OpGraph
        The model.
    stage_of : sequence of int, length n_ops, optional
        Stage of each op.
    """
    places = _layered(graph)
    depth = 1 + max(x for x, _ in places)
    height = 1 + 2 * max(abs(y) for _, y in places)
    figure, (axes,) = _figure(width=min(14.0, 2.5 + 0.3 * depth), height=1.6 + 0.35 * height)
    stages = stage_of if stage_of is not None else [0] * len(graph.ops)
    for source, target in graph.edges:
        (x, y), (u, v) = places[source], places[target]
        # An edge that passes over other layers is bent, or it would run through their ops.
        bend = 0.35 if u - x > 1 else 0.0
        axes.annotate(
            "",
            xy=(u, v),
            xytext=(x, y),
            arrowprops={
                "arrowstyle": "-",
                "color": _GREY if stages[source] == stages[target] else _MARK,
                "linewidth": 0.8 if stages[source] == stages[target] else 2.0,
                "connectionstyle": f"arc3,rad={bend}",
            },
        )
    most = max(op.flops for op in graph.ops) or 1.0
    areas = np.array([25.0 + 200.0 * op.flops / most for op in graph.ops])
    for stage in sorted(set(stages)):
        ops = [op.id for op in graph.ops if stages[op.id] == stage]
        axes.scatter(
            [places[op][0] for op in ops],
            [places[op][1] for op in ops],
            s=areas[ops],
            color=_colour(stage),
            zorder=3,
            label=f"stage {stage}: {len(ops)} ops",
        )
    axes.set_ylim(-height / 2 - 0.4, height / 2 + 0.4)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("depth in the graph (ops on the longest way from an input)")
    axes.set_title(f"{graph.name}: {len(graph.ops)} ops, area after their floating-point work")
    if stage_of is not None:
        axes.plot([], [], color=_MARK, linewidth=2.0, label="crosses the cut")
        _legend(axes)
    return figure


def plot_op_times(problem: Problem) -> Figure:
    """Draw the time of each op on each option, in module order.

    Parameters
    ----------
    problem : Problem
        What the solver is given; an op that cannot run on an option has no bar there.
    """
    figure, (axes,) = _figure(height=3.4)
    width = 0.85 / problem.n_options
    where = np.arange(problem.n_ops)
    for option, name in enumerate(problem.option_names):
        times = _finite(problem.time_s[:, option])
        axes.bar(
            where + (option - (problem.n_options - 1) / 2) * width,
            times * 1e3,
            width,
            color=_colour(option),
            label=f"{name}: {np.nansum(times) * 1e3:.3g} ms in all",
        )
    axes.set_xlim(-0.7, problem.n_ops - 0.3)
    axes.set_xlabel("op, in module order")
    axes.set_ylabel("time an item [ms]")
    axes.set_title("Time of each op on each device")
    _legend(axes)
    return figure


def plot_cuts(profile: CutProfile, chosen: Solution | None = None) -> Figure:
    """Draw bytes over the cut, and both stages' busy times and the period, over every position.

    Parameters
    ----------
    profile : CutProfile
        Every cut position in module order.
    chosen : Solution, optional
        What the solver took. Two stages are marked at the number of ops in the first one; where
        that one is no beginning of the module, the mark lies off the curve. Other plans have no
        position and are a line at their period.
    """
    figure, (above, below) = _figure(height=6.0, heights=(1.0, 1.7))
    unit, scale = ("MB", 1e6) if profile.cut_bytes.max() >= 1e6 else ("kB", 1e3)
    # A cut is between two ops: bars centred on the border, touching no other.
    above.bar(profile.positions, profile.cut_bytes / scale, 0.8, color=_GREY)
    above.set_ylabel(f"over the cut [{unit}]")
    above.set_title("Bytes an item hands from the first stage to the second")
    for stage, name in enumerate(profile.devices):
        below.plot(
            profile.positions,
            _finite(profile.busy_s[stage]) * 1e3,
            color=_colour(stage),
            linewidth=1.6,
            label=f"stage {stage} on {name}",
        )
    period = _finite(np.where(profile.feasible, profile.period_s, np.nan))
    if profile.feasible.any():
        below.plot(
            profile.positions,
            period * 1e3,
            color="black",
            linewidth=5.0,
            alpha=0.25,
            label="period",
        )
    below.set_title(
        "Busy time of both stages and the period of each cut"
        if profile.feasible.any()
        else "Busy time of both stages (no cut is feasible on these devices)"
    )
    if chosen is not None:
        _mark(above, below, chosen)
    below.set_ylim(bottom=0.0)
    below.set_xlim(0.0, float(profile.positions[-1]) + 1.0)
    below.set_ylabel("time an item [ms]")
    below.set_xlabel("ops in the first stage")
    _legend(below)
    return figure


def plot_stages(
    plan: Plan,
    measured_busy_s: Sequence[float] | None = None,
    measured_period_s: float | None = None,
) -> Figure:
    """Draw each stage's predicted time an item, with what was measured beside it.

    A replica is drawn with its share of the items, so that bars compare with the period.

    Parameters
    ----------
    plan : Plan
        With predicted figures.
    measured_busy_s : sequence of float, one a stage, optional
        Busy time an item in the running pipeline (`Pipeline.stage_busy_s`).
    measured_period_s : float, optional
        Time between completions.

    Raises
    ------
    PlanError
        If the plan was edited and carries no predicted figures.
    """
    if plan.predicted is None:
        raise PlanError(
            "the plan's stages were edited, so it carries no figures to draw; score it again with "
            "auto_partition(..., plan=plan)"
        )
    rows = [
        (index, placement)
        for index, stage in enumerate(plan.stages)
        for placement in stage.placements
    ]
    where = np.arange(len(rows), dtype=float)
    share = np.array([placement.share for _, placement in rows])
    compute = np.array([placement.compute_s or 0.0 for _, placement in rows]) * share * 1e3
    copies = np.array([placement.copy_s or 0.0 for _, placement in rows]) * share * 1e3
    figure, (axes,) = _figure(height=1.6 + 0.75 * len(rows), width=8.5)
    thick = 0.36 if measured_busy_s is not None else 0.7
    shift = thick / 2 if measured_busy_s is not None else 0.0
    axes.barh(where - shift, compute, thick, color=_COLOURS[0], label="ops, predicted")
    axes.barh(where - shift, copies, thick, compute, color=_COLOURS[4], label="copies, predicted")
    if measured_busy_s is not None:
        busy = np.array([measured_busy_s[index] for index, _ in rows]) * share * 1e3
        axes.barh(where + shift, busy, thick, color=_COLOURS[1], label="busy, measured")
    axes.axvline(
        plan.predicted.period_s * 1e3, color=_COLOURS[0], linestyle="--", label="period, predicted"
    )
    if measured_period_s is not None:
        axes.axvline(
            measured_period_s * 1e3, color=_COLOURS[5], linestyle="-", label="period, measured"
        )
    axes.set_yticks(where, [f"stage {index}\n{placement.device}" for index, placement in rows])
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.set_xlabel("time an item [ms]")
    axes.set_title(f"{plan.model}: what keeps each stage busy")
    _legend(axes)
    return figure


def _mark(above: Axes, below: Axes, chosen: Solution) -> None:
    period_ms = chosen.evaluation.period_s * 1e3
    stages = len(chosen.placements)
    if stages != 2:
        what = "uncut" if stages == 1 else f"{stages} stages"
        label = f"solver's choice: {what}, {period_ms:.3g} ms"
        below.axhline(period_ms, color=_MARK, linestyle="--", label=label)
        return
    position = chosen.stage_of.count(0)
    for axes in (above, below):
        axes.axvline(position, color=_MARK, linestyle="--", linewidth=1.0, zorder=0)
    below.plot(
        [position],
        [period_ms],
        marker="o",
        markersize=9,
        color=_MARK,
        linestyle="none",
        label=f"solver's choice: {position} ops, {period_ms:.3g} ms",
    )


def _layered(graph: OpGraph) -> list[tuple[int, float]]:
    """Place of each op: its layer, and its height around 0 beside the others of the layer."""
    view = graph.to_networkx()
    places: dict[int, tuple[int, float]] = {}
    for layer, ops in enumerate(nx.topological_generations(view)):
        # Beside its predecessors, so that branches stay apart and edges cross little.
        heights = {op: [places[before][1] for before in view.predecessors(op)] for op in ops}
        ordered = sorted(ops, key=lambda op: (float(np.mean(heights[op] or [0.0])), op))
        for rank, op in enumerate(ordered):
            places[op] = (layer, rank - (len(ordered) - 1) / 2)
    return [places[op.id] for op in graph.ops]


def _figure(
    *, width: float = 10.0, height: float, heights: Sequence[float] = (1.0,)
) -> tuple[Figure, tuple[Axes, ...]]:
    """A figure of `width` by `height` inches, with panels below each other that share their x."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": list(heights)}
    )
    axes = tuple(panels[:, 0])
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
    return figure, axes


def _legend(axes: Axes) -> None:
    """Outside, to the right, where no data can lie beneath it."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _finite(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """NaN, which is not drawn, in place of infinite."""
    return np.where(np.isfinite(values), values, np.nan)
