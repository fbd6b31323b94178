"""``partitioner devices``: what plans are made for, and what is known of this host's cores."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from partitioner.clusters import Cluster, HostClusters, find_clusters
from partitioner.core_list import format_cpus
from partitioner.host import host_info
from partitioner.machine import Machine
from partitioner.plan_table import format_bytes, table
from partitioner.sysfs import Cache

__all__ = ["add_devices_arguments", "devices_command"]


def add_devices_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``devices`` takes beside the devices themselves."""
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="write the machine as TOML, to correct by hand or to plan for elsewhere",
    )


def devices_command(arguments: argparse.Namespace) -> tuple[str, Any]:
    """Devices as given, or this host's clusters with the facts that they were found by."""
    facts: tuple[str, ...] = ()
    found = None if arguments.machine or arguments.devices else find_clusters()
    if found is not None:
        machine = Machine.detect(found)
        facts = (_facts(found), *found.notes())
    elif arguments.machine:  # it may describe another host
        machine = Machine.load(arguments.machine)
    else:
        machine = Machine.of(arguments.devices)
        machine.require_present()
        facts = _warnings(machine)
    if arguments.save:
        machine.save(arguments.save, notes="\n".join(facts).splitlines())
    info = host_info()
    here = f"{machine.name}: {info.cpu}, {info.arch}, {info.cores} cores"
    if arguments.machine:
        here = f"{machine.name}, as {arguments.machine} describes it"
    data = machine.to_data()
    if found is not None:
        data |= {"clusters": [asdict(each) for each in found.clusters], "notes": found.notes()}
    return "\n".join((here, _devices(machine), *(("", *facts) if facts else ()))), data


def _devices(machine: Machine) -> str:
    pools = {pool.name: pool.bytes for pool in machine.memories}
    rows = [
        (
            device.name,
            device.kind,
            format_cpus(device.cpus) or "-",
            f"{device.capacity:.2f}",
            device.target or "host",
            device.memory,
            format_bytes(pools[device.memory]),
        )
        for device in machine.devices
    ]
    return table(("device", "kind", "cores", "speed", "target", "memory", "budget"), rows)


def _warnings(machine: Machine) -> tuple[str, ...]:
    """Devices of this host whose cores only look equal."""
    found = find_clusters()
    pairs = ((device.name, found.unlike(device.cpus)) for device in machine.devices)
    return tuple(f"{name}: {text}" for name, text in pairs if text)


def _facts(found: HostClusters) -> str:
    rows = [
        (
            format_cpus(each.cpus),
            each.core_type or "-",
            "-" if each.max_freq_hz is None else f"{each.max_freq_hz / 1e9:.2f} GHz",
            ", ".join(each.governors) or "-",
            _cache(each, 2),
            _cache(each, 3),
            str(each.node),
            format_cpus(each.siblings) or "-",
        )
        for each in found.clusters
    ]
    return table(("cores", "type", "up to", "governor", "L2", "L3", "node", "siblings"), rows)


def _cache(cluster: Cluster, level: int) -> str:
    """Size of a cache and how many of the host's CPUs share one."""
    found: list[Cache] = [cache for cache in cluster.caches if cache.level == level]
    if not found:
        return "-"
    sharers = len(found[0].cpus)
    kib = found[0].bytes >> 10
    size = f"{kib} KiB" if kib < 1024 else f"{kib / 1024:g} MiB"
    return size if sharers == 1 else f"{size} for {sharers}"
