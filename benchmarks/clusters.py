"""A full-speed core and a slow one: the chosen plan beside every simple alternative.

The slow core is an equal one whose processes are in a control group with a quota. For each network
the plan is made, frozen, then refined by the clock; after that the plan before and after refining,
each device alone, the weighted replicas, the equal and the proportional split run in turn, in an
order drawn anew in each round, each time in fresh processes. The refined plan runs twice in a
round: what differs between equal things is the noise, and their geometric mean stands for the
plan. Ratios are paired by round; each limit is the one-sided 95 % limit of their median, by
bootstrap over the rounds. The plan is not slower than an alternative if the upper limit is at most
1, or exceeds it by no more than the noise where that is below 5 %; slower if the lower limit
exceeds 1 by more than the noise. An alternative that was slower by over 30 % in each of the first
two rounds is left out of the later ones.

    python benchmarks/clusters.py [--networks NAME ...] [--share 0.4] [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from networks import NETWORKS

from partitioner import Machine, Partition, Plan, auto_partition, make_plan, zoo
from partitioner.cli import show_progress
from partitioner.files import write_json
from partitioner.host import allowed_cpus
from partitioner.machine import Device
from partitioner.plan_table import format_seconds, table
from partitioner.runtime.cgroup import quota
from partitioner.runtime.compare import run_each

BEFORE, PLAN, AGAIN = "before refining", "plan", "plan again"
BAR_BEFORE, BAR_AFTER = 0.10, 0.05
FEWEST_ROUNDS, SETTLED = 2, 1.3
CONFIDENCE, DRAWS = 0.95, 20_000
MOST_NOISE = 0.05


class Ratio(NamedTuple):
    """Median and its one-sided limits."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Found:
    """A network's figures.

    `predicted_s` by name of the frozen plans, `cut` their stages in words; `periods_s` of every
    contestant by round, shorter for those that were left out; `same` the alternatives that the
    refined plan is; `seconds` what all of it took.
    """

    network: str
    predicted_s: dict[str, float]
    cut: dict[str, str]
    periods_s: dict[str, list[float]]
    same: tuple[str, ...]
    seconds: float

    @property
    def alternatives(self) -> list[str]:
        return [n for n in self.periods_s if n not in (BEFORE, PLAN, AGAIN, *self.same)]

    def rounds_s(self, name: str) -> list[float]:
        """Period by round; of the plan's two runs the geometric mean."""
        if name == PLAN:
            return np.sqrt(np.multiply(self.periods_s[PLAN], self.periods_s[AGAIN])).tolist()
        return self.periods_s[name]

    def period_s(self, name: str) -> float:
        return statistics.median(self.rounds_s(name))

    def error(self, name: str) -> float:
        return self.predicted_s[name] / self.period_s(name) - 1

    def ratio(self, name: str, other: str) -> Ratio:
        """Period of one over another's, paired by round."""
        pairs = zip(self.rounds_s(name), self.rounds_s(other), strict=False)
        return _ratio([a / b for a, b in pairs])

    @property
    def noise(self) -> float:
        """How far the upper limit of equal things lies above 1."""
        pairs = zip(self.periods_s[PLAN], self.periods_s[AGAIN], strict=True)
        equal = _ratio([a / b for a, b in pairs])
        return max(equal.high, 1 / equal.low) - 1


