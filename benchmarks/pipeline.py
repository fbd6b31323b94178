"""Predicted beside measured for every network, and the plan beside its alternatives.

For each network: two one-core devices, a two-stage pipeline, its period by op times (op_sum), with
copies (predicted), from stages timed alone (stage_measured) and by the clock (measured), and the
ratio of each alternative's period to it. All of a round is measured one after the other in fresh
processes; ratios are paired by round.

    python benchmarks/pipeline.py [--networks NAME ...] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from partitioner import auto_partition, zoo
from partitioner.cli import show_progress
from partitioner.files import write_json
from partitioner.machine import allowed_cpus
from partitioner.plan_table import format_seconds, table
from partitioner.report import Report

NETWORKS = (
    "squeezenet",
    "shufflenet",
    "resnet50",
    "inception_v1",
    "densenet121",
    "ppocr_det",
    "ddddocr_det",
    "minilm",
)
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
    reports = {}
    with show_progress() as progress:
        for name in arguments.networks:
            part = auto_partition(
                f"zoo:{name}",
                [f"cores:{cpu}" for cpu in cpus[:2]],
                strategy="pipeline",
                profile_seconds=arguments.profile_seconds,
                progress=progress,
            )
            reports[name] = part.measure(
                zoo.inputs(name, 16),
                baselines=True,
                rounds=arguments.rounds,
                seconds=arguments.seconds,
                progress=progress,
            )
            print(_periods({name: reports[name]}), file=sys.stderr)
    if arguments.json:
        write_json(arguments.json, {name: r.to_data() for name, r in reports.items()})
    print(_periods(reports))
    print()
    print(_errors(reports))
    print()
    print(_ratios(reports))
    return 0


def _steps(report: Report) -> dict[str, float]:
    assert report.plan.predicted and report.measured and report.op_sum_s
    assert report.stage_measured_s
    return {
        "op_sum": report.op_sum_s,
        "predicted": report.plan.predicted.period_s,
        "stage_measured": report.stage_measured_s,
        "measured": report.measured.period_s,
    }


def _periods(reports: dict[str, Report]) -> str:
    rows = []
    for name, report in reports.items():
        steps = _steps(report)
        assert report.measured and report.outputs
        rows.append(
            (
                name,
                *map(format_seconds, steps.values()),
                f"{report.measured.spread:.1%}",
                f"{steps['predicted'] / steps['measured'] - 1:+.1%}",
                f"{steps['stage_measured'] / steps['measured'] - 1:+.1%}",
                "bitwise" if report.outputs.max_abs_diff == 0 else "DIFFER",
            )
        )
    headers = ("network", "op_sum", "predicted", "stage_measured", "measured", "spread",
               "predicted to measured", "stage_measured to measured", "outputs")  # fmt: skip
    return table(headers, rows)


def _errors(reports: dict[str, Report]) -> str:
    lines = []
    for step in ("op_sum", "predicted", "stage_measured"):
        errors = [abs(s[step] / s["measured"] - 1) for s in map(_steps, reports.values())]
        lines.append(f"median error of {step} against measured: {statistics.median(errors):.1%}")
    return "\n".join(lines)


def _ratios(reports: dict[str, Report]) -> str:
    """Period of each alternative over the pipeline's: median [lowest, highest] of the rounds."""
    rows = []
    for name, report in reports.items():
        cells: dict[str, Any] = dict.fromkeys(KINDS, "-")
        best: dict[str, float] = {}
        for baseline in report.baselines:
            kind = next(k for k in KINDS if _kind(baseline.name).startswith(k))
            # The faster of the two single cores stands for both.
            if kind in best and best[kind] <= baseline.period_s:
                continue
            best[kind] = baseline.period_s
            cells[kind] = (
                f"{baseline.ratio:.2f} [{baseline.ratio_low:.2f}, {baseline.ratio_high:.2f}]"
            )
        rows.append((name, *cells.values()))
    return table(("period over the pipeline's", *KINDS), rows)


def _kind(name: str) -> str:
    return "all cores" if name.startswith("single") and "-" in name else name


if __name__ == "__main__":
    sys.exit(main())
