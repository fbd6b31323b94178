from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_cpus import put, put_hikey970
from hypothesis import given
from hypothesis import strategies as st

from partitioner.clusters import find_clusters
from partitioner.core_list import format_cpus, parse_cpus
from partitioner.errors import DeviceError
from partitioner.host import CpuSets, HostInfo, allowed_cpus, host_info
from partitioner.machine import (
    Device,
    Link,
    Machine,
    MemoryPool,
)


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch):
    """Let the process use these cores."""

    def set_to(*cpus: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cpus))

    return set_to


# Core lists


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("4,5", (4, 5)),
        (" 0 - 1 , 6", (0, 1, 6)),
        ("7,2-3", (7, 2, 3)),
        ("5-5", (5,)),
    ],
)
def test_parse_cpus(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text, "d") == cpus


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-", "0-9999999", "1.5", "0x1"])
def test_malformed_cpus(text: str) -> None:
    with pytest.raises(DeviceError, match=r"device 'mine': '.*' is no core list; write 0-3 or 4,5"):
        parse_cpus(text, "mine")


@given(st.lists(st.integers(0, 300), min_size=1, unique=True))
def test_format_and_parse_are_inverse(cpus: list[int]) -> None:
    assert parse_cpus(format_cpus(cpus), "d") == tuple(cpus)


def test_format_joins_runs() -> None:
    assert format_cpus((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
    assert format_cpus(()) == ""


# Devices


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cores:0-3", Device("cores:0-3", cpus=(0, 1, 2, 3))),
        ("cores:4,5", Device("cores:4,5", cpus=(4, 5))),
        (" cores:6 ", Device("cores:6", cpus=(6,))),
        ("cuda:0", Device("cuda:0", kind="cuda", memory="cuda:0")),
        ("cuda:1", Device("cuda:1", kind="cuda", index=1, memory="cuda:1")),
        ("opencl", Device("opencl", kind="opencl", memory="opencl")),
    ],
)
def test_parse_device(text: str, device: Device) -> None:
    assert Device.parse(text) == device


def test_allowed_cores(allow) -> None:
    allow(5, 2, 3)
    assert allowed_cpus() == (2, 3, 5)


@pytest.mark.parametrize(
    "text", ["", "gpu", "core:0", "cpu:0", "cuda:x", "cuda:-1", "npu:0", "0-3"]
)
def test_unknown_device_strings(text: str) -> None:
    with pytest.raises(DeviceError, match=r"unknown device .*write cores:0-3, cores:4,5, cpu"):
        Device.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cores:", "'' is no core list"),
        ("cores:3-1", "'3-1' is no core list"),
        ("cores:0,0", "lists a core twice: 0,0"),
        ("cores:0-2,1", "lists a core twice"),
    ],
)
def test_wrong_core_lists(text: str, message: str) -> None:
    with pytest.raises(DeviceError, match=f"device '{text}'.*{message}"):
        Device.parse(text)


def test_devices_that_cannot_be() -> None:
    with pytest.raises(DeviceError, match=r"'x' is of kind 'tpu'; known: cpu, cuda"):
        Device("x", kind="tpu")
    with pytest.raises(DeviceError, match="CPU device 'x' lists no cores"):
        Device("x")
    with pytest.raises(DeviceError, match=r"lists cores \[-1\]; cores are whole numbers"):
        Device("x", cpus=(-1,))
    with pytest.raises(DeviceError, match="control group 'little'; give the folder's whole path"):
        Device("x", cpus=(0,), cgroup="little")
    for capacity in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(DeviceError, match=r"'x' has a capacity of .*; give a core's speed"):
            Device("x", cpus=(0,), capacity=capacity)
    with pytest.raises(DeviceError, match="budget of -1 bytes"):
        MemoryPool("host", -1)
    for latency_s, bytes_per_s in ((-1.0, 1.0), (float("nan"), 1.0), (0.0, 0.0)):
        with pytest.raises(DeviceError, match="a latency is zero or more, a rate above zero"):
            Link("a", "b", latency_s, bytes_per_s)


