"""Why a stage takes another time than the sum of its ops: one factor varied at a time.

A profile times ops inside the whole model; a stage runs some of them alone, on its own core, beside
another stage. For each network, cut in two, a probing process on one core holds the whole model and
both stages and is asked for short blocks of runs of one of them under one condition, all conditions
in turn and in any order, so that what is compared is seconds apart and in one process. Processes
are started afresh several times.

Varied are what runs between two runs of a stage (the model's other half, nothing, a sweep over
memory that empties the core's own caches, or all caches), tracing, and what the other core does
(nothing, the other stage, a sweep over memory, a loop of steps). A small product in the nearest
cache is the reference for the core's own speed. After each probe the pipeline itself runs, each
stage is timed alone in a process of its own, and so is the whole model by its ops: the figures that
a plan is made from and compared with.

    python benchmarks/op_sums.py [--networks NAME ...] [--processes 5] [--turns 5]
                                 [--clock wall] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from probe import ask, probe, running, stopped_loads

from partitioner import Partition, auto_partition, split, zoo
from partitioner.cli import show_progress
from partitioner.files import write_json
from partitioner.host import allowed_cpus
from partitioner.plan_check import assignment_of, stage_tensors
from partitioner.plan_table import format_seconds, table
from partitioner.profiling.measure import measure_in_place, measure_whole
from partitioner.runtime.pipeline import Pipeline

NETWORKS = ("squeezenet", "shufflenet", "minilm", "ppocr_det")
STAGES = ("stage 0", "stage 1")
OTHER = {"stage 0": "stage 1", "stage 1": "stage 0"}
LOADS = (*STAGES, "sweep", "spin")
CONDITIONS: tuple[tuple[str, str, str], ...] = (
    ("reference", "plain", ""),
    ("whole", "plain", ""),
    ("whole", "traced", ""),
    *((stage, how, "") for stage in STAGES for how in ("plain", "traced", "near", "all")),
    *((stage, "plain", load) for stage in STAGES for load in LOADS if load != stage),
    ("reference", "plain", "spin"),
)
"""What runs, how, and what runs on the other core."""


@dataclass(slots=True)
class Visit:
    """What one probing process and the pipeline beside it found, seconds.

    Attributes
    ----------
    blocks : dict of (str, str, str) to list of float
        For each condition the median of each turn's block.
    ops : dict of (str, str) to list of float
        For part and stage the sum of the op medians of each turn: of a stage's ops in the whole
        model, and in the stage.
    pipeline : dict of str to float
        What each stage's runs took in the pipeline.
    own : dict of str to float
        What each stage took alone in a process of its own.
    profiled : dict of str to float
        Each stage's sum of ops and dispatch from the whole model in a process of its own, which is
        how a profile is made.
    """

    blocks: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    ops: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    pipeline: dict[str, float] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)
    profiled: dict[str, float] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=zoo.names())
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--turns", type=int, default=5, help="blocks of each condition in each")
    parser.add_argument("--block", type=float, default=0.15, help="seconds of a block")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time, for a machine that others use too; each reading takes longer",
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cpus = allowed_cpus()
    if len(cpus) < 2:
        print("two cores are needed", file=sys.stderr)
        return 1
    found: dict[str, list[Visit]] = {}
    with show_progress() as progress:
        for name in arguments.networks:
            part = auto_partition(
                f"zoo:{name}",
                [f"cores:{cpu}" for cpu in cpus[:2]],
                strategy="pipeline",
                max_stages=2,
                replicas=1,
                profile_seconds=2.0,
                progress=progress,
            )
            found[name] = []
            for number in range(arguments.processes):
                progress(f"{name}: process {number + 1} of {arguments.processes}", 0.0)
                found[name].append(_visit(part, arguments.turns, arguments.block, arguments.clock))
            print(_tables({name: found[name]}), file=sys.stderr, flush=True)
    if arguments.json:
        write_json(arguments.json, {name: [_data(v) for v in rows] for name, rows in found.items()})
    print(_tables(found))
    return 0


def _visit(part: Partition, turns: int, seconds: float, clock: str) -> Visit:
    """A fresh probe through all conditions, and the pipeline and lone stages after it."""
    visit = Visit()
    with tempfile.TemporaryDirectory() as folder:
        request = {**_request(part, Path(folder) / "items.npz"), "clock": clock}
        first, second = (list(device.cpus) for device in part.machine.devices)
        with (
            probe({**request, "cpus": first}) as process,
            stopped_loads(request, second, LOADS) as loads,
        ):
            for _ in range(turns):
                for condition in random.sample(CONDITIONS, len(CONDITIONS)):
                    what, how, load = condition
                    with running(loads.get(load)):
                        answer = ask(process, {"what": what, "how": how, "seconds": seconds})
                    visit.blocks.setdefault(condition, []).append(
                        statistics.median(answer["total_s"])
                    )
                    if how == "traced":
                        _sum_ops(visit, part, what, answer["op_s"])
    visit.pipeline = _pipeline(part)
    visit.own = _own(part)
    visit.profiled = _profiled(part)
    return visit


def _request(part: Partition, items: Path) -> dict[str, Any]:
    """What a probe is told: the parts, what each takes and leaves, and the model's inputs."""
    graph = part.graph
    item = part.samples(1)[0]
    arrays: dict[str, Any] = {str(t): item[graph.tensors[t].name] for t in graph.inputs}
    np.savez(items, **arrays)
    whole = split(part.module, graph, [0] * len(graph.ops))[0]
    borders = stage_tensors(graph, assignment_of(part.plan, graph))
    uncut = stage_tensors(graph, [0] * len(graph.ops))
    built = ((part.builds.build(whole, part.machine.devices[0]),), *part.build())
    names = ("whole", *STAGES)
    return {
        "items": str(items),
        "parts": {
            name: {
                "library": str(one.path),
                "kernels": one.kernels,
                "enters": enters,
                "leaves": leaves,
            }
            for name, (one,), (enters, leaves) in zip(names, built, (*uncut, *borders), strict=True)
        },
    }


