"""Problems and solutions as files: the published placement format and our own.

`read_instance` reads either, `write_problem` writes ours, `solution_file` is what a solver's answer
looks like as data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partitioner.errors import InputError, ProblemError
from partitioner.files import write_json
from partitioner.instance.problem_json import FORMAT, problem_from_json, problem_to_json
from partitioner.instance.published import problem_from_published
from partitioner.instance.result import no_solution_file, solution_file
from partitioner.problem import Objective, Problem

__all__ = [
    "GOALS",
    "Instance",
    "no_solution_file",
    "problem_from_json",
    "problem_to_json",
    "read_instance",
    "solution_file",
    "write_problem",
]

GOALS = {"throughput": Objective.PERIOD, "latency": Objective.LATENCY}
"""What a user may ask of an instance, and what is then minimized."""


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A problem from a file.

    Attributes
    ----------
    name : str
        The file's name without its ending.
    problem : Problem
        Its ops are named by the node ids of the file, in a topological order.
    published : bool
        Whether the file had the published format; its times have a unit of their own, which the
        problem takes for seconds.
    """

    name: str
    problem: Problem
    published: bool


def read_instance(path: str | Path, objective: str | None = None, free: bool = False) -> Instance:
    """Read a problem.

    Parameters
    ----------
    path : str or Path
        A file of the published placement format, or one that `write_problem` wrote.
    objective : str, optional
        A name in `GOALS`; default: throughput for the published format, else what the file says.
    free : bool
        Whether the ops of a stage may lie anywhere; False leaves what the file says.

    Returns
    -------
    Instance

    Raises
    ------
    InputError
        If the file cannot be read.
    ProblemError
        If it is no instance: the message says where, what was found and what is needed.
    """
    if objective is not None and objective not in GOALS:
        raise ProblemError(f"unknown objective {objective!r}; known are {', '.join(GOALS)}")
    data = _load(Path(path))
    try:
        published = isinstance(data, dict) and "nodes" in data
        if published:
            latency = objective == "latency"
            problem = problem_from_published(data, latency=latency, free=free)
        else:
            problem = _own(data, objective, free)
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from error
    return Instance(Path(path).stem, problem, published)


def write_problem(path: str | Path, problem: Problem) -> None:
    """Write a problem for `read_instance`, whole or not at all."""
    write_json(path, problem_to_json(problem))


def _own(data: Any, objective: str | None, free: bool) -> Problem:
    if not isinstance(data, dict) or "format" not in data:
        kind = f"keys {', '.join(list(data)[:5]) or 'none'}" if isinstance(data, dict) else data
        raise ProblemError(
            f"not an instance (found {kind!r:.60}); it needs 'nodes' and 'edges' (published "
            f'format) or "format": {FORMAT!r}'
        )
    problem = problem_from_json(data)
    if objective is not None:
        problem = replace(problem, objective=GOALS[objective])
    return replace(problem, contiguous=False) if free else problem


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot read the instance: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, or far too deep
        raise ProblemError(f"{path}: not JSON ({error}); export the instance again") from error