def test_threads() -> None:
    assert Device("c", cpus=(0, 1, 2)).threads == 3
    assert Device("g", kind="cuda", cpus=(0, 1)).threads == 1


# Machines


def test_overlapping_cores() -> None:
    with pytest.raises(DeviceError, match=r"core 2 belongs to both 'cores:0-2' and 'cores:2-3'"):
        Machine.of(["cores:0-2", "cores:2-3"])


def test_names_are_unique() -> None:
    with pytest.raises(DeviceError, match="two devices named 'cuda:0'"):
        Machine.of(["cuda:0", "cuda:0"])
    with pytest.raises(DeviceError, match="two memories of one name among ram, ram"):
        Machine("m", (Device("c", cpus=(0,)),), (MemoryPool("ram"), MemoryPool("ram", 1)))


def test_links_end_at_devices() -> None:
    with pytest.raises(DeviceError, match=r"a link of machine 'm' ends at 'b'; its devices are a"):
        Machine("m", (Device("a", cpus=(0,)),), links=(Link("a", "b", 0.0, 1.0),))


def test_no_devices() -> None:
    with pytest.raises(DeviceError, match="no devices; name at least one"):
        Machine.of([])


def test_pools_are_implied() -> None:
    machine = Machine(
        "m",
        (Device("a", cpus=(0,), memory="fast"), Device("g", kind="cuda", memory="vram")),
        (MemoryPool("fast", 100),),
    )
    assert machine.memories == (MemoryPool("fast", 100), MemoryPool("vram"))


