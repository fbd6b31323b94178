"""Latency of one inference, ops placed freely on devices: exact methods against exhaustive search.

Every seed is a random graph of up to 9 ops on 2 or 3 devices with transfers in both directions,
which is solved by the latency models ``serial`` and ``list``, with memory budgets and without. Run
it by hand; `make test` runs a sample. Each seed is four problems::

    python tests/property/placements.py --count 5000
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import numpy as np
from differential import disagreements
from drawn_problems import Draw, features
from problem_builder import build

from partitioner.errors import InfeasibleError, NoneFoundError
from partitioner.evaluation import evaluate
from partitioner.problem import LatencyModel, Objective, Problem, Solution
from partitioner.solvers import solve
from partitioner.solvers.listed.bounds import load_bound, path_bound

MODELS = (LatencyModel.SERIAL, LatencyModel.LIST)
_SIZES = {2: 2, 3: 4, 4: 9, 5: 13, 6: 16, 7: 18, 8: 19, 9: 19}
# Seconds by the clock: a busy machine may stop a process for minutes.
_TIME_LIMIT_S = 900.0
_BATCH = 20


class _Placement(Draw):
    """A free problem with the latency for its only objective."""

    sizes = _SIZES

    def devices(self) -> None:
        """As a rule two or three devices; now and then whatever else there can be."""
        self.fields["contiguous"] = False
        if self.some(0.1):
            super().devices()
            return
        self.m = 3 if self.some(0.7) else 2
        self.alike = self.some(0.2)
        self.uses = np.eye(self.m, dtype=np.int64)
        self.capacity = np.ones(self.m, dtype=np.int64)
        self.max_stages = self.m if self.some(0.9) else 2
        self.fields |= {
            "uses": self.uses,
            "capacity": self.capacity,
            "max_stages": self.max_stages,
        }

    def aims(self) -> None:
        """Latency; the model comes later."""
        self.fields["objective"] = Objective.LATENCY


def placements(seed: int) -> Iterator[Problem]:
    """The problems of a seed: each latency model, with memory budgets and without.

    The budgets are laid about what a random assignment needs; caps are drawn for some seeds, and
    then from the same assignment by the model.
    """
    draw = _Placement(seed)
    draw.graph()
    draw.devices()
    draw.times()
    draw.plant()
    draw.transfers()
    draw.rules()
    draw.memory()
    draw.aims()
    capped = draw.some(0.2)
    base = build(draw.time_s, draw.tensors, **draw.fields)
    for model in MODELS:
        problem = dataclasses.replace(base, latency_model=model)
        found = evaluate(problem, draw.stage_of, [(option,) for option in draw.options])
        rng = np.random.default_rng(seed)
        budgets = np.ceil(np.array(found.pool_bytes) * rng.uniform(0.8, 1.4, len(found.pool_bytes)))
        caps: dict[str, float] = {}
        if capped:
            for name, value in (("period", found.period_s), ("latency", found.latency_s)):
                if np.isfinite(value) and rng.random() < 0.7:
                    caps[f"{name}_cap_s"] = value * rng.uniform(0.7, 1.2)
        for pool_bytes in (np.full(len(budgets), np.inf), budgets + 1):
            yield dataclasses.replace(problem, pool_bytes=pool_bytes, **caps)


def failures(seed: int, counted: Counter[str] | None = None) -> list[str]:
    """What disagrees among the problems of a seed."""
    warnings.simplefilter("error")
    counted = Counter() if counted is None else counted
    found: list[str] = []
    for number, problem in enumerate(placements(seed)):
        model = problem.latency_model.value
        memory = "with memory" if np.isfinite(problem.pool_bytes).any() else "without"
        counted[f"{model} {memory}"] += 1
        counted.update(features(problem))
        best = _solved(problem, "brute")
        counted["feasible"] += best is not None
        # By turns as the door does it, and by CP-SAT alone.
        method = "cpsat" if (seed + number) % 5 == 0 else "auto"
        begin = time.perf_counter()
        try:
            mine = _solved(problem, method)
        except Exception as error:  # a crash is a finding, and the run goes on
            found.append(f"seed {seed} {model} {memory} {method}: {type(error).__name__}: {error}")
            continue
        counted["milliseconds of exact methods"] += round(1e3 * (time.perf_counter() - begin))
        found += (
            f"seed {seed} {model} {memory} {method}: {text}"
            for text in (*disagreements(problem, mine, best), *_too_high(problem, best))
        )
    return found


def _too_high(problem: Problem, best: Solution | None) -> Iterator[str]:
    """Bounds without search that are above the best; the exact methods may not need them."""
    if best is None or problem.latency_model is not LatencyModel.LIST:
        return
    for name, bound in (("path", path_bound(problem)), ("load", load_bound(problem, 10.0))):
        if bound > best.stats.objective * (1 + 1e-9):
            yield f"{name} bound {bound!r} is above the best, {best.stats.objective!r}"


def _solved(problem: Problem, method: str) -> Solution | None:
    try:
        return solve(problem, method=method, time_limit_s=_TIME_LIMIT_S, workers=1)
    except NoneFoundError:
        raise
    except InfeasibleError:
        return None


def _batch(seeds: range) -> tuple[int, Counter[str], list[str]]:
    counted: Counter[str] = Counter()
    found = [text for seed in seeds for text in failures(seed, counted)]
    return len(seeds), counted, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=250, help="seeds, of four problems each")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    last = given.first + given.count
    batches = [range(a, min(a + _BATCH, last)) for a in range(given.first, last, _BATCH)]
    begin, seeds, bad = time.perf_counter(), 0, 0
    counted: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        for done, counts, found in pool.imap_unordered(_batch, batches):
            seeds, bad = seeds + done, bad + len(found)
            counted.update(counts)
            for text in found:
                print(text, file=sys.stderr, flush=True)
            if seeds % (10 * _BATCH) == 0:
                print(f"{4 * seeds} problems, {bad} failures", file=sys.stderr, flush=True)
    print(f"{4 * seeds} problems")
    for name, count in counted.most_common():
        print(f"  {name:<32}{count:>8}")
    print(f"{bad} failures, {time.perf_counter() - begin:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
