"""`partitioner simulate`: a plan's pipeline in simulated time."""

from __future__ import annotations

import argparse
from typing import Any

from partitioner.cli.numbers import amount, count, fraction
from partitioner.errors import InputError
from partitioner.plan import Plan
from partitioner.plan_table import format_seconds

__all__ = ["add_simulate_arguments", "simulate_command"]


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `simulate_command` reads."""
    parser.add_argument("plan", metavar="PLAN", help="a plan file with predicted times")
    parser.add_argument("--items", type=count, default=2000, metavar="N", help="default 2000")
    parser.add_argument(
        "--jitter",
        type=amount,
        default=0.1,
        metavar="F",
        help="standard deviation of every time over its mean (default 0.1)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the jitter")
    parser.add_argument(
        "--contention",
        type=amount,
        metavar="F",
        help="what a stage takes while all others are busy, over what it takes alone",
    )
    parser.add_argument(
        "--load",
        type=fraction,
        default=0.8,
        metavar="F",
        help="also show latencies when items come at this part of the full rate (default 0.8)",
    )
    parser.add_argument("--queue-slots", type=count, metavar="N", help="depth of every queue")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="the plan's model, for plans whose stages are no chain: who reads which tensor",
    )


def simulate_command(arguments: argparse.Namespace) -> tuple[str, Any]:
    """Simulate at full speed, then at a part of it; what to print and the same as data.

    Raises
    ------
    InputError
        If a number makes no sense, or the plan takes no time.
    PlanError
        If the plan cannot be read or has no predicted times.
    """
    from partitioner.simulation import Line, simulate

    if arguments.seed < 0:
        raise InputError(f"--seed is {arguments.seed}; give zero or more")
    plan = Plan.load(arguments.plan)
    graph = None
    if arguments.model:
        from partitioner.api import import_model  # loads a compiler

        graph = import_model(arguments.model).graph
    line = Line.of(plan, graph)
    options = {
        "items": arguments.items,
        "seed": arguments.seed,
        "jitter": arguments.jitter,
        "contention": arguments.contention,
        "queue_slots": arguments.queue_slots,
    }
    full = simulate(line, **options)
    if full.period_s <= 0:
        raise InputError(f"{arguments.plan}: its stages take no time; there is nothing to simulate")
    part = simulate(line, arrivals=full.period_s / arguments.load, **options)
    predicted = plan.predicted
    lines = [
        f"{plan.name} plan of {plan.model} for {plan.machine}, simulated: jitter "
        f"{arguments.jitter:.0%}, seed {arguments.seed}",
        str(full),
        f"at {arguments.load:.0%} of that rate: latency {part.latency}",
    ]
    if predicted is not None:
        lines.append(
            f"predicted: period {format_seconds(predicted.period_s)}, latency "
            f"{format_seconds(predicted.latency_s)} ({predicted.latency_model})"
        )
    return "\n".join(lines), {
        "plan": arguments.plan,
        "full_speed": full.to_data(),
        "load": arguments.load,
        "at_load": part.to_data(),
    }