class TvmDevice:
    """Stands in for `tvm.runtime.Device`, which is known by its module and prints like this."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


TvmDevice.__module__ = "tvm_ffi.core"


def test_of_takes_what_users_have() -> None:
    one = Device("mine", cpus=(0,))
    assert Machine.of("cores:0").devices == (Device("cores:0", cpus=(0,)),)
    assert Machine.of(one).devices == (one,)
    assert Machine.of((one, "cores:1")).devices == (one, Device("cores:1", cpus=(1,)))
    machine = Machine("m", (one,))
    assert Machine.of(machine) is machine
    for here in (None, "cpu", [" cpu "], TvmDevice("cpu:0"), [TvmDevice("cpu:0")]):
        assert Machine.of(here) == Machine.detect()
    mixed = Machine.of(["cuda:0", "cpu"]).devices
    assert mixed == (Device("cuda:0", "cuda", memory="cuda:0"), *Machine.detect().devices)
    assert Machine.of([TvmDevice("cuda:1")]).devices[0].index == 1


@pytest.mark.parametrize("wrong", [3, [3], [None], [b"cpu"]])
def test_of_refuses_other_objects(wrong: object) -> None:
    with pytest.raises(DeviceError, match=r"names no device; give a string such as 'cores:0-3'"):
        Machine.of(wrong)


def test_detect_is_one_device_a_cluster(tmp_path: Path) -> None:
    put_hikey970(tmp_path)
    found = find_clusters(tmp_path, [0, 1, 3, 4, 5])
    assert Machine.detect(found).devices == (
        Device("cores:0-1,3", cpus=(0, 1, 3), capacity=0.451),
        Device("cores:4-5", cpus=(4, 5)),
    )
    assert Machine.of(None) == Machine.detect()


def test_all_cores_joins_what_is_alike() -> None:
    joined = Machine.of(["cores:2-3", "cuda:0", "cores:0"]).all_cores()
    assert joined == Device("cores:0,2-3", cpus=(0, 2, 3))


@pytest.mark.parametrize(
    "devices",
    [
        (Device("a", cpus=(0, 1)),),
        (Device("a", cpus=(0,)), Device("g", kind="cuda", memory="vram")),
        (Device("a", cpus=(0,)), Device("b", cpus=(1,), target="llvm -mcpu=x")),
        (Device("a", cpus=(0,)), Device("b", cpus=(1,), memory="other")),
        (Device("a", cpus=(0,)), Device("b", cpus=(1,), cgroup="/slow")),
    ],
    ids=["one", "one beside an accelerator", "two targets", "two memories", "two groups"],
)
def test_all_cores_is_none_where_they_cannot_be_joined(devices: tuple[Device, ...]) -> None:
    assert Machine("m", devices).all_cores() is None


def test_all_cores_go_at_the_slowest_core() -> None:
    machine = Machine("m", (Device("a", cpus=(0,)), Device("b", cpus=(1,), capacity=0.4)))
    assert machine.all_cores() == Device("cores:0-1", cpus=(0, 1), capacity=0.4)


def test_device_by_name() -> None:
    machine = Machine.of(["cores:0", "cores:1"])
    assert machine.device("cores:1").cpus == (1,)
    with pytest.raises(DeviceError, match=r"no device 'cores:2'; it has cores:0, cores:1"):
        machine.device("cores:2")


SETS = CpuSets(present=(0, 1, 2, 3), online=(0, 1, 2), allowed=(0, 2))


def test_cores_that_can_be_used() -> None:
    Machine.of(["cores:0", "cores:2", "cuda:0"]).require_present(SETS)
    Machine.detect().require_present()


@pytest.mark.parametrize(
    ("cores", "message"),
    [
        (
            "cores:1-5",
            r"this host has no core 4-5 \(it has 0-3\); use a machine file of this host,",
        ),
        (
            "cores:2-3",
            r"core 3 is offline; switch it on in /sys/devices/system/cpu/cpu3/online,",
        ),
        (
            "cores:0-1",
            r"this process may not use core 1; widen its CPU set \(taskset, .*cpuset\),",
        ),
    ],
)
def test_cores_that_cannot(cores: str, message: str) -> None:
    with pytest.raises(
        DeviceError, match=f"device '{cores}': {message} or plan for cores out of 0,2$"
    ):
        Machine.of(["cuda:0", cores]).require_present(SETS)


def test_a_cpu_set_that_shrinks(allow) -> None:
    machine = Machine.detect()
    (first, *_) = machine.devices[0].cpus
    machine.require_present()
    allow(first + 1)
    with pytest.raises(DeviceError, match=f"may not use core {first}"):
        machine.require_present()


# TOML


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4, unique=True))
    free = draw(st.permutations(range(12)))
    devices = []
    for index, name in enumerate(names):
        cpus = tuple(free[3 * index : 3 * index + draw(st.integers(1, 3))])
        memory = draw(st.sampled_from(["host", "fast", "a b"]))
        if draw(st.booleans()):
            target = draw(st.none() | st.just('{"kind": "llvm", "mcpu": "znver3"}'))
            group = draw(st.none() | st.just("/sys/fs/cgroup/slow"))
            speed = draw(st.just(1.0) | st.floats(0.01, 1))
            devices.append(Device(name, "cpu", cpus, 0, target, memory, group, speed))
        else:
            cpus = draw(st.just(()) | st.just(cpus))
            number = draw(st.integers(0, 3))
            devices.append(Device(name, "cuda", cpus, index=number, memory=memory))
    budget = draw(st.none() | st.integers(0, 2**62))
    ends = st.sampled_from(names)
    link = st.builds(Link, ends, ends, st.floats(0, 1), st.floats(1, 1e12))
    links = tuple(draw(st.lists(link, max_size=3)))
    return Machine(draw(st.text()), tuple(devices), (MemoryPool("host", budget),), links)


@given(machines())
def test_toml_round_trip(tmp_path_factory: pytest.TempPathFactory, machine: Machine) -> None:
    path = tmp_path_factory.getbasetemp() / "machine.toml"
    machine.save(path)
    assert Machine.load(path) == machine


def test_toml_under_comments(tmp_path: Path) -> None:
    machine = Machine.of("cores:0-1")
    machine.save(tmp_path / "m.toml", notes=("two cores", "of one kind"))
    text = (tmp_path / "m.toml").read_text(encoding="utf-8")
    assert text.startswith("# two cores\n# of one kind\nname = ")
    assert Machine.load(tmp_path / "m.toml") == machine


def test_toml_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text(
        """
        name = "board"
        [[device]]
        name = "big"
        cpus = "4-5"
        [[device]]
        name = "little"
        cpus = [0, 1]
        target = "llvm"
        [[memory]]
        name = "host"
        bytes = 1000
        """,
        encoding="utf-8",
    )
    assert Machine.load(path) == Machine(
        "board",
        (Device("big", cpus=(4, 5)), Device("little", cpus=(0, 1), target="llvm")),
        (MemoryPool("host", 1000),),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "not TOML"),
        ("name = 'm'", "the key 'device' is missing; a machine file has a name and"),
        ("[[device]]\nname = 'a'\ncpus = '0'", "the key 'name' is missing"),
        ("name = 'm'\n[[device]]\ncpus = '0'", "the key 'name' is missing"),
        ("name = 'm'\n[[device]]\nname = 'a'\ncores = '0'", r"unknown keys \['cores'\]"),
        ("name = 'm'\ndevice = 'cpu'", "not a machine description"),
        ("name = 'm'\n[[device]]\nname = 'a'\ncpus = 3", "not a machine description"),
        ("name = 'm'\n[[device]]\nname = 'a'\ncpus = '0'\ncgroup = 3", "not a machine desc"),
        ("name = 'm'\n[[device]]\nname = 'a'\ncpus = '0'\ncapacity = '1'", "not a machine desc"),
        ("name = 'm'\n[[device]]\nname = 'a'\ncpus = ['0']", r"lists cores \['0'\]"),
        ("name = 'm'\n[[device]]\nname = 'a'\ncpus = '3-1'", "'3-1' is no core list"),
        (
            "name = 'm'\n[[device]]\nname = 'a'\ncpus = '0'\n[[device]]\nname = 'b'\ncpus = '0'",
            "core 0 belongs to both 'a' and 'b'",
        ),
        (
            "name = 'm'\n[[device]]\nname = 'a'\ncpus = '0'\n[[memory]]\nname = 'host'\n"
            "bytes = '1 GB'",
            "budget of '1 GB' bytes",
        ),
        (
            "name = 'm'\n[[device]]\nname = 'a'\ncpus = '0'\n[[link]]\nsource = 'a'\ntarget = 'a'",
            "not a machine description",
        ),
    ],
)
def test_malformed_toml_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "board.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DeviceError, match=f"board.toml: .*{message}"):
        Machine.load(path)


def test_no_toml(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"absent.toml: cannot read the machine: No such file"):
        Machine.load(tmp_path / "absent.toml")


# The host


def test_host_info_is_of_this_host() -> None:
    here = host_info()
    assert here.cores == os.cpu_count()
    assert here.arch == os.uname().machine
    assert here.differs_from(here) == ()


def test_a_board_goes_by_its_name(tmp_path: Path) -> None:
    put(tmp_path, "proc/cpuinfo", "processor : 0\nFeatures : fp asimd\nCPU part : 0xd03")
    unnamed = host_info(tmp_path)
    assert unnamed.cpu == "0xd03"
    put(tmp_path, "proc/device-tree/model", "HiKey970\0")
    host_info.cache_clear()
    assert host_info(tmp_path).cpu == "HiKey970"
    assert host_info(tmp_path).features == unnamed.features != host_info().features


def test_hosts_differ_in_what_times_depend_on() -> None:
    one = HostInfo("A", "x86_64", "Linux", 2, "f1")
    other = HostInfo("B", "x86_64", "Darwin", 4, "f1")
    assert one.differs_from(other) == ("cpu: A, here B", "cores: 2, here 4")
