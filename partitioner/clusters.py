"""Which cores of this host are alike: the clusters that plans share out among stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from partitioner.core_list import format_cpus
from partitioner.errors import DeviceError
from partitioner.host import cpu_quota, cpu_sets
from partitioner.sysfs import ROOT, Cache, CpuFacts, cpu_facts

__all__ = ["Cluster", "HostClusters", "find_clusters"]

# Highest frequencies within this of each other are one cluster's. Cores that have their frequency
# in common are built alike; where each has its own, good ones are allowed a little more.
_SHARED_FREQUENCY = 0.05
_OWN_FREQUENCY = 0.15


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cores of one type and speed on one NUMA node, one logical CPU for each.

    Attributes
    ----------
    cpus : tuple of int
        Ascending.
    siblings : tuple of int
        Other hardware threads of these cores, which are left out: two threads that compute on one
        core share its units.
    core_type : str
        As `partitioner.sysfs.CpuFacts` has it.
    capacity : float
        Speed of a core against the host's fastest: the scheduler's figure, else by frequency.
    max_freq_hz : int or None
        Highest frequency, of the fastest of them.
    governors : tuple of str
        What sets their frequency.
    node : int
        NUMA node.
    caches : tuple of Cache
        Of data, as the first core sees them.
    """

    cpus: tuple[int, ...]
    siblings: tuple[int, ...]
    core_type: str
    capacity: float
    max_freq_hz: int | None
    governors: tuple[str, ...]
    node: int
    caches: tuple[Cache, ...]

    @property
    def name(self) -> str:
        """The device string of its cores."""
        return f"cores:{format_cpus(self.cpus)}"


@dataclass(frozen=True, slots=True)
class HostClusters:
    """The clusters, by their first core, and what of the host is left out.

    Attributes
    ----------
    clusters : tuple of Cluster
        No core is in two.
    offline, forbidden : tuple of int
        CPUs that are switched off, and that this process may not use.
    quota : float or None
        CPU seconds a second that this process's control group may take; None for any.
    """

    clusters: tuple[Cluster, ...]
    offline: tuple[int, ...]
    forbidden: tuple[int, ...]
    quota: float | None

    def unlike(self, cpus: Iterable[int]) -> str | None:
        """What is wrong with taking these cores for equal ones, in words; None if nothing is."""
        wanted = set(cpus)
        kinds = [
            f"{format_cpus(own)} {cluster.core_type} of node {cluster.node}, speed "
            f"{cluster.capacity:g}"
            for cluster in self.clusters
            if (own := sorted(wanted & {*cluster.cpus, *cluster.siblings}))
        ]
        if len(kinds) > 1:
            return f"cores of several kinds ({'; '.join(kinds)}): give each kind a device"
        return None

    def notes(self) -> tuple[str, ...]:
        """What is left out or limited, a sentence each."""
        cores = sum(len(cluster.cpus) for cluster in self.clusters)
        siblings = sorted(cpu for cluster in self.clusters for cpu in cluster.siblings)
        found = []
        if siblings:
            found.append(
                f"left out: {format_cpus(siblings)}, second hardware threads of cores listed"
            )
        if self.forbidden:
            found.append(f"left out: {format_cpus(self.forbidden)}, not allowed to this process")
        if self.offline:
            found.append(f"left out: {format_cpus(self.offline)}, offline")
        if self.quota is not None and self.quota < cores:
            found.append(
                f"this process's control group may use {self.quota:g} CPUs at once, less than the "
                f"{cores} cores listed: with all busy, each stalls"
            )
        return tuple(found)


