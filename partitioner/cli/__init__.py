"""The command line: a thin skin over `partitioner.api`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from partitioner.cli.devices import add_devices_arguments, devices_command
from partitioner.cli.numbers import count, count_or_none, seconds
from partitioner.cli.options import (
    add_devices,
    add_model,
    add_tuning,
    machine_of,
    pair,
    shapes_of,
    tuning_of,
)
from partitioner.cli.progress import show_progress
from partitioner.cli.simulate import add_simulate_arguments, simulate_command
from partitioner.cli.solve import add_solve_arguments, solve_command
from partitioner.cli.tune import add_tune_arguments, tune_command
from partitioner.errors import PartitionerError
from partitioner.files import require_writable, write_json
from partitioner.problem import Objective

__all__ = ["main", "show_progress"]

# Options that name a file to write: looked at first, so that no work is lost to a wrong one.
_WRITES = ("json", "output", "save", "trace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; default: the process's.

    Returns
    -------
    int
        0; 1 for a user's mistake, with a message; 130 when interrupted. Bad usage exits with 2.
    """
    arguments = _parser().parse_args(argv)
    try:
        for option in _WRITES:
            if path := getattr(arguments, option, None):
                require_writable(path)
        printed, data = arguments.command(arguments)
        print(printed, flush=True)  # a reader that has gone is noticed here, not at exit
        if arguments.json:
            write_json(arguments.json, data)
    except PartitionerError as error:
        if arguments.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if arguments.debug:
            raise
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; keep the interpreter from complaining at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


Result = tuple[str, Any]


def _profile(arguments: argparse.Namespace) -> Result:
    from partitioner.api import import_model, profile_model
    from partitioner.report.profile_report import profile_table
    from partitioner.tuned import builds_for

    machine = machine_of(arguments)
    builds = builds_for(tuning_of(arguments))
    grouped = import_model(arguments.model, input_shapes=shapes_of(arguments))
    with show_progress() as progress:
        for note in builds.records.notes:
            progress(note, 0.0)
        profile = profile_model(
            grouped,
            machine,
            profile=arguments.output,
            seconds=arguments.seconds,
            contended=arguments.contended,
            builds=builds,
            progress=progress,
        )
    return profile_table(profile, grouped.graph), profile.to_data()


def _plan(arguments: argparse.Namespace) -> Result:
    partition = _partition(arguments)
    if arguments.output:
        partition.plan.save(arguments.output)
    shown = [partition.plan, *filter(None, [partition.refinement])]
    return "\n\n".join(map(str, shown)), partition.plan.to_data()


def _run(arguments: argparse.Namespace) -> Result:
    from partitioner.arrays import read_items, write_items
    from partitioner.runtime.trace import Trace

    partition = _partition(arguments)
    if arguments.input:
        items = read_items(arguments.input, partition.graph)
    else:
        items = partition.samples(arguments.items)
    trace = Trace() if arguments.trace else None
    with show_progress() as progress:
        if arguments.output or trace:
            progress("running", 0.0)
            with partition.pipeline(trace=trace) as pipe:
                results = list(pipe.map(items))
            if arguments.output:
                write_items(arguments.output, results, partition.graph)
            if trace:
                trace.write_chrome(arguments.trace)
        report = partition.measure(
            items,
            baselines=arguments.measure,
            rounds=arguments.rounds,
            seconds=arguments.seconds,
            progress=progress,
        )
    return str(report), report.to_data()


def _show(arguments: argparse.Namespace) -> Result:
    from partitioner.plan import Plan

    plan = Plan.load(arguments.plan)
    return str(plan), plan.to_data()


def _explain(arguments: argparse.Namespace) -> Result:
    from partitioner.plan import Plan
    from partitioner.report.explain import explain

    plan = Plan.load(arguments.plan)
    text = explain(plan)
    return text, {"explanation": text.splitlines(), "plan": plan.to_data()}


