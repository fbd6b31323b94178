"""`partitioner solve`: the solver alone, on a problem file."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from partitioner.cli.numbers import amount, count
from partitioner.errors import InfeasibleError, NoneFoundError, ProblemError
from partitioner.files import write_json
from partitioner.instance import (
    GOALS,
    Instance,
    no_solution_file,
    read_instance,
    solution_file,
)
from partitioner.problem import LatencyModel, Objective, Problem, Solution, Status

if TYPE_CHECKING:  # solvers load OR-Tools, which other commands do not need
    from partitioner.solvers import Progress, Replicated

__all__ = ["add_solve_arguments", "solve_command"]

_SECOND = {"copies": Objective.COPIES, "memory": Objective.MEMORY, "devices": Objective.DEVICES}


def add_solve_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `solve_command` reads."""
    parser.add_argument(
        "instance", metavar="INSTANCE", help=".json: published placement format, or a problem"
    )
    parser.add_argument(
        "--objective", choices=tuple(GOALS), help="default: throughput, or what the problem says"
    )
    parser.add_argument("--free", action="store_true", help="a stage's ops may lie anywhere")
    parser.add_argument(
        "--time-limit",
        type=amount,
        default=60.0,
        metavar="S",
        help="seconds; 0: the quick assignment only (default 60)",
    )
    parser.add_argument("--method", default="auto", metavar="M", help="default auto")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write the solution (JSON)")
    more = parser.add_argument_group("further limits and wishes")
    more.add_argument("--period-cap", type=amount, metavar="S", help="largest period")
    more.add_argument("--latency-cap", type=amount, metavar="S", help="largest latency")
    more.add_argument("--max-stages", type=count, metavar="N", help="largest number of stages")
    more.add_argument(
        "--second", choices=tuple(_SECOND), help="least of this among the best by the objective"
    )
    more.add_argument("--replicas", type=count, metavar="N", help="up to N equal devices a stage")
    more.add_argument("--best", type=count, metavar="K", help="the K best plans that differ")


def solve_command(arguments: argparse.Namespace) -> tuple[str, Any]:
    """Read, solve, write; what to print and the same as data.

    Raises
    ------
    InfeasibleError
        If there is no assignment; the solution file, which says so too, is there by then.
    """
    instance = read_instance(arguments.instance, arguments.objective, arguments.free)
    problem, replicated = _limited(instance.problem, arguments)
    began = time.perf_counter()
    try:
        solutions = _solutions(problem, arguments, replicated)
    except InfeasibleError as error:
        unknown = isinstance(error, NoneFoundError)
        data = no_solution_file(
            Status.UNKNOWN if unknown else Status.INFEASIBLE,
            time.perf_counter() - began,
            arguments.method,
        )
        _write(arguments, data)
        if unknown:
            raise
        raise InfeasibleError(_why(problem, error)) from error
    data = solution_file(problem, solutions[0])
    if arguments.best is not None:
        data["others"] = [solution_file(problem, each) for each in solutions[1:]]
    _write(arguments, data)
    return _text(replace(instance, problem=problem), solutions), data


def _limited(problem: Problem, arguments: argparse.Namespace) -> tuple[Problem, Replicated | None]:
    """The problem under the limits of the command line, and what its replicas stand for."""
    given = {
        "period_cap_s": arguments.period_cap,
        "latency_cap_s": arguments.latency_cap,
        "max_stages": arguments.max_stages,
        "second": None if arguments.second is None else _SECOND[arguments.second],
    }
    problem = replace(problem, **{k: v for k, v in given.items() if v is not None})
    if arguments.replicas is None:
        return problem, None
    from partitioner.solvers import with_replicas

    replicated = with_replicas(problem, arguments.replicas)
    return replicated.problem, replicated


def _solutions(
    problem: Problem, arguments: argparse.Namespace, replicated: Replicated | None
) -> Sequence[Solution]:
    """The best, or the K best, best first; interrupted, the best so far."""
    if arguments.best is not None:
        if arguments.method != "auto":
            raise ProblemError("--best has a method of its own; leave --method out")
        from partitioner.solvers import k_best

        return k_best(
            problem, arguments.best, time_limit_s=arguments.time_limit, replicated=replicated
        )
    from partitioner.solvers import solve

    with _progress() as progress:
        return (
            solve(
                problem,
                method=arguments.method,
                time_limit_s=arguments.time_limit,
                progress=progress,
            ),
        )


def _why(problem: Problem, error: InfeasibleError) -> str:
    from partitioner.solvers import describe, diagnose

    print("infeasible; looking for what would lift it", file=sys.stderr, flush=True)
    try:
        return describe(diagnose(problem)) or str(error)
    except KeyboardInterrupt:  # what is known without a search is worth saying
        return str(error)


