"""Time, memory and gap of the solver on synthetic networks of a hundred to a hundred thousand ops.

Each case is solved in a fresh process by ``solve(method="auto", time_limit_s=...)``; `time` is its
wall time and `memory` the peak resident set of that process, the interpreter and the problem
included. The gap is (objective - bound) / objective with the bound that the solver proved. The
growth exponent is the slope of log(time) over log(ops), fitted by least squares over the cases of
one shape that differ in size alone; where a case ran until its limit, its time is that limit.
`synthetic.py` says how the networks are drawn. NASNet-like graphs, the hard ones, have a table of
their own, as have devices that are not equal.

Bars: 1,000 ops on 8 devices, gap at most 0.1 % within 30 s; 10,000 ops on any devices within 3 % of
the bound in 60 s; 100,000 ops within 10 % of it in 120 s under 4 GB. The solver gets a little less
than the time of its bar. Transformers also come with 48 and 200 layers, unless sizes are given.

    python benchmarks/scale.py [--quick] [--sizes N ...] [--devices K ...] [--shapes NAME ...]
                               [--kinds equal classes unequal] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import synthetic

from partitioner.files import write_json
from partitioner.plan_table import format_seconds, table
from partitioner.solvers import solve

SIZES, DEVICES = (100, 1_000, 10_000, 100_000), (2, 8, 64)
BAR_DEVICES, BAR_BYTES = 8, 4e9
LIMIT_S = {100: 10.0, 1_000: 30.0, 10_000: 60.0, 100_000: 120.0}
# Set-up and the last step of a search may run over a limit: part of it that the solver is given.
GIVEN = 0.95
LAYERS = (48, 200)


@dataclass(frozen=True)
class Case:
    shape: str
    ops: int
    devices: int
    kind: str
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    case: Case
    status: str
    objective_s: float
    bound_s: float
    gap: float
    wall_s: float
    peak_bytes: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="up to 1,000 ops, 2 and 8 devices")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--devices", type=int, nargs="+")
    parser.add_argument("--shapes", nargs="+", default=list(synthetic.SHAPES), metavar="NAME")
    parser.add_argument("--kinds", nargs="+", choices=synthetic.DEVICES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(asdict(solved(Case(**json.loads(arguments.case))))))
        return 0
    outcomes = []
    for case in cases(arguments):
        outcomes.append(apart(case))
        print(line(outcomes[-1]), file=sys.stderr, flush=True)
    if arguments.json:
        write_json(arguments.json, {"outcomes": [asdict(outcome) for outcome in outcomes]})
    print(report(outcomes))
    return 0


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """All shapes, sizes and numbers of equal devices; other kinds on 8 of them."""
    sizes = arguments.sizes or (SIZES[:2] if arguments.quick else SIZES)
    layered = [] if arguments.sizes or arguments.quick else [synthetic.LAYER * n for n in LAYERS]
    devices = arguments.devices or (DEVICES[:2] if arguments.quick else DEVICES)
    for kind in arguments.kinds or synthetic.DEVICES:
        numbers = devices if kind == "equal" or arguments.kinds else (BAR_DEVICES,)
        for shape in arguments.shapes:
            for number in numbers:
                for size in sorted({*sizes, *(layered if shape == "transformer" else ())}):
                    if number < size:
                        yield Case(shape, size, number, kind, arguments.seed)


def limit_s(ops: int) -> float:
    """Time limit of a case: that of the bar of the nearest size."""
    return LIMIT_S[min(LIMIT_S, key=lambda size: abs(math.log(size / ops)))]


def solved(case: Case) -> Outcome:
    """Solve a case in this process."""
    problem = synthetic.problem(case.shape, case.ops, case.devices, case.kind, case.seed)
    start = time.perf_counter()
    found = solve(problem, method="auto", time_limit_s=GIVEN * limit_s(case.ops))
    wall_s = time.perf_counter() - start
    stats = found.stats
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return Outcome(case, stats.status.value, stats.objective, stats.bound, stats.gap, wall_s, peak)


def apart(case: Case) -> Outcome:
    """Solve a case in a fresh process."""
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stderr}")
    data = json.loads(done.stdout)
    return replace(Outcome(**data), case=Case(**data["case"]))


def line(outcome: Outcome) -> str:
    case = outcome.case
    return (
        f"{case.shape} {case.ops} ops, {case.devices} {case.kind}: {outcome.status}, "
        f"gap {outcome.gap:.3%}, {outcome.wall_s:.2f} s, {outcome.peak_bytes / 1e9:.2f} GB"
    )


def verdict(outcome: Outcome) -> str:
    """The bar beside an outcome, and whether it is met."""
    case = outcome.case
    above = outcome.objective_s / outcome.bound_s - 1 if outcome.bound_s > 0 else math.inf
    if case.ops == 1_000 and case.devices == BAR_DEVICES:
        text, met = "gap 0.1%", outcome.gap <= 0.001
    elif case.ops == 10_000:
        text, met = "within 3%", above <= 0.03
    elif case.ops == 100_000:
        text, met = "within 10%", above <= 0.10 and outcome.peak_bytes < BAR_BYTES
    else:
        return ""
    limit = LIMIT_S[case.ops]
    return f"{text} in {limit:.0f} s: {'met' if met and outcome.wall_s <= limit else 'MISSED'}"


def report(outcomes: list[Outcome]) -> str:
    """Tables of the common shapes, of NASNet-like ones, and of unequal devices."""
    parts = []
    groups = {
        "Equal devices": [o for o in outcomes if o.case.kind == "equal" and not hard(o)],
        "Equal devices, NASNet-like": [o for o in outcomes if o.case.kind == "equal" and hard(o)],
        "Two classes, half big and half little": of_kind(outcomes, "classes"),
        "Mutually unequal devices": of_kind(outcomes, "unequal"),
    }
    for title, group in groups.items():
        if group:
            parts.append(f"{title}\n{rows(group)}")
    exponents = list(growth(outcomes))
    if exponents:
        headers = ("shape", "devices", "kind", "growth exponent of time")
        parts.append(f"Growth\n{table(headers, exponents)}")
    barred = [verdict(outcome) for outcome in outcomes if verdict(outcome)]
    met = sum(text.endswith("met") for text in barred)
    parts.append(f"bars met: {met} of {len(barred)}")
    return "\n\n".join(parts)


def hard(outcome: Outcome) -> bool:
    return outcome.case.shape == "nasnet"


def of_kind(outcomes: list[Outcome], kind: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.case.kind == kind]


def rows(outcomes: list[Outcome]) -> str:
    headers = (
        "shape",
        "ops",
        "devices",
        "time",
        "memory",
        "period",
        "bound",
        "status",
        "gap",
        "bar",
    )
    body = [
        (
            outcome.case.shape,
            f"{outcome.case.ops:,}",
            str(outcome.case.devices),
            f"{outcome.wall_s:.2f} s",
            f"{outcome.peak_bytes / 1e9:.2f} GB",
            format_seconds(outcome.objective_s),
            format_seconds(outcome.bound_s),
            outcome.status,
            f"{outcome.gap:.3%}",
            verdict(outcome),
        )
        for outcome in outcomes
    ]
    return table(headers, body)


def growth(outcomes: list[Outcome]) -> Iterator[tuple[str, str, str, str]]:
    """Slope of log(time) over log(ops) for each shape, number and kind of devices."""
    series: dict[tuple[str, int, str], list[Outcome]] = {}
    for outcome in outcomes:
        case = outcome.case
        series.setdefault((case.shape, case.devices, case.kind), []).append(outcome)
    for (shape, devices, kind), found in series.items():
        if len(found) > 1:
            ops = np.log([outcome.case.ops for outcome in found])
            seconds = np.log([max(1e-3, outcome.wall_s) for outcome in found])
            yield shape, str(devices), kind, f"{np.polyfit(ops, seconds, 1)[0]:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