def _sum_ops(visit: Visit, part: Partition, what: str, runs: Sequence[Sequence[float]]) -> None:
    """Add the sums of op medians: a stage's own, or each stage's ops in the whole model."""
    medians = np.median(np.array(runs), axis=0)
    if what != "whole":
        visit.ops.setdefault((what, what), []).append(float(medians.sum()))
        return
    stage_of = np.array(assignment_of(part.plan, part.graph))
    for index, stage in enumerate(STAGES):
        visit.ops.setdefault((what, stage), []).append(float(medians[stage_of == index].sum()))


def _pipeline(part: Partition) -> dict[str, float]:
    """Seconds of a run of each stage while the pipeline runs."""
    assert part.plan.predicted
    items = part.samples(16)
    count = max(50, int(2.0 / part.plan.predicted.period_s))
    with Pipeline(part.spec()) as pipe:
        for _ in pipe.map(items[number % len(items)] for number in range(count)):
            pass
        return {stage: times.run_s for stage, times in zip(STAGES, pipe.stage_times(), strict=True)}


def _own(part: Partition) -> dict[str, float]:
    """Seconds of a run of each stage, alone in a fresh process on the probe's core."""
    borders = stage_tensors(part.graph, assignment_of(part.plan, part.graph))
    device = part.machine.devices[0]
    return {
        stage: measure_whole(
            built, [part.graph.tensors[t] for t in enters], device, seconds=0.5
        ).median_s
        for stage, (built,), (enters, _) in zip(STAGES, part.build(), borders, strict=True)
    }


def _profiled(part: Partition) -> dict[str, float]:
    """Seconds of each stage by its ops in the whole model, in a fresh process, and dispatch."""
    graph, device = part.graph, part.machine.devices[0]
    whole = part.builds.build(split(part.module, graph, [0] * len(graph.ops))[0], device)
    inputs = [graph.tensors[tensor] for tensor in sorted(graph.inputs)]
    found = measure_in_place(whole, inputs, device, seconds=1.0)
    sums = dict.fromkeys(STAGES, 0.0)
    for (_, row), index in zip(found.ops, assignment_of(part.plan, graph), strict=True):
        sums[STAGES[index]] += row.median_s + found.dispatch_s
    return sums


# Tables


Series = Sequence[float]


def _plain(stage: str, load: str = "") -> tuple[str, str, str]:
    return stage, "plain", load


def _chain(visits: Sequence[Visit], stage: str) -> dict[str, list[float]]:
    """Steps from the op sum to the pipeline: each process's ratio of one to the one before."""

    def ratios(above: Any, below: Any) -> list[float]:
        return [_ratio(above(visit), below(visit)) for visit in visits]

    def in_model(visit: Visit) -> Series:
        return visit.ops["whole", stage]

    def in_stage(visit: Visit) -> Series:
        return visit.ops[stage, stage]

    def alone(visit: Visit) -> Series:
        return visit.blocks[_plain(stage)]

    def beside(visit: Visit) -> Series:
        return visit.blocks[_plain(stage, OTHER[stage])]

    def pipeline(visit: Visit) -> Series:
        return [visit.pipeline[stage]]

    return {
        "alone": ratios(in_stage, in_model),
        "untraced": ratios(alone, in_stage),
        "beside the other": ratios(beside, alone),
        "rest": ratios(pipeline, beside),
        "all": ratios(pipeline, in_model),
    }


