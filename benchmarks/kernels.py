"""Kernels by rule and tuned ones beside ONNX Runtime, on the same cores in one run.

Every contestant is a process of its own, pinned to the cores, that waits while another runs; in
each round each runs for a moment, in an order drawn anew. Outputs are compared with ONNX Runtime's.
Last come, for each network, the slowest kernels against what the core can do: the rate of
independent multiply-adds in registers and of reading memory, measured here as well.

    python benchmarks/kernels.py [--networks NAME ...] [--records FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from contestants import Contestant
from roofline import Peak, measured_peak

from partitioner import lowering, zoo
from partitioner.api import import_model
from partitioner.files import write_json
from partitioner.frontend import Grouped
from partitioner.graph import Op, OpGraph
from partitioner.host import allowed_cpus
from partitioner.lowering.isa import isa_of
from partitioner.machine import Device
from partitioner.plan_table import format_seconds, table
from partitioner.report.outputs import compared
from partitioner.rewrite.split import split
from partitioner.runtime.build import BuildCache, Built
from partitioner.tuning.records import Records

NETWORKS = ("squeezenet", "resnet50", "shufflenet", "inception_v1", "ppocr_det", "minilm")
UNTUNED, TUNED, ORT = "untuned", "tuned", "ONNX Runtime"
SLOWEST = 5


@dataclass(frozen=True)
class Row:
    """One network on one number of threads.

    `times_s` by contestant, one median a round; `worst` by contestant the largest difference of
    its outputs from ONNX Runtime's in parts of what is allowed.
    """

    network: str
    threads: int
    times_s: dict[str, list[float]]
    worst: dict[str, float]

    def ratio(self, faster: str, than: str) -> float:
        """Median over the rounds of `than`'s time over `faster`'s."""
        pairs = zip(self.times_s[than], self.times_s[faster], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def spread(self, name: str) -> float:
        """Interquartile range over median of a contestant's rounds."""
        low, middle, high = np.percentile(self.times_s[name], [25, 50, 75])
        return float((high - low) / middle)


