"""Predicted beside measured for every network, and the plan beside its alternatives.

For each network: two one-core devices, a two-stage pipeline, its period by op times (op_sum), with
copies (predicted), from stages timed alone (stage_measured) and by the clock (measured), and the
ratio of each alternative's period to it. All of a round is measured one after the other in fresh
processes; ratios are paired by round. `predicted` is frozen before the rounds; `repriced` is the
same plan priced by op times taken anew in each round, paired with that round's measurement, which
tells a wrong model from a machine whose speed has moved since the profile.

    python benchmarks/pipeline.py [--networks NAME ...] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
from networks import NETWORKS

from partitioner import Partition, auto_partition, build_problem, evaluate, split, zoo
from partitioner.cli import show_progress
from partitioner.core_list import parse_cpus
from partitioner.files import write_json
from partitioner.host import allowed_cpus
from partitioner.plan_table import format_seconds, table
from partitioner.profiling.collect import with_visit
from partitioner.profiling.measure import measure_in_place
from partitioner.report import Report

GAIN = 1.8
STEPS = ("op_sum", "predicted", "stage_measured", "measured")
KINDS = ("single", "all cores", "replicas", "equal split", "proportional split")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=zoo.names())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each pipeline in a round")
    parser.add_argument("--profile-seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cpus = allowed_cpus()
    if len(cpus) < 2:
        print("two cores are needed", file=sys.stderr)
        return 1
    reports: dict[str, list[Report]] = {}
    repriced: dict[str, list[float]] = {}
    with show_progress() as progress:
        for name in arguments.networks:
            part = auto_partition(
                f"zoo:{name}",
                [f"cores:{cpu}" for cpu in cpus[:2]],
                strategy="pipeline",
                profile_seconds=arguments.profile_seconds,
                progress=progress,
            )
            items = zoo.inputs(name, 16)
            reports[name], repriced[name] = [], []
            for turn in range(arguments.rounds):
                repriced[name].append(_repriced(part))
                reports[name].append(
                    part.measure(
                        items,
                        baselines=True,
                        check=turn == 0,
                        rounds=1,
                        seconds=arguments.seconds,
                        progress=progress,
                    )
                )
            print(_periods({name: reports[name]}, repriced), file=sys.stderr, flush=True)
    if arguments.json:
        data = {
            name: {"rounds": [report.to_data() for report in rows], "repriced_s": repriced[name]}
            for name, rows in reports.items()
        }
        write_json(arguments.json, data)
    print(_periods(reports, repriced))
    print()
    print(_errors(reports, repriced))
    print()
    print(_ratios(reports))
    print()
    print(_verdicts(reports, repriced))
    return 0


def _repriced(part: Partition) -> float:
    """Period of the plan by op times taken now."""
    graph, table = part.graph, part.profile
    whole = split(part.module, graph, [0] * len(graph.ops))[0]
    inputs = [graph.tensors[tensor] for tensor in sorted(graph.inputs)]
    for device in part.machine.devices:
        built = part.builds.build(whole, device)
        visit = measure_in_place(built, inputs, device, seconds=1.0)
        table = with_visit(table, graph, device, visit)
    problem = build_problem(graph, table, part.machine)
    solution = part.choice.solution
    return evaluate(problem, solution.stage_of, solution.placements).period_s


def _steps(report: Report) -> dict[str, float]:
    assert report.plan.predicted and report.measured and report.op_sum_s
    assert report.stage_measured_s
    return {
        "op_sum": report.op_sum_s,
        "predicted": report.plan.predicted.period_s,
        "stage_measured": report.stage_measured_s,
        "measured": report.measured.period_s,
    }


def _against(reports: list[Report], times: list[float]) -> float:
    """Median of the rounds' ratios to measured, less one."""
    measured = [_steps(report)["measured"] for report in reports]
    return statistics.median(t / m - 1 for t, m in zip(times, measured, strict=True))


def _column(reports: list[Report], step: str) -> list[float]:
    return [_steps(report)[step] for report in reports]


