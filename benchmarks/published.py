"""The published placement instances: proof, time and memory, beside what the field does with them.

Every instance is solved in a fresh process on two threads and its solution file is scored again
from the instance file alone. `solve` is the solver's wall time, `process` includes the start of
Python; memory is the process's peak. Bars are judged by the unrounded figures.

    python benchmarks/published.py DIR [--free | --latency] [--time-limit S] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from published_bars import BARS, KNOWN, Run
from published_check import check_solution, critical_path
from published_heuristics import heuristic_scores

from partitioner.errors import InfeasibleError
from partitioner.files import write_json
from partitioner.instance import no_solution_file, read_instance, solution_file
from partitioner.plan_table import format_bytes, table
from partitioner.problem import Status
from partitioner.solvers import solve

WORKERS = 2
LIMITS_S = {"throughput": 60.0, "free": 60.0, "latency": 120.0}


@dataclass(frozen=True)
class Mode:
    """What is asked of the instances."""

    name: str

    @property
    def latency(self) -> bool:
        return self.name == "latency"

    @property
    def free(self) -> bool:
        return self.name == "free"

    def paths(self, folder: Path) -> list[Path]:
        kind = "latency" if self.latency else "throughput"
        return sorted(folder.rglob(f"{kind}-inputs/*/*.json"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="holds placement/")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--free", action="store_true", help="nodes of a device may lie anywhere")
    which.add_argument("--latency", action="store_true", help="one sample's latency")
    parser.add_argument("--time-limit", type=float, metavar="S", help="default 60, latency 120")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="instances whose name has it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures as data")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    mode = Mode("free" if arguments.free else "latency" if arguments.latency else "throughput")
    limit_s = LIMITS_S[mode.name] if arguments.time_limit is None else arguments.time_limit
    if arguments.one:
        _solve_one(arguments.folder, arguments.one, mode, limit_s)
        return 0
    runs = []
    for path in mode.paths(arguments.folder):
        name = _name(path)
        wanted = not arguments.only or any(part in name for part in arguments.only)
        if wanted and name in KNOWN[mode.name]:
            runs.append(_measured(path, mode, limit_s))
            print(_line(runs[-1]), file=sys.stderr, flush=True)
    if not runs:
        print(f"no {mode.name} instances in {arguments.folder}", file=sys.stderr)
        return 1
    print(_results(runs, mode))
    if not mode.latency:
        print()
        print(_beside(runs, mode, arguments.folder))
    print()
    print("\n".join(f"{bar}" for bar in BARS[mode.name](runs)))
    if arguments.json:
        write_json(arguments.json, [run.to_data() for run in runs])
    return 0


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem.removesuffix('_inference')}"


def _solve_one(out: Path, path: Path, mode: Mode, limit_s: float) -> None:
    """In a process of its own: solve and leave the solution file with time and memory."""
    instance = read_instance(path, "latency" if mode.latency else None, free=mode.free)
    began = time.perf_counter()
    try:
        data = solution_file(
            instance.problem, solve(instance.problem, time_limit_s=limit_s, workers=WORKERS)
        )
    except InfeasibleError:
        data = no_solution_file(Status.UNKNOWN, 0.0, "auto")
    data["solve_s"] = time.perf_counter() - began
    # Kilobytes on Linux.
    data["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    write_json(out, data)


def _measured(path: Path, mode: Mode, limit_s: float) -> Run:
    command = [sys.executable, __file__, "--one", str(path), "--time-limit", str(limit_s)]
    if mode.name != "throughput":
        command.append(f"--{mode.name}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "solution.json"
        began = time.perf_counter()
        subprocess.run([*command, str(out)], check=True)
        process_s = time.perf_counter() - began
        data = json.loads(out.read_text(encoding="utf-8"))
    value, broken = float("inf"), ("no assignment",)
    graph = json.loads(path.read_text(encoding="utf-8"))
    if data["assignment"]:
        checked = check_solution(graph, data["assignment"], latency=mode.latency, free=mode.free)
        value, broken = checked.value, checked.broken
    return Run(
        name=_name(path),
        status=data["status"],
        objective=float("inf") if data["objective"] is None else data["objective"],
        bound=data["bound"] or 0.0,
        checked=value,
        broken=broken,
        critical_path=critical_path(graph),
        solve_s=data["solve_s"],
        process_s=process_s,
        peak_bytes=data["peak_bytes"],
        known=KNOWN[mode.name][_name(path)],
    )


def _line(run: Run) -> str:
    return (
        f"{run.name}: {run.status} {run.objective:.6g}, bound {run.bound:.6g}, {run.solve_s:.1f} s"
    )


def _results(runs: list[Run], mode: Mode) -> str:
    headers = (
        "instance",
        "status",
        "objective",
        "checked",
        "known",
        "bound",
        "known bound",
        "gap",
        "solve",
        "process",
        "memory",
    )
    rows = [
        (
            run.name,
            run.status,
            f"{run.objective:.6g}",
            "; ".join(run.broken) or f"{run.checked:.6g}",
            run.known.value,
            f"{run.bound:.6g}",
            run.known.bound or "-",
            f"{run.gap:.3%}",
            f"{run.solve_s:.2f} s",
            f"{run.process_s:.2f} s",
            format_bytes(run.peak_bytes),
        )
        for run in runs
    ]
    return table(headers, rows)


def _beside(runs: list[Run], mode: Mode, folder: Path) -> str:
    """Largest loads by the field's heuristics, each over ours."""
    rows: list[tuple[str, ...]] = []
    headers: list[str] = []
    for path in mode.paths(folder):
        found = [run for run in runs if run.name == _name(path)]
        if not found:
            continue
        experts = folder.rglob(f"human-experts/{path.stem}_expert.json")
        expert = next(experts, None) if "Layer" in path.parent.name else None
        scores = heuristic_scores(read_instance(path, free=mode.free).problem, expert)
        headers = ["instance", "ours", *scores]
        ours = found[0].objective
        cells = [
            f"{score} ({score.value / ours:.2f}x)" if score.remark == "" else str(score)
            for score in scores.values()
        ]
        rows.append((found[0].name, f"{ours:.3f}", *cells))
    return table(headers, rows)


if __name__ == "__main__":
    sys.exit(main())
