"""Options that several commands share, and what is read from them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from partitioner.errors import InputError
from partitioner.machine import Machine

__all__ = [
    "add_devices",
    "add_model",
    "add_tuning",
    "machine_of",
    "pair",
    "shapes_of",
    "tuning_of",
]


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare the model and its open dimensions."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=".onnx file, Relax module (.py, .tvmscript, .json), or zoo:NAME",
    )
    parser.add_argument(
        "--input-shape",
        metavar="NAME=1,3,224,224",
        action="append",
        default=[],
        help="for inputs whose dimensions the model leaves open",
    )


def add_devices(parser: argparse.ArgumentParser) -> None:
    """Declare the devices, as words or as a file."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--devices",
        nargs="+",
        metavar="DEVICE",
        help="cores:0-3, cores:4,5, cpu; default: this machine's cores",
    )
    where.add_argument("--machine", metavar="TOML", help="a machine file")


def add_tuning(parser: argparse.ArgumentParser) -> None:
    """Declare by which records of tuning kernels are made."""
    parser.add_argument(
        "--tuning",
        default="default",
        metavar="default|none|FOLDER",
        help="make kernels by the records that `partitioner tune` kept and those that are shipped "
        "(default), by rule alone, or by a folder's records",
    )


def machine_of(arguments: argparse.Namespace) -> Machine:
    """What `add_devices` declared."""
    return Machine.load(arguments.machine) if arguments.machine else Machine.of(arguments.devices)


def shapes_of(arguments: argparse.Namespace) -> dict[str, tuple[int, ...]] | None:
    """What `add_model` declared of dimensions."""

    def extents(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(","))

    return dict(pair(text, "--input-shape", extents) for text in arguments.input_shape) or None


def tuning_of(arguments: argparse.Namespace) -> str | None:
    """What `add_tuning` declared, as `auto_partition` takes it."""
    return None if arguments.tuning == "none" else str(arguments.tuning)


def pair(text: str, option: str, convert: Callable[[str], Any]) -> tuple[str, Any]:
    """A name and a value out of ``NAME=VALUE``.

    Raises
    ------
    InputError
        If it is no such pair, or `convert` raises ValueError.
    """
    name, equals, value = text.rpartition("=")
    try:
        if not (name and equals):
            raise ValueError
        return name, convert(value)
    except ValueError:
        example = {"--input-shape": "data=1,3,224,224", "--memory": "host=100000000"}
        raise InputError(
            f"{option} {text!r} is not NAME=VALUE; write for example "
            f"{option} {example.get(option, 'conv_0=cores:0')}"
        ) from None