def find_clusters(root: Path = ROOT, allowed: Iterable[int] | None = None) -> HostClusters:
    """Group this host's cores by what makes their times differ.

    Cores of one cluster have type and NUMA node in common, and capacity and highest frequency
    within a few percent. Caches and sockets do not divide: big servers have many small groups of
    cores around a cache, which are alike, and virtual machines often show a socket a core.

    Parameters
    ----------
    root : path
        Where ``sys`` and ``proc`` are.
    allowed : iterable of int, optional
        CPUs to keep to; default: those that this process may use.

    Raises
    ------
    DeviceError
        If no CPU is both online and allowed.
    """
    sets = cpu_sets(root)
    usable = set(sets.online) & set(sets.allowed if allowed is None else allowed)
    if not usable:
        raise DeviceError(
            f"no core to use: {format_cpus(sets.online)} are online, this process may use "
            f"{format_cpus(sorted(sets.allowed if allowed is None else allowed)) or 'none'}; "
            "give it another CPU set"
        )
    groups = _alike(_first_threads(cpu_facts(sorted(usable), root)))
    speeds = _capacities(groups)
    return HostClusters(
        clusters=tuple(
            sorted(
                (
                    _cluster(group, capacity, usable)
                    for group, capacity in zip(groups, speeds, strict=True)
                ),
                key=lambda cluster: cluster.cpus,
            )
        ),
        offline=tuple(sorted(set(sets.present) - set(sets.online))),
        forbidden=tuple(sorted(set(sets.online) - usable)),
        quota=cpu_quota(root),
    )


def _first_threads(facts: Sequence[CpuFacts]) -> list[CpuFacts]:
    """One logical CPU for each core: the first of those that can be used."""
    taken: set[int] = set()
    kept = []
    for each in facts:
        if each.cpu not in taken:
            kept.append(each)
            taken.update(each.siblings)
    return kept


def _alike(facts: Sequence[CpuFacts]) -> list[list[CpuFacts]]:
    """Cores by type and place, and within these by speed."""
    places: dict[tuple[int, str], list[CpuFacts]] = defaultdict(list)
    for each in facts:
        places[each.node, each.core_type].append(each)
    groups: list[list[CpuFacts]] = []
    for cores in places.values():
        shared = any(set(each.frequency_domain) > set(each.siblings) for each in cores)
        within = _SHARED_FREQUENCY if shared else _OWN_FREQUENCY
        fastest: CpuFacts | None = None
        for each in sorted(cores, key=_speed, reverse=True):
            if fastest is None or not _near(fastest, each, within):
                fastest = each
                groups.append([])
            groups[-1].append(each)
    return groups


def _speed(facts: CpuFacts) -> tuple[int, int]:
    return facts.capacity or 0, facts.max_freq_hz or 0


def _near(fastest: CpuFacts, other: CpuFacts, within: float) -> bool:
    """Whether capacities and frequencies, as far as known, differ by no more than this part."""
    pairs = ((fastest.capacity, other.capacity), (fastest.max_freq_hz, other.max_freq_hz))
    return all(a is None or b is None or b >= (1 - within) * a for a, b in pairs)


def _capacities(groups: Sequence[Sequence[CpuFacts]]) -> list[float]:
    """Each group's speed against the fastest group's: by capacity where it tells them apart."""
    for figure in ("capacity", "max_freq_hz"):
        known = [max(getattr(each, figure) or 0 for each in group) for group in groups]
        if min(known) > 0 and min(known) < max(known):
            return [float(f"{speed / max(known):.3g}") for speed in known]
    return [1.0] * len(groups)


def _cluster(group: Sequence[CpuFacts], capacity: float, usable: set[int]) -> Cluster:
    cores = sorted(group, key=lambda each: each.cpu)
    cpus = tuple(each.cpu for each in cores)
    threads = {cpu for each in cores for cpu in each.siblings} & usable
    return Cluster(
        cpus=cpus,
        siblings=tuple(sorted(threads - set(cpus))),
        core_type=cores[0].core_type,
        capacity=capacity,
        max_freq_hz=max(each.max_freq_hz or 0 for each in cores) or None,
        governors=tuple(sorted({each.governor for each in cores if each.governor})),
        node=cores[0].node,
        caches=cores[0].caches,
    )
