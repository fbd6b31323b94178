"""Clusters of machines that are not there, from trees of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_cpus import put, put_cpus, put_hikey970, put_sets
from hypothesis import given
from hypothesis import strategies as st

from partitioner.clusters import Cluster, find_clusters
from partitioner.errors import DeviceError
from partitioner.host import cpu_quota, cpu_sets
from partitioner.sysfs import Cache, cpu_facts


def shape(clusters: tuple[Cluster, ...]) -> list[tuple[str, str, float]]:
    return [(cluster.name, cluster.core_type, cluster.capacity) for cluster in clusters]


def test_big_and_little(tmp_path: Path) -> None:
    put_hikey970(tmp_path)
    found = find_clusters(tmp_path, range(8))
    assert shape(found.clusters) == [
        ("cores:0-3", "Cortex-A53", 0.451),
        ("cores:4-7", "Cortex-A73", 1.0),
    ]
    assert [cluster.max_freq_hz for cluster in found.clusters] == [1_844_000_000, 2_362_000_000]
    assert [cluster.governors for cluster in found.clusters] == [("ondemand",), ("schedutil",)]
    assert found.notes() == ()


def test_prime_big_and_little(tmp_path: Path) -> None:
    """A faster bin of the same core is a cluster of its own."""
    put_cpus(tmp_path, range(4), capacity=290, max_khz=1785600, midr="0x411fd050")
    put_cpus(tmp_path, range(4, 7), capacity=871, max_khz=2419200, midr="0x411fd0b0")
    put_cpus(tmp_path, [7], capacity=1024, max_khz=2841600, midr="0x411fd0b0")
    put_sets(tmp_path, "0-7")
    assert shape(find_clusters(tmp_path, range(8)).clusters) == [
        ("cores:0-3", "Cortex-A55", 0.283),
        ("cores:4-6", "Cortex-A76", 0.851),
        ("cores:7", "Cortex-A76", 1.0),
    ]


def test_a_cluster_may_have_two_clocks(tmp_path: Path) -> None:
    """Two pairs of one type, 2% apart, are four cores of one kind."""
    put_cpus(tmp_path, range(4), capacity=390, max_khz=1800000, midr="0x412fd050")
    put_cpus(tmp_path, range(4, 6), capacity=1024, max_khz=2400000, midr="0x414fd0b0")
    put_cpus(tmp_path, range(6, 8), capacity=1003, max_khz=2352000, midr="0x414fd0b0")
    put_sets(tmp_path, "0-7")
    names = [cluster.name for cluster in find_clusters(tmp_path, range(8)).clusters]
    assert names == ["cores:0-3", "cores:4-7"]


def test_types_tell_apart_what_speeds_do_not(tmp_path: Path) -> None:
    """A kernel that was not told of capacities says 1024 for all: frequency has to serve."""
    put_cpus(tmp_path, range(2), capacity=1024, max_khz=1000000, midr="0x410fd034")
    put_cpus(tmp_path, range(2, 4), capacity=1024, max_khz=2000000, midr="0x410fd092")
    put_sets(tmp_path, "0-3")
    assert shape(find_clusters(tmp_path, range(4)).clusters) == [
        ("cores:0-1", "Cortex-A53", 0.5),
        ("cores:2-3", "Cortex-A73", 1.0),
    ]


def put_hybrid(root: Path) -> None:
    """Two performance cores of two threads, good ones a little faster, and four efficient ones."""
    put_cpus(root, range(2), max_khz=5500000, own_frequency=True, threads=2, governor="powersave")
    put_cpus(root, range(2, 4), max_khz=5800000, own_frequency=True, threads=2)
    put_cpus(root, range(4, 8), max_khz=4300000, own_frequency=True, caches=[(2, "4M", 4)])
    put(root, "sys/devices/cpu_core/cpus", "0-3")
    put(root, "sys/devices/cpu_atom/cpus", "4-7")
    put_sets(root, "0-7")


def test_intel_hybrid_with_two_threads_a_core(tmp_path: Path) -> None:
    put_hybrid(tmp_path)
    found = find_clusters(tmp_path, range(8))
    assert shape(found.clusters) == [
        ("cores:0,2", "performance core", 1.0),
        ("cores:4-7", "efficient core", 0.741),
    ]
    assert [cluster.siblings for cluster in found.clusters] == [(1, 3), ()]
    assert found.clusters[0].governors == ("powersave", "schedutil")
    assert found.clusters[1].caches == (Cache(2, 4 << 20, (4, 5, 6, 7)),)
    assert found.notes() == ("left out: 1,3, second hardware threads of cores listed",)


def test_the_second_thread_serves_where_the_first_is_forbidden(tmp_path: Path) -> None:
    put_hybrid(tmp_path)
    found = find_clusters(tmp_path, [1, 2, 5])
    assert [cluster.name for cluster in found.clusters] == ["cores:1-2", "cores:5"]
    assert found.clusters[0].siblings == ()
    assert found.notes() == ("left out: 0,3-4,6-7, not allowed to this process",)


def test_numa_nodes_are_clusters(tmp_path: Path) -> None:
    put_cpus(tmp_path, range(8))
    put(tmp_path, "sys/devices/system/node/node0/cpulist", "0-3")
    put(tmp_path, "sys/devices/system/node/node1/cpulist", "4-7")
    put_sets(tmp_path, "0-7")
    clusters = find_clusters(tmp_path, range(8)).clusters
    assert [(cluster.name, cluster.node) for cluster in clusters] == [
        ("cores:0-3", 0),
        ("cores:4-7", 1),
    ]


def test_many_groups_around_a_cache_are_one_cluster(tmp_path: Path) -> None:
    put_cpus(tmp_path, range(16), max_khz=3500000, own_frequency=True, caches=[(3, "32M", 4)])
    put_sets(tmp_path, "0-15")
    (cluster,) = find_clusters(tmp_path, range(16)).clusters
    assert cluster.cpus == tuple(range(16))
    assert cluster.caches == (Cache(3, 32 << 20, (0, 1, 2, 3)),)


def test_slow_builds_of_one_design_are_apart_though_each_has_its_own_clock(tmp_path: Path) -> None:
    put_cpus(tmp_path, range(4), max_khz=5100000, own_frequency=True)
    put_cpus(tmp_path, range(4, 12), max_khz=3300000, own_frequency=True)
    put_sets(tmp_path, "0-11")
    names = [cluster.name for cluster in find_clusters(tmp_path, range(12)).clusters]
    assert names == ["cores:0-3", "cores:4-11"]


def test_offline_and_forbidden_cores_are_left_out_and_named(tmp_path: Path) -> None:
    put_hikey970(tmp_path)
    put_sets(tmp_path, "0-7", online="0-5")
    found = find_clusters(tmp_path, [1, 2, 4, 5, 6])
    assert [cluster.name for cluster in found.clusters] == ["cores:1-2", "cores:4-5"]
    assert found.notes() == (
        "left out: 0,3, not allowed to this process",
        "left out: 6-7, offline",
    )


def test_no_core_that_is_online_is_allowed(tmp_path: Path) -> None:
    put_hikey970(tmp_path)
    put_sets(tmp_path, "0-7", online="0-3")
    with pytest.raises(
        DeviceError, match="no core to use: 0-3 are online, this process may use 6;"
    ):
        find_clusters(tmp_path, [6])


def test_nothing_is_known(tmp_path: Path) -> None:
    """A container that hides the files: what the process may use is one cluster."""
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    (cluster,) = find_clusters(tmp_path).clusters
    assert cluster == Cluster(allowed, (), "", 1.0, None, (), 0, ())


def test_cores_that_are_not_equal(tmp_path: Path) -> None:
    put_hybrid(tmp_path)
    found = find_clusters(tmp_path, range(8))
    for alike in ([0, 2], [3], [4, 5, 7], [9]):
        assert found.unlike(alike) is None
    assert found.unlike([3, 4, 5]) == (
        "cores of several kinds (3 performance core of node 0, speed 1; 4-5 efficient core of "
        "node 0, speed 0.741): give each kind a device"
    )


@given(st.data())
def test_every_core_that_can_be_used_is_in_one_cluster(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("host")
    first = 0
    for _ in range(data.draw(st.integers(1, 3))):
        threads = data.draw(st.integers(1, 2))
        cpus = range(first, first + threads * data.draw(st.integers(1, 3)))
        put_cpus(
            root,
            cpus,
            threads=threads,
            capacity=data.draw(st.none() | st.integers(1, 1024)),
            max_khz=data.draw(st.none() | st.integers(1, 5) | st.integers(10**6, 5 * 10**6)),
            own_frequency=data.draw(st.booleans()),
            midr=data.draw(st.sampled_from([None, "0x410fd034", "0x410fd092"])),
        )
        first = cpus.stop
    put_sets(root, f"0-{first - 1}")
    allowed = data.draw(st.sets(st.integers(0, first - 1), min_size=1))
    found = find_clusters(root, allowed)
    taken = [cpu for cluster in found.clusters for cpu in (*cluster.cpus, *cluster.siblings)]
    assert sorted(taken) == sorted(allowed)
    assert set(found.forbidden) == set(range(first)) - allowed
    assert max(cluster.capacity for cluster in found.clusters) == 1.0
    assert min(cluster.capacity for cluster in found.clusters) > 0


@pytest.mark.parametrize(
    ("midr", "name"),
    [
        ("0x00000000410fd034", "Cortex-A53"),
        ("0x00000000414fd0b1", "Cortex-A76"),
        ("0x00000000517f803c", "part 0x803 of implementer 0x51"),
        ("0x00000000410fdff0", "part 0xdff of implementer 0x41"),
    ],
)
def test_type_from_the_identification_register(tmp_path: Path, midr: str, name: str) -> None:
    put_cpus(tmp_path, [0], midr=midr)
    (facts,) = cpu_facts([0], tmp_path)
    assert facts.core_type == name


def test_types_from_cpuinfo(tmp_path: Path) -> None:
    put_cpus(tmp_path, range(3))
    put(
        tmp_path,
        "proc/cpuinfo",
        "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd05\n\n"
        "processor\t: 1\nmodel name\t: Some CPU @ 2.40GHz\n\n"
        "processor\t: 2\nhart\t: 0\nuarch\t: sifive,u74-mc\n\n"
        "Hardware\t: board",
    )
    types = [facts.core_type for facts in cpu_facts(range(3), tmp_path)]
    assert types == ["Cortex-A55", "Some CPU @ 2.40GHz", "sifive,u74-mc"]


def test_caches_that_are_for_code_or_odd_are_not_listed(tmp_path: Path) -> None:
    put_cpus(tmp_path, [0, 1], caches=[(3, "8M", 2), (2, "512K", 1), (1, "odd", 1)])
    first, _ = cpu_facts([0, 1], tmp_path)
    assert first.caches == (Cache(2, 512 << 10, (0,)), Cache(3, 8 << 20, (0, 1)))


# Limits of the process


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                "sys/fs/cgroup/a/cpu.max": "200000 100000",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/c\n1:memory:/m",
                "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us": "40000",
                "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us": "100000",
            },
            0.4,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        # A container sees its own group at the mount's root, under the name it has outside.
        ({"proc/self/cgroup": "0::/pod/x", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    for path, text in files.items():
        put(tmp_path, path, text)
    assert cpu_quota(tmp_path) == quota


def test_a_quota_below_the_cores_is_said(tmp_path: Path) -> None:
    put_hikey970(tmp_path)
    put(tmp_path, "proc/self/cgroup", "0::/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "250000 100000")
    (note,) = find_clusters(tmp_path, range(8)).notes()
    assert "may use 2.5 CPUs at once, less than the 8 cores listed" in note
    assert find_clusters(tmp_path, [4, 5]).notes() == (
        "left out: 0-3,6-7, not allowed to this process",
    )


def test_cpu_sets_of_this_host() -> None:
    sets = cpu_sets()
    assert set(sets.allowed) <= set(sets.online) <= set(sets.present)
    (first, *_) = find_clusters().clusters
    assert first.cpus[0] in sets.allowed
