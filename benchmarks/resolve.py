"""Solving again after a cost change, against solving from scratch.

    python benchmarks/resolve.py [--ops N] [--shapes chain,inception] [--kinds equal,unequal]
                                 [--devices 2,3,4] [--changes K] [--share P] [--instance FILE ...]

Graphs shaped like real networks (see `synthetic`) get seeded changes, one after the other, as a
slider or a refinement loop makes them: a tenth of the ops become up to five per cent slower or
faster on every device. Each change is solved both ways, in turns; both must prove the same
objective. Times are wall times with the proof; the bar is a median under 100 ms on 200 ops.
`--instance` takes files of the published format (throughput) instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import synthetic
from partitioner.instance import read_instance
from partitioner.problem import Problem, Solution, Status
from partitioner.solvers import Resolver, solve
from partitioner.solvers.limits import RELATIVE

BAR_S = 0.1
_LIMIT_S = 60.0


def main() -> None:
    """Print a line for each graph."""
    args = _arguments()
    bar = f"bar {BAR_S * 1e3:.0f} ms"
    print(f"{'graph':<28} {'ops':>5} {'scratch ms':>20} {'re-solve ms':>20} {'ratio':>6}  {bar}")
    print(f"{'':<28} {'':>5} {'median':>13} {'p90':>6} {'median':>13} {'p90':>6}")
    for name, problem in _problems(args):
        scratch, again, open_ = _race(problem, args.changes, args.share, args.seed)
        ratio = statistics.median(scratch) / statistics.median(again)
        verdict = "met" if statistics.median(again) < BAR_S else "missed"
        note = f", {open_} unproven" if open_ else ""
        print(
            f"{name:<28} {problem.n_ops:>5} {_pair(scratch)} {_pair(again)} {ratio:>6.1f}  "
            f"{verdict}{note}",
            flush=True,
        )


def _race(
    problem: Problem, changes: int, share: float, seed: int
) -> tuple[list[float], list[float], int]:
    """Seconds of each way for each change, and how many changes were not proven in time."""
    resolver = Resolver(problem)
    resolver.solve(time_limit_s=_LIMIT_S)
    rng = np.random.default_rng(seed)
    scratch: list[float] = []
    again: list[float] = []
    open_ = 0
    for _ in range(changes):
        problem = _changed(problem, share, rng)
        whole, spent = _timed(lambda p=problem: solve(p, time_limit_s=_LIMIT_S))
        scratch.append(spent)
        quick, spent = _timed(lambda p=problem: resolver.solve(p, time_limit_s=_LIMIT_S))
        again.append(spent)
        proven = whole.stats.status is Status.OPTIMAL and quick.stats.status is Status.OPTIMAL
        open_ += not proven
        if proven:
            values = sorted((whole.stats.objective, quick.stats.objective))
            if values[1] - values[0] > 2 * RELATIVE * values[1]:
                sys.exit(f"the two ways prove different optima: {values}")
    return scratch, again, open_


def _changed(problem: Problem, share: float, rng: np.random.Generator) -> Problem:
    factor = np.ones(problem.n_ops)
    hit = rng.random(problem.n_ops) < share
    factor[hit] = rng.uniform(0.95, 1.05, int(hit.sum()))
    return dataclasses.replace(problem, time_s=problem.time_s * factor[:, None])


def _timed(run: Callable[[], Solution]) -> tuple[Solution, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def _problems(args: argparse.Namespace) -> Iterator[tuple[str, Problem]]:
    if args.instance:
        for path in args.instance:
            found = read_instance(path, "throughput")
            yield found.name, found.problem
        return
    for shape in args.shapes.split(","):
        for kind in args.kinds.split(","):
            for devices in args.devices.split(","):
                problem = synthetic.problem(shape, args.ops, int(devices), kind, args.seed)
                yield f"{shape} {devices} {kind}", problem


def _pair(seconds: list[float]) -> str:
    ms = np.array(seconds) * 1e3
    return f"{np.median(ms):>13.1f} {np.quantile(ms, 0.9):>6.1f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", type=int, default=200)
    parser.add_argument("--shapes", default="chain,inception,transformer")
    parser.add_argument("--kinds", default="equal,classes,unequal")
    parser.add_argument("--devices", default="2,3,4")
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.1, help="part of the ops that change")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--instance", nargs="*", help="published instance files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