def _periods(reports: dict[str, list[Report]], repriced: dict[str, list[float]]) -> str:
    rows = []
    for name, rounds in reports.items():
        measured = _column(rounds, "measured")
        low, middle, high = np.percentile(measured, [25, 50, 75])
        equal = all(r.outputs and r.outputs.max_abs_diff == 0 for r in rounds)
        rows.append(
            (
                name,
                *(format_seconds(statistics.median(_column(rounds, s))) for s in STEPS[:2]),
                format_seconds(statistics.median(repriced[name])),
                format_seconds(statistics.median(_column(rounds, "stage_measured"))),
                format_seconds(middle),
                f"{(high - low) / middle:.1%}",
                f"{_against(rounds, _column(rounds, 'predicted')):+.1%}",
                f"{_against(rounds, repriced[name]):+.1%}",
                f"{_against(rounds, _column(rounds, 'stage_measured')):+.1%}",
                "bitwise" if equal else "DIFFER",
            )
        )
    headers = ("network", "op_sum", "predicted", "repriced", "stage_measured", "measured",
               "spread", "predicted err", "repriced err", "stage err", "outputs")  # fmt: skip
    return table(headers, rows)


def _errors(reports: dict[str, list[Report]], repriced: dict[str, list[float]]) -> str:
    lines = []
    for step in ("op_sum", "predicted", "repriced", "stage_measured"):
        errors = _step_errors(reports, repriced, step)
        lines.append(
            f"error of {step} against measured: median {statistics.median(errors):.1%}, "
            f"largest {max(errors):.1%}"
        )
    return "\n".join(lines)


def _ratios(reports: dict[str, list[Report]]) -> str:
    """Period of each alternative over the pipeline's: median [lowest, highest] of the rounds."""
    rows = []
    for name, rounds in reports.items():
        cells = [
            f"{statistics.median(found):.2f} [{min(found):.2f}, {max(found):.2f}]"
            for found in (_ratio(rounds, kind) for kind in KINDS)
        ]
        rows.append((name, *cells))
    return table(("period over the pipeline's", *KINDS), rows)


def _ratio(rounds: list[Report], kind: str) -> list[float]:
    """Each round's ratio; the faster of the two single cores stands for both.

    An alternative that is missing is the plan itself.
    """
    found = [
        [baseline.ratio for baseline in report.baselines if _kind(baseline.name) == kind]
        for report in rounds
    ]
    return [min(ratios, default=1.0) for ratios in found]


def _verdicts(reports: dict[str, list[Report]], repriced: dict[str, list[float]]) -> str:
    """Each bar with what was reached; a spread beyond the bar is no result."""
    lines = []
    for name, rounds in reports.items():
        gain = _ratio(rounds, "single")
        middle = statistics.median(gain)
        word = "met" if middle >= GAIN else "missed"
        if min(gain) < GAIN <= max(gain):
            word += ", but rounds lie on both sides: inconclusive"
        lines.append(f"{name}: {middle:.2f} times one core (bar {GAIN}): {word}")
    for step, bar in (("predicted", 0.10), ("repriced", 0.10), ("stage_measured", 0.05)):
        error = statistics.median(_step_errors(reports, repriced, step))
        word = "met" if error <= bar else "missed"
        lines.append(f"median error of {step}: {error:.1%} (bar {bar:.0%}): {word}")
    return "\n".join(lines)


def _step_errors(
    reports: dict[str, list[Report]], repriced: dict[str, list[float]], step: str
) -> list[float]:
    return [
        abs(_against(rounds, repriced[name] if step == "repriced" else _column(rounds, step)))
        for name, rounds in reports.items()
    ]


def _kind(name: str) -> str:
    """Which of `KINDS` an alternative is: the joined device's name lists both cores."""
    if name.startswith("single"):
        return "all cores" if parse_cpus(name.partition(":")[2], name)[1:] else "single"
    return next(kind for kind in KINDS if name.startswith(kind))


if __name__ == "__main__":
    sys.exit(main())