def _write(arguments: argparse.Namespace, data: dict[str, Any]) -> None:
    if arguments.output:
        write_json(arguments.output, data)


def _text(instance: Instance, solutions: Sequence[Solution]) -> str:
    problem, best = instance.problem, solutions[0]
    stats, evaluation = best.stats, best.evaluation
    kind = "contiguous" if problem.contiguous else "free"
    lines = [
        f"{instance.name}: {problem.n_ops} ops, {problem.n_options} options, least "
        f"{problem.objective.value}, {kind}",
        f"{stats.status.value} by {stats.method} in {stats.wall_s:.2f} s: objective "
        f"{stats.objective:.7g}, bound {stats.bound:.7g}, gap {stats.gap:.3%}",
    ]
    if problem.second is not None and stats.second is not None:
        proof = "" if stats.second_bound is None else f", bound {stats.second_bound:.7g}"
        lines.append(f"then least {problem.second.value}: {stats.second:.7g}{proof}")
    lines += [
        _stage_table(problem, best),
        f"period {evaluation.period_s:.7g} ({evaluation.bottleneck}), latency "
        f"{evaluation.latency_s:.7g} ({_latency_name(problem)}), copies {evaluation.copies}, "
        f"memory {evaluation.memory_bytes:.7g}",
    ]
    if len(solutions) > 1:
        lines.append(_rank_table(problem, solutions))
    return "\n".join(lines)


def _latency_name(problem: Problem) -> str:
    listed = problem.latency_model is LatencyModel.LIST
    return problem.latency_model.value if problem.contiguous or listed else "serial"


def _stage_table(problem: Problem, solution: Solution) -> str:
    """A row a stage; stages of an option that takes any number of them are one row."""
    from partitioner.plan_table import table

    rows: dict[object, list[int]] = {}
    for stage, options in enumerate(solution.placements):
        unlimited = not problem.uses[list(options)].any()
        rows.setdefault(options if unlimited else stage, []).append(stage)
    evaluation = solution.evaluation
    counts = [solution.stage_of.count(stage) for stage in range(len(solution.placements))]

    def total(values: Sequence[Sequence[float]], stages: Sequence[int]) -> str:
        return f"{sum(max(values[stage]) for stage in stages):.6g}"

    return table(
        ("stage", "on", "ops", "compute", "send", "recv", "busy", "memory"),
        [
            (
                str(stages[0]) if len(stages) == 1 else f"{len(stages)} stages",
                _placed(problem, solution.placements[stages[0]]),
                str(sum(counts[stage] for stage in stages)),
                total(evaluation.compute_s, stages),
                total(evaluation.send_s, stages),
                total(evaluation.recv_s, stages),
                total(evaluation.busy_s, stages),
                f"{sum(evaluation.stage_bytes[stage] for stage in stages):.6g}",
            )
            for stages in rows.values()
        ],
    )


def _rank_table(problem: Problem, solutions: Sequence[Solution]) -> str:
    from partitioner.plan_table import table

    best = solutions[0].evaluation.value(problem.objective)
    rows = []
    for rank, each in enumerate(solutions, start=1):
        value = each.evaluation.value(problem.objective)
        ratio = value / best if best > 0 else 1.0
        stages = [
            f"{_placed(problem, options)} ({each.stage_of.count(stage)})"
            for stage, options in enumerate(each.placements)
        ]
        proof = each.stats.status.value
        rows.append((str(rank), f"{value:.7g}", f"{ratio:.4f}", proof, " | ".join(stages)))
    return table(("rank", problem.objective.value, "/ best", "place", "stages (ops)"), rows)


def _placed(problem: Problem, options: Sequence[int]) -> str:
    return " + ".join(problem.option_names[option] for option in options)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Objective, bound and gap: a line that changes on a terminal, else one an improvement."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        said = ""

        def say(objective: float, bound: float, spent: float) -> None:
            nonlocal said
            standing = _standing(objective, bound)
            if standing != said:
                said = standing
                print(f"{spent:8.2f} s  {standing}", file=sys.stderr, flush=True)

        yield say
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("looking for a first assignment", total=None)
        yield lambda objective, bound, spent: bar.update(
            task, description=_standing(objective, bound)
        )


def _standing(objective: float, bound: float) -> str:
    gap = max(0.0, objective - bound) / objective if objective > 0 else 0.0
    return f"best {objective:.7g}  bound {bound:.7g}  gap {gap:.3%}"