def _ratio(above: Series, below: Series) -> float:
    """Median over turns; what has no turns is compared with the other's median."""
    if len(above) != len(below):
        return statistics.median(above) / statistics.median(below)
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _as_planned(found: Mapping[str, Sequence[Visit]]) -> str:
    """From the profile to the pipeline, each in fresh processes as users run them."""
    rows = []
    for name, visits in found.items():
        for stage in STAGES:
            profiled = [visit.profiled[stage] for visit in visits]
            own = [visit.own[stage] for visit in visits]
            pipeline = [visit.pipeline[stage] for visit in visits]
            rows.append(
                (
                    f"{name}, {stage}",
                    *(format_seconds(statistics.median(one)) for one in (profiled, own, pipeline)),
                    *(
                        _cell([a / b for a, b in zip(above, below, strict=True)])
                        for above, below in ((own, profiled), (pipeline, own), (pipeline, profiled))
                    ),
                )
            )
    headers = ("fresh processes", "ops + dispatch", "stage alone", "in the pipeline",
               "alone / ops", "pipeline / alone", "pipeline / ops")  # fmt: skip
    return table(headers, rows)


def _explained(found: Mapping[str, Sequence[Visit]]) -> str:
    rows = []
    for name, visits in found.items():
        for stage in STAGES:
            in_model = statistics.median(
                statistics.median(visit.ops["whole", stage]) for visit in visits
            )
            steps = _chain(visits, stage)
            rows.append((f"{name}, {stage}", format_seconds(in_model), *map(_cell, steps.values())))
    headers = ("one process", "op sum", "ops alone", "untraced", "beside the other", "rest",
               "pipeline / op sum")  # fmt: skip
    return table(headers, rows)


def _apart(found: Mapping[str, Sequence[Visit]]) -> str:
    """Each factor by itself, against the stage alone on its core with hot caches."""
    rows = []
    for name, visits in found.items():
        for stage in STAGES:

            def against(
                above: tuple[str, str, str],
                stage: str = stage,
                visits: Sequence[Visit] = visits,
            ) -> str:
                return _cell([_ratio(v.blocks[above], v.blocks[_plain(stage)]) for v in visits])

            scaled = [
                statistics.median(v.blocks[_plain(stage)])
                / statistics.median(v.blocks[_plain("reference")])
                for v in visits
            ]
            middle = statistics.median(scaled)
            rows.append(
                (
                    f"{name}, {stage}",
                    against((stage, "near", "")),
                    against((stage, "all", "")),
                    against(_plain(stage, "sweep")),
                    against(_plain(stage, "spin")),
                    _cell([_ratio([v.own[stage]], v.blocks[_plain(stage)]) for v in visits]),
                    _cell([one / middle for one in scaled]),
                )
            )
    headers = ("against the stage alone", "own caches cold", "all cold", "beside a sweep",
               "beside a loop", "own process", "between processes")  # fmt: skip
    return table(headers, rows)


def _model(found: Mapping[str, Sequence[Visit]]) -> str:
    """What concerns the whole model and the machine."""
    rows = []
    for name, visits in found.items():
        whole = _plain("whole")
        references = [one for v in visits for one in v.blocks[_plain("reference")]]
        middle = statistics.median(references)
        sums = [
            [sum(pair) for pair in zip(*(v.blocks[_plain(s)] for s in STAGES), strict=True)]
            for v in visits
        ]
        ops = [
            [sum(pair) for pair in zip(*(v.ops["whole", s] for s in STAGES), strict=True)]
            for v in visits
        ]
        rows.append(
            (
                name,
                format_seconds(
                    statistics.median(statistics.median(v.blocks[whole]) for v in visits)
                ),
                _cell([_ratio(v.blocks[whole], one) for v, one in zip(visits, ops, strict=True)]),
                _cell([_ratio(v.blocks["whole", "traced", ""], v.blocks[whole]) for v in visits]),
                _cell([_ratio(one, v.blocks[whole]) for v, one in zip(visits, sums, strict=True)]),
                _cell([one / middle for one in references]),
                _cell(
                    [
                        _ratio(v.blocks[_plain("reference", "spin")], v.blocks[_plain("reference")])
                        for v in visits
                    ]
                ),
            )
        )
    headers = ("whole model", "whole", "whole / op sum", "traced / whole", "both stages / whole",
               "reference over time", "reference beside a loop")  # fmt: skip
    return table(headers, rows)


def _cell(ratios: Sequence[float]) -> str:
    """Median less one, and the middle half."""
    low, middle, high = np.percentile(np.array(ratios) - 1, [25, 50, 75])
    return f"{middle:+.1%} [{low:+.1%}, {high:+.1%}]"


def _tables(found: Mapping[str, Sequence[Visit]]) -> str:
    return "\n\n".join([_as_planned(found), _explained(found), _apart(found), _model(found)])


def _data(visit: Visit) -> dict[str, Any]:
    return {
        "blocks": [[*condition, times] for condition, times in visit.blocks.items()],
        "ops": [[*pair, sums] for pair, sums in visit.ops.items()],
        "pipeline": visit.pipeline,
        "own": visit.own,
        "profiled": visit.profiled,
    }


if __name__ == "__main__":
    sys.exit(main())
