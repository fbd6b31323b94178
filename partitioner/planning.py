"""From a problem to the plan that wins: the solver's, or a simple alternative that is better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from partitioner.cost import options_of
from partitioner.errors import InfeasibleError, NoneFoundError, PartitionerError, PlanError
from partitioner.evaluation import evaluate
from partitioner.graph import OpGraph
from partitioner.machine import Device, Machine
from partitioner.plan import (
    MOST_REPLICAS,
    STRATEGIES,
    Alternative,
    Placement,
    Plan,
    Predicted,
    Stage,
)
from partitioner.plan_check import assignment_of, device_for, stage_tensors, verify_plan
from partitioner.problem import Evaluation, Problem, Solution, Status
from partitioner.profiling.counts import rests_on
from partitioner.profiling.table import OpKey, ProfileTable
from partitioner.solvers import Progress, alternatives, neighbours, solve
from partitioner.solvers.replicate import Replicated, with_replicas, with_twins

__all__ = ["Choice", "adopt", "choose", "kind_of", "make_plan", "require_strategy"]

_MOST_NEIGHBOURS = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """The solution to use and what it was compared with.

    Attributes
    ----------
    solution : Solution
        What the strategy asks for, at its best.
    bound_s : float
        Proven lower bound of the objective over all plans that the strategy allows.
    others : tuple of (str, Solution)
        The simple alternatives by name.
    """

    solution: Solution
    bound_s: float
    others: tuple[tuple[str, Solution], ...]


def choose(
    problem: Problem,
    *,
    strategy: str = "best",
    replicas: int = MOST_REPLICAS,
    time_limit_s: float = 10.0,
    progress: Progress | None = None,
) -> Choice:
    """Solve, compare with the alternatives, and take what the strategy asks for.

    Parameters
    ----------
    problem : Problem
        What to solve.
    strategy : str
        A key of `STRATEGIES`.
    replicas : int
        Most replicas that a stage, or the whole model, may have.
    time_limit_s : float
        Solver time.
    progress : callable, optional
        Told of better assignments and bounds.

    Raises
    ------
    InfeasibleError
        If nothing satisfies the limits, or nothing of the kind that `strategy` asks for.
    PartitionerError
        If the strategy is unknown.
    """
    require_strategy(strategy)
    others = alternatives(problem, replicas)
    hint = min(
        (solution for _, solution in others if all(len(o) == 1 for o in solution.placements)),
        key=lambda solution: solution.evaluation.value(problem.objective),
        default=None,
    )
    wide = with_replicas(problem, replicas)
    try:
        best = wide.restore(
            solve(wide.problem, time_limit_s=time_limit_s, progress=progress, hint=hint)
        )
    except InfeasibleError:
        # Replicas of the whole model may fit where no set of stages does.
        if strategy == "pipeline" or not others:
            raise
        best = others[0][1]
        best = replace(best, stats=replace(best.stats, bound=0.0))
    solved, bound_s = [best], best.stats.bound
    if strategy == "pipeline" and kind_of(best) != "pipeline":
        solved, bound_s = _pipelines(wide, time_limit_s, hint)
    candidates = [*solved, *(solution for _, solution in others)]
    wanted = [s for s in candidates if strategy in ("best", kind_of(s))]
    if not wanted:
        raise InfeasibleError(
            f"no plan of strategy {strategy!r} ({STRATEGIES[strategy]}) satisfies the limits; "
            "allow strategy='best', raise max_stages or a memory budget, or name more devices"
        )
    chosen = min(wanted, key=lambda s: s.evaluation.value(problem.objective))
    # Uncut plans are few and all were scored, so only pipelines need the solver's word.
    value = chosen.evaluation.value(problem.objective)
    return Choice(
        chosen, min(value, bound_s) if strategy in ("best", "pipeline") else value, others
    )


def require_strategy(strategy: str) -> None:
    """Refuse a strategy that is not in `STRATEGIES`.

    Raises
    ------
    PartitionerError
        With the known ones.
    """
    if strategy not in STRATEGIES:
        known = "; ".join(f"{name}: {meaning}" for name, meaning in STRATEGIES.items())
        raise PartitionerError(f"unknown strategy {strategy!r}; known are {known}")


def _pipelines(
    wide: Replicated, time_limit_s: float, hint: Solution | None
) -> tuple[list[Solution], float]:
    """The best plans of two or more stages, where the solver's best has but one, and their bound.

    The first stage holds an op without predecessors, the last one without successors. Where no
    option serves two stages, some such pair runs on different options, and solving once for each
    pair and option of the first op covers every pipeline. An option that can serve two, as cores
    of a cluster can, has a twin for the second.
    """
    cases = list(_apart(wide.problem))
    found: list[Solution] = []
    bounds: list[float] = []
    for twins in cases:
        try:
            solution = solve(twins.problem, time_limit_s=time_limit_s / len(cases), hint=hint)
            found.append(wide.restore(twins.restore(solution)))
        except NoneFoundError:
            bounds.append(0.0)
        except InfeasibleError:
            continue
        else:
            bounds.append(found[-1].stats.bound)
    return found, min(bounds, default=0.0)


def _apart(problem: Problem) -> Iterator[Replicated]:
    """The problem with a first op on one option and a last op on others, for each choice."""
    ops = range(problem.n_ops)
    first = sorted(set(ops) - {v for _, v in problem.edges})
    last = sorted(set(ops) - {u for u, _ in problem.edges})
    for option in range(problem.n_options):
        beside = (problem.uses + problem.uses[option] <= problem.capacity).all(axis=1)
        again = [option] if beside[option] else []
        twins = with_twins(problem, again)
        beside = np.append(beside, beside[again])
        beside[option] = False
        for head, tail in ((u, v) for u in first for v in last if u != v):
            allowed = twins.problem.allowed.copy()
            allowed[head] &= np.arange(twins.problem.n_options) == option
            allowed[tail] &= beside
            if allowed[head].any() and allowed[tail].any():
                yield replace(twins, problem=replace(twins.problem, allowed=allowed))


def kind_of(solution: Solution) -> str:
    """Which of `STRATEGIES` a solution is: "pipeline", "single" or "replicas"."""
    if len(solution.placements) > 1:
        return "pipeline"
    return "single" if len(solution.placements[0]) == 1 else "replicas"


def make_plan(
    graph: OpGraph, machine: Machine, table: ProfileTable, problem: Problem, choice: Choice
) -> Plan:
    """Write a choice down as a plan.

    Parameters
    ----------
    graph, machine, table, problem
        What the choice was made from.
    choice : Choice
        As `choose` returns it.
    """
    solution, objective = choice.solution, problem.objective.value
    value = solution.evaluation.value(problem.objective)
    # Below the bound lies only what the solver does not search, such as a hand-made plan that
    # copies a stage inside a pipeline: nothing is proven of that.
    bound_s = choice.bound_s if value >= choice.bound_s * (1 - 1e-6) else 0.0
    proven = value - bound_s <= 1e-6 * value
    return Plan(
        model=graph.name,
        graph_hash=graph.hash,
        machine=machine.name,
        profile_hash=table.hash,
        name=_name(problem, solution),
        objective=objective,
        stages=_stages(graph, machine, problem, solution),
        predicted=_predicted(
            problem,
            solution.evaluation,
            estimated=table.estimated,
            interpolated=len(_unmeasured(graph, machine, table, solution)),
            bound_s=bound_s,
            status=Status.OPTIMAL if proven else Status.FEASIBLE,
            method=solution.stats.method,
        ),
        alternatives=tuple(
            Alternative(name, other.evaluation.period_s, other.evaluation.latency_s)
            for name, other in choice.others
        ),
        neighbours=tuple(
            Alternative(change, near.period_s, near.latency_s)
            for change, near in neighbours(problem, solution)[:_MOST_NEIGHBOURS]
        ),
        sources=tuple((op.name, op.sources) for op in graph.ops),
    )


def adopt(
    plan: Plan,
    graph: OpGraph,
    machine: Machine,
    table: ProfileTable,
    problem: Problem,
    choice: Choice,
) -> Plan:
    """Verify a given plan; one that was edited gets predicted figures again.

    What was predicted for an untouched plan stays as it is: a prediction that changes after the
    plan has run is none.

    Parameters
    ----------
    plan : Plan
        Of this model, for this machine.
    graph, machine, table, problem
        What it is scored by.
    choice : Choice
        What the solver would take, for the bound and the alternatives.

    Raises
    ------
    PlanError
        If it breaks a rule of structure, support or memory; the first is named.
    """
    verify_plan(plan, graph, machine)
    stage_of = assignment_of(plan, graph)
    placements = tuple(
        tuple(_option(machine, placement) for placement in stage.placements)
        for stage in plan.stages
    )
    evaluation = evaluate(problem, stage_of, placements)
    if evaluation.violations:
        raise PlanError(
            f"the plan breaks {len(evaluation.violations)} rule(s), the first: "
            f"{evaluation.violations[0]}; edit it or plan again"
        )
    if plan.predicted is not None:
        return plan
    solution = Solution(stage_of, placements, evaluation)
    fresh = make_plan(graph, machine, table, problem, replace(choice, solution=solution))
    predicted = fresh.predicted
    stages = tuple(map(_on_cores, fresh.stages, plan.stages))
    return replace(fresh, stages=stages, predicted=predicted and replace(predicted, method="given"))


def _option(machine: Machine, placement: Placement) -> int:
    """Which option a placement takes: its device with so many cores."""
    part = device_for(machine, placement)
    kinds = [(option.name, option.threads) for option in options_of(machine)]
    if (part.name, part.threads) not in kinds:
        counts = ", ".join(str(threads) for name, threads in kinds if name == part.name)
        raise PlanError(
            f"a stage on {part.threads} cores of {part.name!r} is not priced; give it {counts}"
        )
    return kinds.index((part.name, part.threads))


def _on_cores(stage: Stage, given: Stage) -> Stage:
    """The stage on the cores that were given."""
    pairs = zip(stage.placements, given.placements, strict=True)
    return replace(stage, placements=tuple(replace(p, cpus=own.cpus) for p, own in pairs))


def _name(problem: Problem, solution: Solution) -> str:
    kind = kind_of(solution)
    if kind == "single":
        return f"single {problem.option_names[solution.placements[0][0]]}"
    return kind


def _stages(
    graph: OpGraph, machine: Machine, problem: Problem, solution: Solution
) -> tuple[Stage, ...]:
    devices = options_of(machine)
    cores = {device.name: iter(device.cpus) for device in machine.devices}
    evaluation = solution.evaluation
    borders = [leaving for _, leaving in stage_tensors(graph, solution.stage_of)]
    entering, leaving = _traffic(problem, solution.stage_of, len(solution.placements))
    stages = []
    for index, options in enumerate(solution.placements):
        # Unequal replicas share items by speed; a stage that takes no time shares evenly.
        speeds = [1.0 / busy if busy > 0 else 1.0 for busy in evaluation.busy_s[index]]
        placements = tuple(
            Placement(
                device=devices[option].name,
                cpus=_take(devices[option], cores),
                share=speeds[replica] / sum(speeds),
                compute_s=evaluation.compute_s[index][replica],
                copy_s=evaluation.send_s[index][replica] + evaluation.recv_s[index][replica],
                busy_s=evaluation.busy_s[index][replica],
            )
            for replica, option in enumerate(options)
        )
        stages.append(
            Stage(
                ops=tuple(op.name for op in graph.ops if solution.stage_of[op.id] == index),
                placements=placements,
                in_bytes=float(entering[index]),
                out_bytes=float(leaving[index]),
                leaves=tuple(
                    (graph.tensors[t].name, graph.tensors[t].bytes) for t in borders[index]
                ),
                bytes=evaluation.stage_bytes[index],
            )
        )
    return tuple(stages)


def _take(option: Device, cores: Mapping[str, Iterator[int]]) -> tuple[int, ...]:
    """The next free cores of the option's cluster; its own where it is no part of one."""
    if option.kind != "cpu" or option.name not in cores:
        return option.cpus
    return tuple(islice(cores[option.name], option.threads))


