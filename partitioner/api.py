"""The whole row on one screen: load, group, profile, price, solve, plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from partitioner.cost import build_problem, options_of
from partitioner.cost.estimate import estimate_profile
from partitioner.errors import ImportModelError, InputError
from partitioner.exact_times import measured_where_it_matters
from partitioner.frontend import Grouped, group, load
from partitioner.machine import Machine
from partitioner.partition import Partition
from partitioner.plan import MOST_REPLICAS, Plan
from partitioner.plan_check import verify_plan
from partitioner.planning import adopt, choose, make_plan, require_strategy
from partitioner.problem import Objective
from partitioner.profiling.collect import collect
from partitioner.profiling.table import OpKey, ProfileTable
from partitioner.runtime.build import BuildCache, origin_of
from partitioner.tuned import Tuning, builds_for, tuned, tuning_seconds

__all__ = ["announce", "auto_partition", "import_model", "profile_model"]

Progress = Callable[[str, float], None]


def announce(what: str, part: float) -> None:
    """Say on the error stream what is being done; minutes are not spent in silence."""
    print(what, file=sys.stderr)


def auto_partition(
    model: Any,
    devices: Any = None,
    *,
    objective: str = "period",
    strategy: str = "best",
    max_stages: int | None = None,
    replicas: int = MOST_REPLICAS,
    memory_budgets: Mapping[str, int] | None = None,
    pins: Mapping[str, str] | None = None,
    colocate: Sequence[Sequence[str]] = (),
    second: str | None = None,
    period_cap_s: float = float("inf"),
    latency_cap_s: float = float("inf"),
    profile: ProfileTable | str | Path | None = None,
    profile_seconds: float = 8.0,
    contended: bool = False,
    allow_foreign_profile: bool = False,
    plan: Plan | str | Path | None = None,
    time_limit_s: float = 10.0,
    refine: int = 0,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    tuning: Tuning = "default",
    builds: BuildCache | None = None,
    progress: Progress = announce,
) -> Partition:
    """Cut a model into stages for these devices: measure, decide with proof, ready to run.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto, torch.export.ExportedProgram, path, ``"zoo:NAME"``, Grouped
        The model.
    devices : None, Machine, or sequence of str, Device, TVM device
        ``"cores:0-3"``, ``"cores:4,5"``, ``"cpu"``: clusters of equal cores, any number of which a
        stage may get. None is this host's clusters.
    objective : {"period", "latency"}
        Least time between completions, or least time of one item.
    strategy : str
        A key of `partitioner.plan.STRATEGIES`; ``"best"`` may choose not to cut.
    max_stages : int, optional
        Default: as many as there are cores and accelerators.
    replicas : int
        Most replicas that a stage, or the whole model, may have; items go to each in turn.
    memory_budgets : mapping of str to int, optional
        Bytes by memory pool or device name.
    pins : mapping of str to str, optional
        Op or source node name to the device that must run it.
    colocate : sequence of sequence of str
        Groups of op or source node names that must share a stage.
    second : {"period", "latency", "copies", "memory", "devices"}, optional
        What to make least among plans as good as the best.
    period_cap_s, latency_cap_s : float
        Most seconds between completions, and of one item, by the prediction.
    profile : ProfileTable, path, or "estimate", optional
        Times to use; a path is continued where it lacks some, and written. ``"estimate"`` plans at
        once on guessed times, marked as such. Default: measure.
    profile_seconds : float
        Measuring time a placement.
    contended : bool
        Plan by times taken while all other cores are busy. A single pipeline's stages disturb one
        another less than that, so that it may be cut too often; `refine` finds out.
    allow_foreign_profile : bool
        Take a profile made on another machine or build, to plan for that one.
    plan : Plan or path, optional
        Use this plan: it is verified, and scored again if it was edited. Nothing is measured
        unless `profile` is given, and the objective is the plan's own.
    time_limit_s : float
        Solver time.
    refine : int
        Most rounds of running the plans predicted best, correcting the times by what their stages
        took, and solving again; the plan that is best by the clock is kept. 0: none.
    input_shapes : mapping of str to sequence of int, optional
        For inputs whose dimensions the model leaves open.
    tuning : "default", path, float, or None
        How kernels are made: by the records of tuning that `builds` has, which are the user's own
        and the shipped ones where nothing else was said; by those of a folder; after tuning for so
        many seconds, kept for every later call; or by rule alone.
    builds : BuildCache, optional
        Where compiled stages are kept; default: the user's cache folder.
    progress : callable
        Called with what is being done and how much of it is done, from 0 to 1. Default: said on
        the error stream.

    Returns
    -------
    Partition

    Raises
    ------
    PartitionerError
        One child a phase; the message says where, what was found, what was needed, what next.
    """
    machine = Machine.of(devices)
    origin = origin_of(machine)
    given = Plan.load(plan) if isinstance(plan, str | Path) else plan
    wanted = _objective(objective if given is None else given.objective)
    require_strategy(strategy)
    if refine < 0 or (refine and given is not None):
        raise InputError(
            f"refine={refine}: rounds are 0 or more, and 0 with a given plan, which is used as it "
            "is; leave refine or plan out"
        )
    tuning_s = tuning_seconds(tuning)
    builds = builds_for(tuning, builds)
    grouped = import_model(model, input_shapes=input_shapes)
    graph = grouped.graph
    price = partial(
        build_problem,
        graph,
        machine=machine,
        objective=wanted,
        max_stages=max_stages,
        memory_budgets=memory_budgets,
        pins=pins,
        colocate=colocate,
        second=None if second is None else _objective(second, tuple(Objective)),
        period_cap_s=period_cap_s,
        latency_cap_s=latency_cap_s,
    )
    for note in (*grouped.notes, *builds.records.notes):
        progress(note, 0.0)
    # What is wrong with the request is said before minutes are spent on measuring.
    table = estimate_profile(graph, options_of(machine), origin)
    price(table)
    if given is not None:
        verify_plan(given, graph, machine)
    if tuning_s is not None:
        builds = tuned(builds, grouped, machine, tuning_s, progress)
    pick = partial(choose, strategy=strategy, replicas=replicas, time_limit_s=time_limit_s)
    measure = partial(
        profile_model,
        grouped,
        machine,
        seconds=profile_seconds,
        contended=contended,
        allow_foreign=allow_foreign_profile,
        builds=builds,
        progress=progress,
    )
    if given is None or profile is not None:  # a plan needs no times to run
        table = measure(profile=profile)
    if given is None and not allow_foreign_profile:
        table = measured_where_it_matters(
            table,
            graph,
            machine,
            lambda known: pick(price(known, contended=contended)),
            lambda known, rows: measure(
                profile=profile if isinstance(profile, str | Path) else known, exact=rows
            ),
        )
    problem = price(table, contended=contended)
    choice = pick(problem)
    if given is None:
        chosen = make_plan(graph, machine, table, problem, choice)
    else:
        chosen = adopt(given, graph, machine, table, problem, choice)
    part = Partition(grouped.module, graph, machine, table, problem, choice, chosen, builds)
    if not refine:
        return part
    return part.refined(
        refine,
        strategy=strategy,
        replicas=replicas,
        time_limit_s=time_limit_s,
        progress=progress,
    )


def import_model(model: Any, *, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Grouped:
    """Import a model and group its operators into ops.

    Parameters
    ----------
    model, input_shapes
        As `auto_partition` takes them.

    Raises
    ------
    ImportModelError, GraphError
        If it cannot be read, imported or grouped.
    """
    if isinstance(model, Grouped):
        return model
    name = None
    if isinstance(model, str) and model.startswith("zoo:"):
        from partitioner import zoo  # optional packages carry its networks

        found = zoo.load(model.removeprefix("zoo:"))
        model, name = found.model, found.name
    elif isinstance(model, str | Path) and not Path(model).exists():
        raise ImportModelError(
            f"{model}: no such file; give an .onnx, .py, .tvmscript or .json file, or zoo:NAME"
        )
    return group(load(model, input_shapes=input_shapes, name=name))


def profile_model(
    grouped: Grouped,
    machine: Machine,
    *,
    profile: ProfileTable | str | Path | None = None,
    seconds: float = 8.0,
    exact: Iterable[OpKey] = (),
    contended: bool = False,
    allow_foreign: bool = False,
    builds: BuildCache | None = None,
    progress: Progress = announce,
) -> ProfileTable:
    """Times of the model's ops on the machine's devices: given, read, guessed, or measured.

    Parameters
    ----------
    grouped : Grouped
        The model.
    machine : Machine
        The devices.
    profile, seconds, allow_foreign, progress
        As `auto_partition` takes them.
    builds : BuildCache, optional
        Where compiled models are kept and by which records their kernels are made; a time of
        another kernel than that is measured again.
    exact : iterable of OpKey
        Rows that are measured even where a time between others would do.
    contended : bool
        Whether times are also taken while the other cores are busy.

    Raises
    ------
    ProfileError
        If a given profile is not from here, or measuring fails.
    DeviceError
        If the devices are not on this host and times would have to be measured.
    """
    graph, placements = grouped.graph, options_of(machine)
    if profile == "estimate":
        return estimate_profile(graph, placements, origin_of(machine))
    if allow_foreign and profile is not None:
        return profile if isinstance(profile, ProfileTable) else ProfileTable.load(profile)
    machine.require_present()
    return collect(
        grouped.module,
        graph,
        machine,
        placements,
        known=profile if isinstance(profile, ProfileTable) else None,
        path=None if isinstance(profile, ProfileTable) else profile,
        seconds=seconds,
        exact=exact,
        contended=contended,
        builds=builds,
        progress=progress,
    )


def _objective(
    name: str, among: Sequence[Objective] = (Objective.PERIOD, Objective.LATENCY)
) -> Objective:
    known = {each.value: each for each in among}
    if name not in known:
        raise InputError(f"unknown objective {name!r}; known are {', '.join(known)}")
    return known[name]
