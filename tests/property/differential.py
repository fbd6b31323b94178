"""Every method against every other on seeded random problems, one drawn configuration each.

Run it by hand; `make test` runs a sample. 100,000 problems take about an hour on two cores::

    python tests/property/differential.py --count 100000 --processes 2 --in-turn

With ``--in-turn`` exhaustive search solves every problem and one of the others too, each in its
turn ("auto" where the one whose turn it is does not apply); without it each method solves all, in
four times the time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from drawn_problems import EXCLUSIVE, drawn, features

from partitioner.errors import InfeasibleError, NoneFoundError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import Problem, Solution, Status
from partitioner.solvers import solve

METHODS = ("brute", "dp", "cpsat", "highs", "auto")
# Methods that must treat every problem that is drawn.
ALWAYS = ("brute", "auto")
# Methods that may leave a proof open: what they do claim must be right all the same.
OPEN = ("dp", "highs")
RELATIVE = 1e-6
_TIME_LIMIT_S = {"highs": 0.3}
_USUAL_S = 60.0
# Problems that a process takes at a time.
_BATCH = 50


@dataclass(frozen=True, slots=True)
class Trial:
    """One problem by every method.

    Attributes
    ----------
    features : tuple of str
        What the problem has.
    feasible : bool
        By exhaustive search.
    spent_s : dict of str to float
        Seconds of each method that applies.
    left_open : tuple of str
        Methods that claim no more than they proved, which is not all.
    failures : tuple of str
        What disagrees.
    """

    seed: int
    features: tuple[str, ...]
    feasible: bool
    spent_s: dict[str, float]
    left_open: tuple[str, ...]
    failures: tuple[str, ...]


def trial(seed: int, *, in_turn: bool = False) -> Trial:
    """Solve the problem of a seed by the methods that apply, and compare."""
    warnings.simplefilter("error")
    problem = drawn(seed)
    spent: dict[str, float] = {}
    left_open: list[str] = []
    failures: list[str] = []
    best: Solution | None = None
    turn = METHODS[1 + seed % (len(METHODS) - 1)]
    for method in METHODS:
        known = method == "auto" and len(spent) > 1
        if in_turn and (known or method not in ("brute", turn, "auto")):
            continue
        begin = time.perf_counter()
        try:
            found = _solved(problem, method)
        except ProblemError as error:
            if method in ALWAYS:
                failures.append(f"{method}: refuses: {error}")
            continue
        except NoneFoundError as error:
            if method not in OPEN:
                failures.append(f"{method}: {error}")
            left_open.append(method)
            continue
        except Exception as error:  # a crash of one method is a finding, and the run goes on
            failures.append(f"{method}: {type(error).__name__}: {error}")
            continue
        spent[method] = time.perf_counter() - begin
        if method == "brute":
            best = found
        may_be_open = method in OPEN
        if may_be_open and found is not None and not _proven(found):
            left_open.append(method)
        wrong = disagreements(problem, found, best, may_be_open=may_be_open)
        failures += (f"{method}: {text}" for text in wrong)
    names = tuple(sorted(features(problem)))
    return Trial(seed, names, best is not None, spent, tuple(left_open), tuple(failures))


def _solved(problem: Problem, method: str) -> Solution | None:
    try:
        limit_s = _TIME_LIMIT_S.get(method, _USUAL_S)
        return solve(problem, method=method, time_limit_s=limit_s, workers=2)
    except NoneFoundError:
        raise
    except InfeasibleError:
        return None


def _proven(found: Solution) -> bool:
    stats = found.stats
    second = stats.second is None or (stats.second_bound or 0.0) >= stats.second * (1 - RELATIVE)
    return stats.status is Status.OPTIMAL and second


def disagreements(
    problem: Problem, found: Solution | None, best: Solution | None, *, may_be_open: bool = False
) -> Iterator[str]:
    """What a solution gets wrong, given the best one (None: infeasible)."""
    if found is None or best is None:
        if found is not best:
            yield "finds nothing" if found is None else "finds an assignment where there is none"
        return
    again = evaluate(problem, found.stage_of, found.placements)
    if not again.feasible:
        yield f"breaks a rule: {again.violations[0]}"
    stats, least = found.stats, best.stats
    still_open = may_be_open and stats.status is not Status.OPTIMAL
    if not still_open and (stats.status is not Status.OPTIMAL or stats.gap > RELATIVE):
        yield f"proves a gap of {stats.gap:.2e} only"
    values = (stats.objective, again.value(problem.objective))
    yield from _apart("objective", values, stats.bound, least.objective, still_open)
    if problem.second is None or still_open:
        return
    if stats.second is None or stats.second_bound is None or least.second is None:
        yield "leaves out the second objective"
        return
    still_open = may_be_open and stats.second_bound < stats.second * (1 - RELATIVE)
    values = (stats.second, again.value(problem.second))
    yield from _apart("second objective", values, stats.second_bound, least.second, still_open)


def _apart(
    name: str, values: tuple[float, float], bound: float, least: float, still_open: bool
) -> Iterator[str]:
    claimed, scored = values
    if abs(claimed - scored) > 1e-12 * abs(scored):
        yield f"{name} is claimed to be {claimed!r} and is {scored!r}"
    if scored < least * (1 - RELATIVE) or (scored > least * (1 + RELATIVE) and not still_open):
        yield f"{name} {scored!r}, the best is {least!r}"
    if bound > least * (1 + 1e-9):
        yield f"{name} bounded by {bound!r}, above the best, {least!r}"


@dataclass(slots=True)
class Summary:
    """What the trials so far come to."""

    problems: int = 0
    feasible: int = 0
    methods: Counter[str] = field(default_factory=Counter)
    left_open: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, found: Trial) -> None:
        """Count a trial in."""
        self.problems += 1
        self.feasible += found.feasible
        self.methods.update(found.spent_s.keys())
        self.left_open.update(found.left_open)
        self.seconds.update(found.spent_s)
        self.count(found.features)
        self.failures += (f"seed {found.seed}, {text}" for text in found.failures)

    def count(self, names: Iterable[str]) -> None:
        """Count the features of a problem in."""
        self.features.update(names)
        self.pairs.update(combinations(sorted(names), 2))

    def pairs_of_features(self) -> tuple[list[tuple[str, str]], dict[tuple[str, str], int]]:
        """Pairs that exclude one another by definition, and problems with each of the others."""
        every = list(combinations(sorted(self.features), 2))
        apart = [pair for pair in every if any(set(pair) <= group for group in EXCLUSIVE)]
        return apart, {pair: self.pairs[pair] for pair in every if pair not in apart}

    def rows(self) -> Iterator[str]:
        """The summary, line by line."""
        yield f"{self.problems} problems, {self.feasible} of them feasible"
        yield "by method: problems, of them left open, mean milliseconds"
        for method in METHODS:
            count = self.methods[method]
            mean = 1e3 * self.seconds[method] / max(1, count)
            yield f"  {method:<8}{count:>8}{self.left_open[method]:>8}{mean:>9.1f}"
        yield "by feature:"
        for name, count in self.features.most_common():
            yield f"  {name:<18}{count:>8}"
        apart, pairs = self.pairs_of_features()
        for (one, other), count in sorted(pairs.items(), key=lambda item: item[1])[:3]:
            yield f"least common pair of features: {count:>6}  {one} + {other}"
        together = ", ".join(" + ".join(pair) for pair in apart)
        yield f"{len(pairs)} pairs; {len(apart)} exclude one another: {together}"
        yield f"{len(self.failures)} failures"
        yield from (f"  {failure}" for failure in self.failures)


def _batches(first: int, count: int, known: set[int]) -> list[list[int]]:
    seeds = [seed for seed in range(first, first + count) if seed not in known]
    return [seeds[i : i + _BATCH] for i in range(0, len(seeds), _BATCH)]


def _trials(seeds: list[int], *, in_turn: bool) -> list[Trial]:
    return [trial(seed, in_turn=in_turn) for seed in seeds]


def _known(path: Path | None, first: int, count: int) -> Iterator[Trial]:
    """Trials of an earlier run, one JSON object a line."""
    if path is None or not path.exists():
        return
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        if first <= fields["seed"] < first + count:
            for name in ("features", "left_open", "failures"):
                fields[name] = tuple(fields[name])
            yield Trial(**fields)


def run(
    first: int,
    count: int,
    processes: int,
    most_failures: int,
    progress: Path | None = None,
    *,
    in_turn: bool = False,
) -> Summary:
    """Run all trials, or until there are too many failures."""
    summary, known = Summary(), set()
    for found in _known(progress, first, count):
        summary.add(found)
        known.add(found.seed)
    batches = _batches(first, count, known)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for batch in pool.imap_unordered(partial(_trials, in_turn=in_turn), batches):
            for found in batch:
                summary.add(found)
            if progress is not None:
                with progress.open("a") as file:
                    file.writelines(json.dumps(asdict(found)) + "\n" for found in batch)
            _tell(batch, summary)
            if len(summary.failures) >= most_failures:
                pool.terminate()
                break
    return summary


def _tell(batch: Iterable[Trial], summary: Summary) -> None:
    for found in batch:
        for failure in found.failures:
            print(f"seed {found.seed}, {failure}", file=sys.stderr, flush=True)
    if summary.problems % 1000 < _BATCH:
        print(f"{summary.problems} problems", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="problems")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--failures", type=int, default=20, help="stop at so many")
    parser.add_argument("--progress", type=Path, help="file that an interrupted run goes on from")
    parser.add_argument("--in-turn", action="store_true", help="not every method on every problem")
    given = parser.parse_args()
    begin = time.perf_counter()
    summary = run(
        given.first,
        given.count,
        given.processes,
        given.failures,
        given.progress,
        in_turn=given.in_turn,
    )
    for row in summary.rows():
        print(row)
    print(f"{time.perf_counter() - begin:.0f} s")
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
