"""What the exact reductions leave of a graph, and what they save.

    python benchmarks/reductions.py [--instance FILE ...] [--shapes S,...] [--ops N] [--devices N]

For each published instance given (throughput), for synthetic graphs, and for layers of identical
experts (a fork to 8 or 32 equal ops and a join, four times): ops, units once forced groups are
merged, units after each reduction alone and after all against the first incumbent, how many
branches are ordered after an identical one, and the time from that incumbent to the proof without
and with them (dynamic programming, CP-SAT where that is too large). Both must prove the same
objective.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import synthetic
from partitioner.instance import read_instance
from partitioner.problem import Problem
from partitioner.solvers import Limits
from partitioner.solvers.bounds import repriced
from partitioner.solvers.dp.table import TooLargeError, applies
from partitioner.solvers.limits import RELATIVE, Clock
from partitioner.solvers.pipeline import begin, run_cpsat, run_dp
from partitioner.solvers.reduce import reduce_ops
from partitioner.solvers.reductions.narrow import REDUCTIONS, Reduction, narrowed
from partitioner.solvers.reductions.twins import twins
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session

_LIMIT_S = 20.0


def main() -> None:
    """Print a line for each graph."""
    args = _arguments()
    names = " ".join(f"{reduction.name:>26}" for reduction in REDUCTIONS)
    print(f"{'graph':<24} {'ops':>5} {'units':>6} {names} {'all':>5} {'ordered':>8}", end=" ")
    print(f"{'s before':>9} {'s after':>9}")
    for name, problem in _problems(args):
        alone = [_proof(problem, (reduction,), prove=False)[1] for reduction in REDUCTIONS]
        value, units, seconds, proven = _proof(problem, ())
        again, left, less_seconds, also_proven = _proof(problem, REDUCTIONS)
        if proven and also_proven and abs(value - again) > 2 * RELATIVE * value:
            sys.exit(f"{name}: {value} without reductions, {again} with them")
        ordered = len(tuple(twins(problem, reduce_ops(problem))))
        counts = " ".join(f"{count:>26}" for count in alone)
        print(
            f"{name:<24} {problem.n_ops:>5} {units:>6} {counts} {left:>5} {ordered:>8} "
            f"{_seconds(seconds, proven)} {_seconds(less_seconds, also_proven)}",
            flush=True,
        )


def _proof(
    problem: Problem, reductions: tuple[Reduction, ...], *, prove: bool = True
) -> tuple[float, int, float, bool]:
    """Objective, units left, seconds from the incumbent on, and whether it was proven."""
    session = Session(problem, Limits(time_limit_s=_LIMIT_S), "reductions")
    prices = begin(session)
    start = time.perf_counter()
    if reductions and session.open and session.best is not None:
        cutoff, known = session.objective, (session.best.stage_of, session.best.placements)
        found = narrowed(problem, session.units, cutoff, prices, Clock(_LIMIT_S), reductions)
        session.units = found.units
        session.best = scored(problem, *found.carried(known), "incumbent")
        prices = repriced(problem, found.units, prices)
    if prove:
        if session.open and applies(problem):
            with suppress(TooLargeError):
                run_dp(session, prices)
        if session.open:
            run_cpsat(session)
    seconds = time.perf_counter() - start
    return session.objective, len(session.units), seconds, session.proven


def _problems(args: argparse.Namespace) -> Iterator[tuple[str, Problem]]:
    for path in args.instance:
        found = read_instance(path, "throughput")
        yield f"{path.parent.name[:5]} {found.name.removesuffix('_inference')}", found.problem
    for shape in args.shapes.split(","):
        for kind in ("equal", "unequal"):
            problem = synthetic.problem(shape, args.ops, args.devices, kind, 0)
            yield f"{shape} {args.devices} {kind}", problem

    for width in (8, 32):
        yield f"4 x {width} experts", _experts(4, width)


def _experts(layers: int, width: int) -> Problem:
    """Layers of equal branches, on the devices of the chain shape."""
    forks = [layer * (width + 1) for layer in range(layers)]
    n = layers * (width + 1) + 1
    consumers: list[tuple[int, ...]] = [()] * n
    for fork in forks:
        consumers[fork] = tuple(range(fork + 1, fork + 1 + width))
        for expert in consumers[fork]:
            consumers[expert] = (fork + 1 + width,)
    like = synthetic.problem("chain", n, 4, "unequal", 0)
    heavy = np.isin(np.arange(n), [*forks, n - 1])
    return dataclasses.replace(
        like,
        time_s=np.where(heavy, 2.0, 1.0)[:, None] * like.time_s.mean(axis=0),
        producer=np.arange(n),
        consumers=tuple(consumers),
        to_caller=np.arange(n) == n - 1,
        amount=np.full(n, 4e5),
        tensor_bytes=np.full(n, 4e5),
        constant_bytes=np.zeros(0),
        constant_ops=(),
        live_bytes=np.zeros(n),
        send_once=True,
    )


def _seconds(value: float, proven: bool) -> str:
    return f"{value:>9.2f}" if proven else f"> {value:.2f}".rjust(9)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instance", nargs="*", type=Path, default=[])
    parser.add_argument("--shapes", default="chain,inception,transformer")
    parser.add_argument("--ops", type=int, default=200)
    parser.add_argument("--devices", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