def _partition(arguments: argparse.Namespace) -> Any:
    from partitioner.api import auto_partition

    with show_progress() as progress:
        return auto_partition(
            arguments.model,
            machine_of(arguments),
            objective=arguments.objective,
            strategy=arguments.strategy,
            max_stages=arguments.max_stages,
            memory_budgets=dict(pair(text, "--memory", int) for text in arguments.memory),
            pins=dict(pair(text, "--pin", str) for text in arguments.pin),
            colocate=tuple(tuple(text.split(",")) for text in arguments.together),
            second=arguments.second,
            period_cap_s=arguments.period_cap,
            latency_cap_s=arguments.latency_cap,
            profile="estimate" if arguments.estimate else arguments.profile,
            profile_seconds=arguments.profile_seconds,
            contended=arguments.contended,
            allow_foreign_profile=arguments.allow_foreign_profile,
            plan=arguments.plan,
            time_limit_s=arguments.time_limit,
            replicas=arguments.replicas,
            refine=arguments.refine,
            input_shapes=shapes_of(arguments),
            tuning=tuning_of(arguments),
            progress=progress,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="partitioner", description=_DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[Any], Result], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command)
        sub.add_argument("--json", metavar="FILE", help="also write what is printed as data")
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
        return sub

    devices = add("devices", devices_command, "list the devices that plans are made for")
    add_devices(devices)
    add_devices_arguments(devices)

    profile = add("profile", _profile, "measure every op of a model on every device")
    add_model(profile)
    add_devices(profile)
    profile.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="the profile; one that is there is continued",
    )
    add_tuning(profile)
    profile.add_argument("--seconds", type=seconds, default=8.0, help="measuring time a device")
    profile.add_argument(
        "--contended",
        action="store_true",
        help="measure once more while the other cores run the model too",
    )

    add_tune_arguments(
        add("tune", tune_command, "look for better kernels and keep them for later commands")
    )

    plan = add("plan", _plan, "cut and place a model")
    _add_planning(plan)
    plan.add_argument("-o", "--output", metavar="FILE", help="where to write the plan")

    run = add("run", _run, "run a plan as a pipeline and measure it; does whatever is missing")
    _add_planning(run)
    run.add_argument("--items", type=count, default=16, help="random items when no input is given")
    run.add_argument("--input", metavar="NPZ", help="one array a model input, leading item axis")
    run.add_argument("--output", metavar="NPZ", help="where to write one array a model output")
    run.add_argument("--measure", action="store_true", help="measure the alternatives too")
    run.add_argument("--rounds", type=count, default=5, help="fresh processes for each measurement")
    run.add_argument("--seconds", type=seconds, default=2.0, help="measuring time in a round")
    run.add_argument("--trace", metavar="FILE", help="write a Chrome trace of one run")

    solve = add("solve", solve_command, "solve a problem file, with proof; needs no model")
    add_solve_arguments(solve)

    simulate = add("simulate", simulate_command, "run a plan in simulated time; needs no board")
    add_simulate_arguments(simulate)

    show = add("show", _show, "print a plan")
    show.add_argument("plan", metavar="PLAN")
    explain = add("explain", _explain, "say why the cuts are where they are")
    explain.add_argument("plan", metavar="PLAN")
    return parser


_DESCRIPTION = "Cut a network into pipeline stages for unequal devices: measure, decide, run."


def _add_planning(parser: argparse.ArgumentParser) -> None:
    from partitioner.plan import MOST_REPLICAS, STRATEGIES

    add_model(parser)
    add_devices(parser)
    add_tuning(parser)
    parser.add_argument("--plan", metavar="FILE", help="use this plan instead of solving")
    times = parser.add_mutually_exclusive_group()
    times.add_argument("--profile", metavar="FILE", help="times to use; continued where lacking")
    times.add_argument("--estimate", action="store_true", help="guess times, measure nothing")
    parser.add_argument(
        "--allow-foreign-profile",
        action="store_true",
        help="take a profile made on another machine",
    )
    parser.add_argument(
        "--profile-seconds", type=seconds, default=8.0, help="measuring time a device"
    )
    parser.add_argument(
        "--contended",
        action="store_true",
        help="plan by times taken while all other cores are busy",
    )
    parser.add_argument("--objective", choices=("period", "latency"), default="period")
    parser.add_argument(
        "--strategy",
        choices=tuple(STRATEGIES),
        default="best",
        help="; ".join(f"{name}: {text}" for name, text in STRATEGIES.items()),
    )
    parser.add_argument("--max-stages", type=count, metavar="N")
    parser.add_argument(
        "--replicas",
        type=count,
        default=MOST_REPLICAS,
        metavar="N",
        help="most replicas that a stage may have",
    )
    parser.add_argument(
        "--refine",
        type=count_or_none,
        default=0,
        metavar="N",
        help="rounds of running the plans predicted best and correcting the times by what is seen",
    )
    parser.add_argument("--memory", metavar="POOL=BYTES", action="append", default=[])
    parser.add_argument("--pin", metavar="OP=DEVICE", action="append", default=[])
    parser.add_argument(
        "--together", metavar="OP,OP", action="append", default=[], help="ops that share a stage"
    )
    for name in ("period", "latency"):
        parser.add_argument(
            f"--{name}-cap",
            type=seconds,
            default=float("inf"),
            metavar="S",
            help=f"largest {name}, by the prediction",
        )
    parser.add_argument(
        "--second",
        choices=tuple(each.value for each in Objective),
        help="least of this among the best by the objective",
    )
    parser.add_argument(
        "--time-limit", type=seconds, default=10.0, metavar="S", help="of the solver"
    )
