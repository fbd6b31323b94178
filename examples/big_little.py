"""Layers on "2 big, 2 big, 4 little" cores: cut by hand, and as the partitioner would have it.

First for a board with four big and four little cores, a HiKey 970: a third of the layers each on
two big, two big and four little cores, against the plans that `auto_partition` makes, in simulated
time and on guessed op times, so that any machine shows it. Then on this machine, as far as its
cores go (on two: one stage each): the same three plans, run, with the cores that every thread of
every worker may use and was seen on. Where the system allows it, a quota makes the second half of
this machine's cores slow; where not, all are equal, and that is said.

    python examples/big_little.py [--models mlp minilm] [--simulate-only] [--json FILE]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from partitioner import Machine, Partition, Plan, auto_partition, import_model
from partitioner.cli import show_progress
from partitioner.core_list import format_cpus
from partitioner.errors import DeviceError
from partitioner.files import write_json
from partitioner.frontend import Grouped
from partitioner.host import allowed_cpus
from partitioner.machine import Device
from partitioner.plan import Placement, Stage
from partitioner.plan_table import format_seconds, table
from partitioner.runtime.affinity import allowed, where
from partitioner.runtime.cgroup import quota
from partitioner.runtime.measure import measure
from partitioner.simulation import Line, Simulated, simulate

BOARD = Path(__file__).parents[1] / "profiles" / "hikey970" / "machine.toml"
WIDTHS = (784, 2048, 2048, 1024, 1024, 1024, 512, 512, 256, 10)
ROWS = 16
LITTLE = 0.4
"""Part of a core's time that a slow one has."""
JITTER, LOAD = 0.1, 0.8
"""Spread of simulated times; part of the full rate at which latencies are compared."""

Cores = tuple[tuple[str, int], ...]
"""For each stage a cluster and a number of its cores."""


