"""`partitioner tune`: kernels that fit a device, kept for every later command."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner.cli.numbers import duration
from partitioner.cli.options import add_devices, add_model, machine_of, shapes_of
from partitioner.cli.progress import show_progress
from partitioner.plan_table import table

if TYPE_CHECKING:  # both load TVM, which takes seconds that a wrong option need not wait
    from partitioner.frontend import Grouped
    from partitioner.machine import Machine
    from partitioner.tuning.records import Records

__all__ = ["add_tune_arguments", "tune_command"]

# Hundreds of kernels are tried; where there is no bar, a line now and then does.
_LINE_EVERY_S = 5.0


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tune_command` reads."""
    add_model(parser)
    add_devices(parser)
    parser.add_argument(
        "--budget",
        type=duration,
        default=600.0,
        metavar="TIME",
        help="how long to look for better kernels: 90s, 10m, 1h (default 10m)",
    )
    parser.add_argument(
        "--records",
        metavar="FOLDER",
        help="where to keep them, for --tuning FOLDER; default: the user's cache folder, where "
        "every later command finds them",
    )


def tune_command(arguments: argparse.Namespace) -> tuple[str, Any]:
    """Tune, and say for how many ops a better kernel is known; Ctrl-C keeps what was found."""
    from partitioner.api import import_model
    from partitioner.tuning.defaults import user_folder
    from partitioner.tuning.records import Records
    from partitioner.tuning.session import tune

    machine = machine_of(arguments)
    machine.require_present()
    folder = Path(arguments.records) if arguments.records else user_folder()
    grouped = import_model(arguments.model, input_shapes=shapes_of(arguments))
    try:
        with show_progress(_LINE_EVERY_S) as progress:
            for note in grouped.notes:
                progress(note, 0.0)
            records = tune(grouped, machine, folder, seconds=arguments.budget, progress=progress)
    except KeyboardInterrupt:
        kept = len(Records.load(folder)) if folder.is_dir() else 0
        print(f"kept {kept} records in {folder}", file=sys.stderr)
        raise
    return _told(grouped, machine, records, folder)


def _told(
    grouped: Grouped, machine: Machine, records: Records, folder: Path
) -> tuple[str, dict[str, Any]]:
    from partitioner.runtime.build import BuildCache

    builds = BuildCache(records=records)
    signatures = [op.signature for op in grouped.graph.ops]
    rows = []
    for device in machine.devices:
        for threads in dict.fromkeys((1, device.threads)):
            known = builds.recorded(signatures, replace(device, cpus=device.cpus[:threads]))
            found = sum(signature in known for signature in signatures)
            rows.append((device.name, threads, found, len(signatures) - found))
    headers = ("device", "threads", "ops by record", "by rule")
    shown = table(headers, [tuple(map(str, row)) for row in rows])
    data = {
        "model": grouped.graph.name,
        "folder": str(folder),
        "records": len(records),
        "devices": [
            {"device": name, "threads": threads, "by_record": found, "by_rule": rest}
            for name, threads, found, rest in rows
        ],
    }
    return f"{shown}\n{len(records)} records in {folder}", data
