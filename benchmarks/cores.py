"""Seconds to the proven best plan over cuts, clusters, core counts and replicas at once.

For every network of the zoo on a machine of core clusters that nobody measured: an op's time on one
core is the roofline estimate over the cluster's speed (a little core has a speed of its own for
every kernel), on k cores it shrinks by Amdahl's law with a parallel fraction drawn for the kernel,
and each thread more costs a fork. With --noise times are off by a few percent as measured ones are,
odd core counts divide the work badly, and more cores may well be slower. All draws are seeded by
the kernel, so that equal kernels take equal times.

Options are each cluster with each number of its cores, up to four replicas of these as far as they
fit, and all cores joined. Bar: status OPTIMAL (gap at most 1e-6) within 10 s.

    python benchmarks/cores.py [--networks NAME ...] [--machines 4+4 2+2+4 8+8] [--noise]
                               [--objective period | latency] [--memory FACTOR] [--replicas 4]
                               [--best K] [--resolve] [--seed 0] [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from partitioner import zoo
from partitioner.api import import_model
from partitioner.cost import build_problem, options_of
from partitioner.cost.estimate import estimate_profile
from partitioner.errors import InfeasibleError
from partitioner.files import write_json
from partitioner.graph import OpGraph
from partitioner.host import HostInfo
from partitioner.machine import Device, Machine
from partitioner.plan_table import format_seconds, table
from partitioner.problem import Objective, Problem, Solution
from partitioner.profiling.table import Measurement, OpKey, Origin, ProfileTable
from partitioner.solvers import Resolver, k_best, single, solve
from partitioner.solvers.replicate import Replicated, with_replicas

LIMIT_S = 10.0
FORK_S = 5e-6
PARALLEL = (0.7, 0.98)
NOISE = 0.04
# Odd numbers of threads leave some of them idle in loops whose extents are powers of two.
ODD = 1.25
# Name, cores, least and most speed of a core by kernel.
Cluster = tuple[str, int, float, float]
MACHINES: dict[str, tuple[Cluster, ...]] = {
    "4+4": (("big", 4, 1.0, 1.0), ("little", 4, 0.25, 0.5)),
    "2+2+4": (("prime", 2, 1.2, 1.4), ("big", 2, 1.0, 1.0), ("little", 4, 0.25, 0.5)),
    "8+8": (("big", 8, 1.0, 1.0), ("little", 8, 0.25, 0.5)),
}


@dataclass(frozen=True)
class Outcome:
    machine: str
    network: str
    ops: int
    options: int
    wall_s: float
    objective_s: float
    alone_s: float
    gap: float
    status: str
    stages: str
    extra: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=zoo.names(), choices=zoo.names())
    parser.add_argument("--machines", nargs="+", default=["4+4"], choices=MACHINES)
    parser.add_argument("--noise", action="store_true", help="times off as measured ones are")
    parser.add_argument("--objective", default="period", choices=("period", "latency"))
    parser.add_argument("--memory", type=float, help="budget of the one pool: uncut models")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--best", type=int, default=0, help="time the k best plans too")
    parser.add_argument("--resolve", action="store_true", help="time changed costs too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    outcomes = []
    for name in arguments.networks:
        graph = import_model(f"zoo:{name}").graph
        for machine in arguments.machines:
            outcomes.append(measured(graph, machine, arguments))
            print(report(outcomes[-1:]), file=sys.stderr, flush=True)
    if arguments.json:
        write_json(arguments.json, {"outcomes": [asdict(outcome) for outcome in outcomes]})
    for machine in arguments.machines:
        part = [outcome for outcome in outcomes if outcome.machine == machine]
        met = sum(verdict(outcome) == "met" for outcome in part)
        print(f"\n{machine} cores\n{report(part)}")
        print(f"proven within {LIMIT_S:g} s: {met} of {len(part)}")
    return 0


def measured(graph: OpGraph, machine: str, arguments: argparse.Namespace) -> Outcome:
    """Solve one network's problem on one machine."""
    original = problem(
        graph,
        MACHINES[machine],
        noise=arguments.noise,
        objective=Objective(arguments.objective),
        memory=arguments.memory,
        seed=arguments.seed,
    )
    replicated = with_replicas(original, arguments.replicas)
    begin = time.perf_counter()
    try:
        found = solve(replicated.problem, time_limit_s=LIMIT_S)
    except InfeasibleError as error:
        print(f"{graph.name}: {error}", file=sys.stderr)
        found = None
    wall_s = time.perf_counter() - begin
    extra = [best_of(replicated, arguments.best)] if arguments.best else []
    extra += [resolved(replicated, arguments.seed)] if arguments.resolve else []
    alone = [single(original, option) for option in range(original.n_options)]
    alone_s = min(
        (each.evaluation.value(original.objective) for each in alone if each), default=np.inf
    )
    size = (machine, graph.name, len(graph.ops), replicated.problem.n_options, wall_s)
    if found is None:
        return Outcome(*size, np.inf, alone_s, np.inf, "none", "", "; ".join(extra))
    stats = found.stats
    return Outcome(
        *size,
        stats.objective,
        alone_s,
        stats.gap,
        stats.status.value,
        stages(replicated, found),
        "; ".join(extra),
    )