def _unmeasured(
    graph: OpGraph, machine: Machine, table: ProfileTable, solution: Solution
) -> tuple[OpKey, ...]:
    """Interpolated times behind a solution's figures."""
    options = options_of(machine)
    places = [[options[option] for option in stage] for stage in solution.placements]
    return rests_on(table, graph, solution.stage_of, places)


def _traffic(
    problem: Problem, stage_of: tuple[int, ...], n_stages: int
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float64]], ...]:
    entering, leaving = np.zeros(n_stages), np.zeros(n_stages)
    for tensor, readers in enumerate(problem.consumers):
        size, maker = problem.tensor_bytes[tensor], int(problem.producer[tensor])
        home = stage_of[maker] if maker >= 0 else None
        targets = {stage_of[reader] for reader in readers} - {home}
        for target in targets:
            entering[target] += size
        if home is not None:
            leaving[home] += size * (len(targets) + int(problem.to_caller[tensor]))
    return entering, leaving


def _predicted(
    problem: Problem,
    evaluation: Evaluation,
    *,
    estimated: bool,
    interpolated: int,
    bound_s: float,
    status: Status,
    method: str,
) -> Predicted:
    return Predicted(
        period_s=evaluation.period_s,
        latency_s=evaluation.latency_s,
        bound_s=bound_s,
        status=status.value,
        method=method,
        bottleneck=evaluation.bottleneck,
        latency_model=problem.latency_model.value,
        transfer_model="sync",
        estimated=estimated,
        interpolated=interpolated,
    )