def _ratio(ratios: list[float]) -> Ratio:
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(ratios, (DRAWS, len(ratios))), axis=1)
    low, high = np.quantile(drawn, [1 - CONFIDENCE, CONFIDENCE])
    return Ratio(statistics.median(ratios), float(low), float(high))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=zoo.names())
    parser.add_argument("--share", type=float, default=0.4, help="of a core's time, the slow one's")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each pipeline in a round")
    parser.add_argument("--refine", type=int, default=2, help="rounds of refining")
    parser.add_argument("--profile-seconds", type=float, default=6.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cpus = allowed_cpus()
    if len(cpus) < 2:
        print("two cores are needed", file=sys.stderr)
        return 1
    if arguments.rounds < FEWEST_ROUNDS:
        parser.error(f"at least {FEWEST_ROUNDS} rounds are needed for a limit")
    found: list[Found] = []
    with quota(arguments.share) as group:
        machine = Machine(
            "big and little",
            (Device("big", cpus=cpus[:1]), Device("little", cpus=cpus[1:2], cgroup=group)),
        )
        for network in arguments.networks:
            found.append(_one(network, machine, arguments))
            print(_shown(found[-1:]), file=sys.stderr, flush=True)
            if arguments.json:
                write_json(arguments.json, [asdict(each) for each in found])
    print(_shown(found))
    print()
    print(_verdicts(found))
    return 0


def _one(network: str, machine: Machine, arguments: argparse.Namespace) -> Found:
    began = time.monotonic()
    with show_progress() as progress:
        part = auto_partition(
            f"zoo:{network}",
            machine,
            profile_seconds=arguments.profile_seconds,
            progress=progress,
        )
        refined = part.refined(arguments.refine, progress=progress) if arguments.refine else part
    alternatives = _alternatives(part)
    contest = {PLAN: refined.plan, AGAIN: refined.plan, BEFORE: part.plan, **alternatives}
    ours = _words(refined.plan)
    return Found(
        network,
        predicted_s={
            name: plan.predicted.period_s for name, plan in contest.items() if plan.predicted
        },
        cut={name: _words(plan) for name, plan in contest.items()},
        periods_s=_rounds(part, contest, network, arguments),
        same=tuple(n for n, plan in alternatives.items() if _words(plan) == ours),
        seconds=time.monotonic() - began,
    )


def _alternatives(part: Partition) -> dict[str, Plan]:
    """Each device alone, replicas, equal and proportional split, by name."""
    return {
        name: make_plan(
            part.graph,
            part.machine,
            part.profile,
            part.problem,
            replace(part.choice, solution=solution),
        )
        for name, solution in part.choice.others
    }


def _rounds(
    part: Partition, contest: dict[str, Plan], network: str, arguments: argparse.Namespace
) -> dict[str, list[float]]:
    # Equal plans run once; the same one twice on purpose.
    home: dict[str, str] = {}
    runs = {
        name: home.setdefault(plan.assignment_hash, name)
        for name, plan in contest.items()
        if name != AGAIN
    }
    runners = [AGAIN, *home.values()]
    specs = {name: part.spec(contest[name]) for name in runners}
    items = zoo.inputs(network, 16)
    periods: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(arguments.rounds):
        print(f"{network}: round {turn + 1} of {arguments.rounds}", file=sys.stderr)
        running = [name for name in runners if not _settled(periods[name], periods[PLAN])]
        times = run_each(
            {name: specs[name] for name in random.sample(running, len(running))},
            lambda number: items[number % len(items)],
            expected_s={
                name: plan.predicted.period_s if plan.predicted else 0.01
                for name, plan in contest.items()
            },
            seconds=arguments.seconds,
        )
        for name, one in times.items():
            periods[name].append(one.period_s)
    return {AGAIN: periods[AGAIN], **{name: periods[runs[name]] for name in runs}}


def _settled(theirs: list[float], ours: list[float]) -> bool:
    ratios = [a / b for a, b in zip(theirs, ours, strict=False)]
    return len(ratios) >= FEWEST_ROUNDS and min(ratios) > SETTLED


def _words(plan: Plan) -> str:
    return " > ".join(
        f"{len(stage.ops)} on {' + '.join(place.device for place in stage.placements)}"
        for stage in plan.stages
    )


def _shown(found: list[Found]) -> str:
    return f"{_predictions(found)}\n\n{_ratios(found)}"


def _predictions(found: list[Found]) -> str:
    rows = []
    for one in found:
        for name in (BEFORE, PLAN):
            rows.append(
                (
                    one.network,
                    "refined" if name == PLAN else name,
                    one.cut[name],
                    format_seconds(one.predicted_s[name]),
                    format_seconds(one.period_s(name)),
                    f"{one.error(name):+.1%}",
                )
            )
    return table(("network", "", "ops of each stage", "predicted", "measured", "error"), rows)


def _ratios(found: list[Found]) -> str:
    """The plan's period over each alternative's: below 1 is faster."""
    kinds = ("single big", "single little", "replicas", "equal split", "proportional split")
    rows = []
    for one in found:
        cells = []
        for kind in kinds:
            names = [name for name in one.periods_s if name.startswith(kind)]
            cells += [_cell(one, names[0]) if names else "-"]
        rows.append((one.network, *cells, f"{one.noise:.1%}", f"{one.seconds:.0f} s"))
    return table(("plan's period over", *kinds, "noise", "took"), rows)


def _cell(one: Found, name: str) -> str:
    if name in one.same:
        return "is the plan"
    ratio = one.ratio(PLAN, name)
    return f"{ratio.median:.3f} (<= {ratio.high:.3f})"


def _verdict(ratio: Ratio, noise: float) -> str:
    if ratio.high <= 1:
        return "not slower"
    if ratio.high <= 1 + noise <= 1 + MOST_NOISE:
        return "not slower, within the noise"
    if ratio.low > 1 + noise:
        return "slower"
    return "inconclusive"


def _verdicts(found: list[Found]) -> str:
    lines = []
    for one in found:
        best = min(one.alternatives, key=one.period_s)
        for name in (BEFORE, PLAN):
            ratio = one.ratio(name, best)
            label = "refined plan" if name == PLAN else f"plan {name}"
            lines.append(
                f"{one.network}: {label} over the best alternative ({best}): {ratio.median:.3f} "
                f"[{ratio.low:.3f}, {ratio.high:.3f}], noise {one.noise:.1%}: "
                f"{_verdict(ratio, one.noise)}"
            )
    for name, bar in ((BEFORE, BAR_BEFORE), (PLAN, BAR_AFTER)):
        errors = [abs(one.error(name)) for one in found]
        middle = statistics.median(errors)
        lines.append(
            f"error of predicted, {'refined' if name == PLAN else name}: median {middle:.1%}, "
            f"largest {max(errors):.1%} (bar {bar:.0%}): {'met' if middle <= bar else 'missed'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