def perceptron() -> onnx.ModelProto:
    """Nine dense layers, wide at first, with seeded weights; rectified but for the last."""
    rng = np.random.default_rng(5)
    nodes, weights, value = [], [], "x"
    for number, (wide, narrow) in enumerate(pairwise(WIDTHS)):
        name = f"layer.{number}"
        scale = (2 / wide) ** 0.5
        drawn = (rng.standard_normal((wide, narrow)) * scale, rng.standard_normal(narrow) * 0.1)
        for part, array in zip(("weight", "bias"), drawn, strict=True):
            weights.append(numpy_helper.from_array(array.astype(np.float32), f"{name}.{part}"))
        inputs = [value, f"{name}.weight", f"{name}.bias"]
        nodes.append(helper.make_node("Gemm", inputs, [f"{name}.sum"], f"{name}.dense"))
        value = f"{name}.sum"
        if number < len(WIDTHS) - 2:
            nodes.append(helper.make_node("Relu", [value], [f"{name}.out"], f"{name}.relu"))
            value = f"{name}.out"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTHS[0]])
    y = helper.make_tensor_value_info(value, TensorProto.FLOAT, [ROWS, WIDTHS[-1]])
    graph = helper.make_graph(nodes, "mlp", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


MODELS: Mapping[str, Any] = {"mlp": perceptron, "minilm": lambda: "zoo:minilm"}


def by_hand(plan: Plan, machine: Machine, cores: Cores) -> Plan:
    """As many layers for each stage, each on its cores; what a person writes down.

    Layers go by the numbers in the source names of their ops; an op without one goes with the
    layer before it.
    """
    free = {device.name: iter(device.cpus) for device in machine.devices}
    placements = [Placement(name, tuple(islice(free[name], count))) for name, count in cores]
    layer, layers = 0, []
    for _, names in plan.sources:
        numbers = [int(found) for name in names for found in re.findall(r"layer\.(\d+)", name)]
        layer = max([layer, *numbers])
        layers.append(layer)
    stages = []
    for number, placement in enumerate(placements):
        ops = [
            op
            for (op, _), mine in zip(plan.sources, layers, strict=True)
            if mine * len(placements) // (layer + 1) == number
        ]
        stages.append(Stage(tuple(ops), (placement,)))
    return replace(plan, name="by hand", stages=tuple(stages)).stripped()


def in_words(plan: Plan) -> str:
    """Stages as ``2 big | 2 x 1 big | 4 little``."""
    words = []
    for stage in plan.stages:
        kinds = [f"{len(place.cpus)} {place.device}" for place in stage.placements]
        counted = {kind: kinds.count(kind) for kind in kinds}
        words.append(" + ".join(k if n == 1 else f"{n} x {k}" for k, n in counted.items()))
    return " | ".join(words)


@dataclass(frozen=True)
class Row:
    """A plan's figures; measured ones where it ran."""

    model: str
    name: str
    stages: str
    predicted_s: float
    simulated: Simulated
    at_load: Simulated
    measured_s: float | None = None

    def cells(self) -> tuple[str, ...]:
        busiest = self.simulated.bottleneck
        return (
            self.model,
            self.name,
            self.stages,
            format_seconds(self.predicted_s),
            format_seconds(self.simulated.period_s),
            format_seconds(self.measured_s),
            f"stage {busiest.stage} {busiest.utilisation:.0%}",
            format_seconds(self.at_load.latency.p50_s),
            format_seconds(self.at_load.latency.p99_s),
        )


HEADERS = (
    "model",
    "plan",
    "stages",
    "predicted",
    "simulated",
    "measured",
    "busiest",
    "latency p50",
    "p99",
)


def simulated(model: str, name: str, part: Partition) -> Row:
    line = Line.priced(part.plan, part.graph, part.machine, part.profile)
    full = simulate(line, items=4000, jitter=JITTER)
    at_load = simulate(line, items=4000, jitter=JITTER, arrivals=full.period_s / LOAD)
    assert part.plan.predicted is not None
    period_s = part.plan.predicted.period_s
    return Row(model, name, in_words(part.plan), period_s, full, at_load)


def plans(
    grouped: Grouped, machine: Machine, cores: Cores, **options: Any
) -> Iterator[tuple[str, Partition]]:
    """By hand; the best stages without replicas; the best of all: on the same times."""
    chosen = auto_partition(grouped, machine, **options)
    hand = by_hand(chosen.plan, machine, cores)
    times = {"profile": chosen.profile, "allow_foreign_profile": True}  # nothing is measured again
    options = {**options, **times}
    yield "by hand", auto_partition(grouped, machine, plan=hand, **options)
    yield "stages", auto_partition(grouped, machine, strategy="pipeline", replicas=1, **options)
    yield "best", chosen


@contextmanager
def this_machine() -> Iterator[tuple[Machine, Cores]]:
    """This machine's cores as a big and a little cluster, and the split by hand on them."""
    cpus = allowed_cpus()
    half = min(len(cpus) // 2, 4)
    big = Device("big", cpus=cpus[:half])
    little = Device("little", cpus=cpus[half : 2 * half])
    with ExitStack() as groups:
        try:
            group = groups.enter_context(quota(LITTLE, cores=half))
            little = replace(little, cgroup=group, capacity=LITTLE)
            print(f"this machine: cores {format_cpus(little.cpus)} have {LITTLE:.0%} of their time")
        except DeviceError as error:
            print(f"this machine: its cores are equal, for there is no quota here: {error}")
        split: Cores = (("big", half // 2), ("big", half - half // 2), ("little", half))
        yield Machine("big and little", (big, little)), split if half > 1 else split[1:]


def measured(part: Partition, seconds: float) -> float:
    """Run the plan, print where its threads were meanwhile, return seconds between completions."""
    assert part.plan.predicted is not None
    samples = part.samples(4)
    seen: dict[tuple[int, int], set[int]] = {}
    with part.pipeline() as pipe:

        def item(number: int) -> Any:
            for worker in pipe.workers if number % 8 == 0 else ():
                for tid, cpu in where([worker.pid]).items():
                    seen.setdefault((worker.pid, tid), set()).add(cpu)
            return samples[number % len(samples)]

        count = max(50, round(seconds / part.plan.predicted.period_s))
        times = measure(pipe, item, count, warmup=count // 5)
        rows = [
            (
                f"{worker.stage}.{worker.replica}",
                format_cpus(worker.cpus),
                f"{worker.pid}/{tid}",
                format_cpus(sorted(mask)),
                format_cpus(sorted(seen.get((worker.pid, tid), ()))) or "-",
            )
            for worker in pipe.workers
            for tid, mask in allowed(worker.pid).items()
        ]
    print(table(("stage", "cores", "process/thread", "may use", "was on"), rows))
    return times.period_s


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=tuple(MODELS), choices=tuple(MODELS))
    parser.add_argument("--simulate-only", action="store_true", help="run nothing")
    parser.add_argument("--seconds", type=float, default=3.0, help="measuring time of each plan")
    parser.add_argument("--json", metavar="FILE", type=Path)
    arguments = parser.parse_args(argv)
    models = {name: import_model(MODELS[name]()) for name in arguments.models}

    board = Machine.load(BOARD)
    split: Cores = (("big", 2), ("big", 2), ("little", 4))
    planned = [
        simulated(name, which, part)
        for name, grouped in models.items()
        for which, part in plans(grouped, board, split, profile="estimate", progress=quiet)
    ]
    print(f"{board.name}, in simulated time, op times guessed from the cores' capacities")
    print(table(HEADERS, [row.cells() for row in planned]))

    ran: list[Row] = []
    if not arguments.simulate_only and len(allowed_cpus()) > 1:
        print()
        with this_machine() as (machine, split), show_progress() as progress:
            for name, grouped in models.items():
                for which, part in plans(grouped, machine, split, progress=progress):
                    print(f"\n{name}, {which}: {in_words(part.plan)}")
                    row = simulated(name, which, part)
                    ran.append(replace(row, measured_s=measured(part, arguments.seconds)))
        print()
        print(table(HEADERS, [row.cells() for row in ran]))
    elif not arguments.simulate_only:
        print("this machine: one core, so nothing is run on it")
    print(f"latencies: items at {LOAD:.0%} of the simulated rate, times spread by {JITTER:.0%}")
    if arguments.json:
        write_json(arguments.json, {"board": to_data(planned), "here": to_data(ran)})
    return 0


def to_data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "model": row.model,
            "plan": row.name,
            "stages": row.stages,
            "predicted_s": row.predicted_s,
            "measured_s": row.measured_s,
            "full_speed": row.simulated.to_data(),
            "at_load": row.at_load.to_data(),
        }
        for row in rows
    ]


def quiet(what: str, part: float) -> None:
    """Guessing takes no time worth showing."""


if __name__ == "__main__":
    sys.exit(main())