@dataclass(frozen=True)
class Slow:
    """A kernel of those that take most of the time, `share` of the network's on one thread."""

    network: str
    kernels: str
    op: str
    time_s: float
    share: float
    flops: float
    bytes: int

    def of_peak(self, peak: Peak) -> float:
        """The least time that the core could take, by arithmetic or memory, over the time taken."""
        return max(self.flops / peak.flops, self.bytes / peak.bytes_per_s) / self.time_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=zoo.names())
    parser.add_argument("--records", type=Path, help="folder of tuning records; default: shipped")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each in a round")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cpus = sorted(allowed_cpus())
    if max(arguments.threads) > len(cpus):
        parser.error(f"--threads {max(arguments.threads)}: this process may use {len(cpus)} cores")
    records = Records.load(arguments.records) if arguments.records else Records.shipped()
    rows: list[Row] = []
    slow: list[Slow] = []
    compile_s: dict[str, dict[str, float]] = {}
    for name in arguments.networks:
        print(name, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found, slowest, compile_s[name] = _one(
                name,
                records,
                Path(folder),
                [cpus[:threads] for threads in arguments.threads],
                arguments.rounds,
                arguments.seconds,
            )
        rows += found
        slow += slowest
        print(_times(found, compile_s), file=sys.stderr, flush=True)
    os.sched_setaffinity(0, cpus[:1])
    peak = measured_peak(isa_of(lowering.host_target(1)).lanes)
    if arguments.json:
        data = {"rows": [asdict(r) for r in rows], "slow": [asdict(s) for s in slow]}
        write_json(arguments.json, {**data, "compile_s": compile_s, "peak": asdict(peak)})
    print(_times(rows, compile_s))
    print()
    print(_slowest(slow, peak))
    print()
    print(_means(rows))
    return 0


def _one(
    name: str,
    records: Records,
    folder: Path,
    cores: Sequence[Sequence[int]],
    rounds: int,
    seconds: float,
) -> tuple[list[Row], list[Slow], dict[str, float]]:
    model = zoo.load(name).model
    item = zoo.inputs(name, 1)[0]
    np.savez(folder / "inputs.npz", **item)
    onnx.save(model, folder / "model.onnx")
    grouped = import_model(f"zoo:{name}")
    graph = grouped.graph
    caches = {
        UNTUNED: BuildCache(folder / UNTUNED, Records.none()),
        TUNED: BuildCache(folder / TUNED, records),
    }
    compile_s: dict[str, float] = {}
    rows, slow = [], []
    generator = random.Random(0)
    for cpus in cores:
        builds: dict[str, Built] = {}
        for kind, cache in caches.items():
            start = time.perf_counter()
            builds[kind] = _build(grouped, cache, cpus)
            compile_s.setdefault(kind, time.perf_counter() - start)
        with ExitStack() as stack:
            runs: dict[str, Contestant] = {}
            for kind, built in builds.items():
                runs[kind] = Contestant(
                    folder, kind, cpus, library=built.path, kernels=built.kernels
                )
                stack.callback(runs[kind].close)
            runs[ORT] = Contestant(folder, ORT, cpus, model=folder / "model.onnx")
            stack.callback(runs[ORT].close)
            times: dict[str, list[float]] = {kind: [] for kind in runs}
            for _ in range(rounds):
                for kind in generator.sample(list(runs), len(runs)):
                    times[kind].append(runs[kind].run(seconds))
            theirs = runs[ORT].outputs()
            worst = {}
            for kind in builds:
                outputs = compared([runs[kind].outputs()], [theirs], bitwise=False)
                worst[kind] = outputs.max_abs_diff / outputs.tolerance
            rows.append(Row(name, len(cpus), times, worst))
            if len(cpus) == 1:
                op_s = runs[TUNED].trace(2 * seconds)
                slow = _slow(name, graph, builds[TUNED], op_s)
    return rows, slow, compile_s


def _build(grouped: Grouped, cache: BuildCache, cpus: Sequence[int]) -> Built:
    whole = split(grouped.module, grouped.graph, [0] * len(grouped.graph.ops))[0]
    return cache.build(whole, Device("cores", cpus=tuple(cpus)))


def _slow(name: str, graph: OpGraph, built: Built, op_s: Sequence[float]) -> list[Slow]:
    """The ops that take most time, those with the same kernels counted together."""
    ops = {op.name: op for op in graph.ops}
    taken: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for (op, kernels), seconds in zip(built.kernels, op_s, strict=True):
        taken.setdefault(kernels, []).append((op, seconds))
    total = sum(op_s)
    found = [
        Slow(
            network=name,
            kernels=", ".join(kernels),
            op=calls[0][0] + (f" and {len(calls) - 1} more" if len(calls) > 1 else ""),
            time_s=statistics.mean(seconds for _, seconds in calls),
            share=sum(seconds for _, seconds in calls) / total,
            flops=ops[calls[0][0]].flops,
            bytes=_traffic(graph, ops[calls[0][0]]),
        )
        for kernels, calls in taken.items()
    ]
    return sorted(found, key=lambda one: -one.share)[:SLOWEST]


def _traffic(graph: OpGraph, op: Op) -> int:
    """Bytes that an op reads and writes at least: inputs, outputs and weights once each."""
    ends = [t for t in graph.tensors if t.producer == op.id or op.id in t.consumers]
    weights = [constant for constant in graph.constants if op.id in constant.consumers]
    return sum(value.bytes for value in (*ends, *weights))


def _times(rows: Sequence[Row], compile_s: dict[str, dict[str, float]]) -> str:
    lines = []
    for row in rows:
        for kind in row.worst:
            lines.append(
                (
                    row.network,
                    str(row.threads),
                    kind,
                    format_seconds(statistics.median(row.times_s[kind])),
                    f"{row.spread(kind):.1%}",
                    format_seconds(statistics.median(row.times_s[ORT])),
                    f"{row.spread(ORT):.1%}",
                    f"{row.ratio(kind, ORT):.2f}",
                    f"{compile_s[row.network][kind]:.0f} s",
                    f"{row.worst[kind]:.2f}" + ("" if row.worst[kind] <= 1 else " WRONG"),
                )
            )
    times = ("time", "spread", ORT, "spread", "speed")
    return table(("network", "threads", "kernels", *times, "compiled", "error/allowed"), lines)


def _slowest(slow: Sequence[Slow], peak: Peak) -> str:
    lines = [
        (
            one.network,
            one.op,
            format_seconds(one.time_s),
            f"{one.share:.0%}",
            f"{one.flops / one.time_s / 1e9:.1f}",
            f"{one.bytes / one.time_s / 1e9:.1f}",
            f"{one.of_peak(peak):.0%}",
        )
        for one in slow
    ]
    head = (
        f"one core: {peak.flops / 1e9:.0f} GFLOP/s in registers, "
        f"{peak.bytes_per_s / 1e9:.1f} GB/s from memory (more from a cache)\n"
    )
    columns = ("network", "op", "time", "share", "GFLOP/s", "GB/s", "of the core's")
    return head + table(columns, lines)


def _means(rows: Sequence[Row]) -> str:
    lines = []
    for threads in sorted({row.threads for row in rows}):
        some = [row for row in rows if row.threads == threads]
        for kind in some[0].worst:
            mean = _geomean([row.ratio(kind, ORT) for row in some])
            lines.append(f"{kind}, threads {threads}: {mean:.3f} of {ORT}'s speed (geomean)")
    single = {row.network: row for row in rows if row.threads == 1}
    double = {row.network: row for row in rows if row.threads == 2}
    both = sorted(single.keys() & double.keys())
    for kind in [*rows[0].worst, ORT] if both else []:
        gains = [
            statistics.median(single[n].times_s[kind]) / statistics.median(double[n].times_s[kind])
            for n in both
        ]
        lines.append(f"{kind}: two threads {_geomean(gains):.2f} times as fast as one (geomean)")
    return "\n".join(lines)


def _geomean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


if __name__ == "__main__":
    sys.exit(main())