def problem(
    graph: OpGraph,
    clusters: Sequence[Cluster],
    *,
    noise: bool = False,
    objective: Objective = Objective.PERIOD,
    memory: float | None = None,
    seed: int = 0,
) -> Problem:
    """A network on a machine of clusters.

    Parameters
    ----------
    noise : bool
        Whether times are off as measured ones are.
    memory : float, optional
        Budget of the memory that all share, as a multiple of what the uncut network takes.
    """
    first = np.cumsum([0, *(count for _, count, _, _ in clusters)])
    devices = tuple(
        Device(name, cpus=tuple(range(start, start + count)))
        for (name, count, _, _), start in zip(clusters, first.tolist(), strict=False)
    )
    machine = Machine("clusters", devices)
    table = profile(graph, machine, clusters, noise=noise, seed=seed)
    found = build_problem(graph, table, machine, objective=objective)
    whole = single(found, 0)
    if memory is None or whole is None:
        return found
    return replace(found, pool_bytes=memory * np.array(whole.evaluation.pool_bytes))


def profile(
    graph: OpGraph, machine: Machine, clusters: Sequence[Cluster], *, noise: bool, seed: int
) -> ProfileTable:
    """Times that nobody measured for every kernel on every option; see the module."""
    host = HostInfo("drawn", "", "", 0, "")
    core = Device("core", cpus=(0,))
    nominal = estimate_profile(graph, [core], Origin(host, "", ""))
    cores = {name: (count, least, most) for name, count, least, most in clusters}
    options = options_of(machine)
    rows: dict[OpKey, Measurement] = {}
    for signature in dict.fromkeys(op.signature for op in graph.ops):
        rng = np.random.default_rng([seed, int(signature[:8], 16)])
        one_s = nominal.ops[OpKey(signature, core.name, 1)].median_s
        parallel = rng.uniform(*PARALLEL)
        speed = {name: rng.uniform(low, high) for name, (_, low, high) in cores.items()}
        off = np.exp(NOISE * rng.standard_normal(len(options)))
        for option, factor in zip(options, off, strict=True):
            k = option.threads
            # All cores joined wait for the slowest, each with an equal part of the work.
            slowest = speed.get(option.name, min(speed.values()))
            time_s = one_s / slowest * (1 - parallel + parallel / k) + FORK_S * (k - 1)
            if noise:
                time_s *= factor * (ODD if k > 1 and k % 2 else 1.0)
            rows[OpKey(signature, option.name, k)] = Measurement(time_s)
    return replace(nominal, ops=rows)


def best_of(replicated: Replicated, k: int) -> str:
    """Seconds that the k best plans take, and how many of them are proven in their place."""
    begin = time.perf_counter()
    found = k_best(replicated.problem, k, time_limit_s=LIMIT_S, replicated=replicated)
    proven = sum(plan.stats.status.value == "OPTIMAL" for plan in found)
    return f"{k} best {time.perf_counter() - begin:.2f} s ({proven} proven)"


def resolved(replicated: Replicated, seed: int) -> str:
    """Seconds that the same network takes again under costs changed by a few percent."""
    rng = np.random.default_rng(seed)
    resolver = Resolver(replicated.problem)
    resolver.solve(time_limit_s=LIMIT_S)
    walls, proven = [], 0
    for _ in range(3):
        factor = rng.uniform(0.97, 1.03, (replicated.problem.n_ops, 1))
        changed = replace(replicated.problem, time_s=replicated.problem.time_s * factor)
        begin = time.perf_counter()
        proven += resolver.solve(changed, time_limit_s=LIMIT_S).stats.status.value == "OPTIMAL"
        walls.append(time.perf_counter() - begin)
    return f"again {max(walls):.2f} s ({proven} of {len(walls)} proven)"


def stages(replicated: Replicated, solution: Solution) -> str:
    """Stages with cores and replicas, e.g. ``big 2, little 1 x3``."""
    p = replicated.problem
    found = []
    for (option,) in solution.placements:
        one = p.uses[option] // p.replicas[option]
        names = replicated.original.option_names[replicated.members[option][0]].split(" ")[0]
        many = f" x{p.replicas[option]}" if p.replicas[option] > 1 else ""
        found.append(f"{names} {int(one.sum())}{many}")
    return ", ".join(found)


def verdict(outcome: Outcome) -> str:
    proven = outcome.status == "OPTIMAL" and outcome.gap <= 1e-6
    return "met" if proven and outcome.wall_s <= LIMIT_S else "MISSED"


def report(outcomes: Sequence[Outcome]) -> str:
    headers = ("network", "ops", "options", "wall", "gap", "best", "one stage", "stages", "", "bar")
    rows = [
        (
            outcome.network,
            str(outcome.ops),
            str(outcome.options),
            f"{outcome.wall_s:.2f} s",
            f"{outcome.gap:.1e}",
            format_seconds(outcome.objective_s),
            format_seconds(outcome.alone_s),
            outcome.stages,
            outcome.extra,
            verdict(outcome),
        )
        for outcome in outcomes
    ]
    return table(headers, rows)


if __name__ == "__main__":
    raise SystemExit(main())
