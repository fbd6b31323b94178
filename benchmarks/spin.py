"""What an idle stage's spinning threads cost its neighbours, and what not spinning costs the stage.

TVM's pool threads spin before they sleep. For each count of spins, a stage with two threads runs an
item and is then idle for a while, over and over: first alone, then while a neighbour computes on
the second of its cores; and it runs item after item, alone. Shown are the stage's processor time an
item when it is alone (what is more than with 0 spins went into spinning), what the neighbour loses
of its core's time for an item (against its speed beside a stage that is idle all the time), and the
stage's own times. Settings take turns within a round, each in a fresh process; medians over the
rounds, in brackets the least and the most.

    python benchmarks/spin.py [--network squeezenet] [--gap-ms 10] [--rounds 5]
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from partitioner import import_model, split, zoo
from partitioner.host import allowed_cpus
from partitioner.machine import Device
from partitioner.plan_table import table
from partitioner.runtime.build import BuildCache
from partitioner.runtime.measure import measure
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.spec import PipelineSpec, ReplicaSpec, RunnerSpec, StageSpec, TensorSpec

COUNTS = ("0", "50", "200", "1000", "2000", "10000", "300000")
"""Of spins; the last one is TVM's own."""

SETTLE_S = 0.2
NEIGHBOUR = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
rounds = 0
print("ready", flush=True)
sys.stdin.readline()
began = time.perf_counter()
until = began + float(sys.argv[2])
while time.perf_counter() < until:
    sum(range(2000))
    rounds += 1
print(rounds / (time.perf_counter() - began))
"""


@dataclass(frozen=True)
class Found:
    """One setting in one round.

    `busy_s` is an item's processor time and `latency_s` its time, with idle time after each;
    `lost_s` the neighbour's loss an item; `period_s` the time of item after item.
    """

    busy_s: float
    latency_s: float
    lost_s: float
    period_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="squeezenet", choices=zoo.names())
    parser.add_argument("--gap-ms", type=float, default=10.0, help="idle between two items")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each setting in a round")
    arguments = parser.parse_args()
    cpus = allowed_cpus()[:2]
    if len(cpus) < 2:
        print("two cores are needed", file=sys.stderr)
        return 1
    spec = _spec(arguments.network, cpus)
    item = zoo.inputs(arguments.network, 1)[0]
    found: dict[str, list[Found]] = {count: [] for count in COUNTS}
    for turn in range(arguments.rounds):
        print(f"round {turn + 1} of {arguments.rounds}", file=sys.stderr)
        for count in random.sample(COUNTS, len(COUNTS)):
            with Pipeline(_spinning(spec, count)) as pipe:
                time.sleep(SETTLE_S)
                found[count].append(
                    _measure(pipe, item, cpus[1], arguments.gap_ms / 1e3, arguments.seconds)
                )
    print(_shown(found))
    return 0


def _spec(network: str, cpus: tuple[int, ...]) -> PipelineSpec:
    """The whole network as one stage of two threads."""
    grouped = import_model(f"zoo:{network}")
    graph = grouped.graph
    whole = split(grouped.module, graph, [0] * len(graph.ops))[0]
    built = BuildCache().build(whole, Device("cores", cpus=cpus))
    run = RunnerSpec("partitioner.runtime.executable:load", (str(built.path),))
    stage = StageSpec(network, (ReplicaSpec(cpus, 2, run),), graph.inputs, graph.outputs)
    ends = {number: graph.tensors[number] for number in {*graph.inputs, *graph.outputs}}
    tensors = {n: TensorSpec(end.name, end.shape, end.dtype) for n, end in ends.items()}
    return PipelineSpec((stage,), tensors, graph.inputs, graph.outputs)


def _spinning(spec: PipelineSpec, count: str) -> PipelineSpec:
    stage = spec.stages[0]
    one = replace(stage.replicas[0], env=(("TVM_THREAD_POOL_SPIN_COUNT", count),))
    return replace(spec, stages=(replace(stage, replicas=(one,)),))


def _measure(pipe: Pipeline, item: object, cpu: int, gap_s: float, seconds: float) -> Found:
    before = _processor_s(pipe.pids[0])
    latencies = _now_and_then(pipe, item, gap_s, seconds)
    busy_s = (_processor_s(pipe.pids[0]) - before) / len(latencies)
    idle_per_s = float(_neighbour(cpu, seconds).communicate()[0])
    neighbour = _neighbour(cpu, seconds)
    beside = _now_and_then(pipe, item, gap_s, seconds)
    lost = 1 - float(neighbour.communicate()[0]) / idle_per_s
    return Found(
        busy_s=busy_s,
        latency_s=statistics.median(latencies),
        lost_s=lost * seconds / len(beside),
        period_s=measure(pipe, lambda _: item, 50, warmup=10).period_s,
    )


def _now_and_then(pipe: Pipeline, item: object, gap_s: float, seconds: float) -> list[float]:
    """Run the item for so long, idle after each; seconds that each took."""
    latencies = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        pipe(item)
        latencies.append(time.perf_counter() - began)
        time.sleep(gap_s)
    return latencies


def _neighbour(cpu: int, seconds: float) -> subprocess.Popen[str]:
    """Start a process that computes on a core for a while and then prints its speed."""
    process = subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR, str(cpu), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout
    process.stdout.readline()
    process.stdin.write("\n")
    process.stdin.flush()
    return process


def _processor_s(pid: int) -> float:
    """Processor time of all threads of a process; to the nanosecond, unlike that of `stat`."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _shown(found: dict[str, list[Found]]) -> str:
    rows = []
    for count, rounds in found.items():
        columns = [
            sorted(getattr(one, name) * 1e3 for one in rounds)
            for name in ("busy_s", "latency_s", "lost_s", "period_s")
        ]
        rows.append(
            (
                count,
                *(f"{statistics.median(c):.2f} [{c[0]:.2f}, {c[-1]:.2f}]" for c in columns),
            )
        )
    headers = ("spins", "processor time", "latency", "neighbour loses", "item after item")
    return table(headers, rows) + "\nmilliseconds an item"


if __name__ == "__main__":
    sys.exit(main())
