import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from emulated import quota_or_skip
from runtime_runners import CPU, chain, numbers, replica, runner

from partitioner.errors import DeviceError
from partitioner.runtime import affinity, cgroup
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.spec import PipelineSpec, StageSpec, TensorSpec

PASSING = runner("passing")
HERE = str(Path(__file__).parent)


@contextmanager
def cpuset(cpus):
    """A version 1 cpuset group with these CPUs, or a skip."""
    parent = Path("/sys/fs/cgroup/cpuset")
    group = parent / f"partitioner-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpuset.mems").write_text((parent / "cpuset.mems").read_text())
        (group / "cpuset.cpus").write_text(",".join(map(str, cpus)))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no cpuset group can be made here: {error}")
    try:
        yield str(group)
    finally:
        cgroup._remove(group)


def in_group(path, run=PASSING):
    """A pipeline of one stage in a control group."""
    stage = StageSpec("s0", (replica(run, cgroup=path),), (0,), (1,))
    tensors = {number: TensorSpec(f"t{number}", (4,), "int64") for number in range(2)}
    return PipelineSpec((stage,), tensors, (0,), (1,))


def members(path):
    return {int(pid) for pid in (Path(path) / "cgroup.procs").read_text().split()}


def test_workers_join_their_group_and_the_caller_does_not():
    with quota_or_skip(0.5) as path, Pipeline(in_group(path)) as pipe:
        assert int(pipe(numbers(1, start=7)[0])[0]) == 7
        assert members(path) == set(pipe.pids)
        threads = set(map(int, (Path(path) / "tasks").read_text().split()))
        assert threads == affinity.allowed(pipe.pids[0]).keys()
    assert not Path(path).exists()


def test_a_quota_holds():
    """Processor time over wall time is the share; a loaded machine can only make it less."""
    code = (
        "import sys, time\n"
        "from partitioner.runtime import affinity, cgroup\n"
        "affinity.pin([int(sys.argv[2])])\n"
        "cgroup.join(sys.argv[1])\n"
        "time.sleep(0.05)\n"
        "wall, own = time.perf_counter(), time.process_time()\n"
        "while time.perf_counter() < wall + 1: pass\n"
        "print((time.process_time() - own) / (time.perf_counter() - wall))\n"
    )
    with quota_or_skip(0.4) as path:
        done = subprocess.run(
            [sys.executable, "-c", code, path, str(CPU)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert 0.05 < float(done.stdout) < 0.5


def test_what_a_killed_process_left_is_removed():
    code = (
        "import os, sys\n"
        "from partitioner.runtime.cgroup import quota\n"
        "with quota(0.5) as path:\n"
        "    print(path, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    with quota_or_skip(0.5):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
        )
    left = Path(done.stdout.strip())
    assert left.is_dir()
    with quota_or_skip(0.5) as path:
        assert not left.exists()
        assert Path(path).is_dir()


def test_whoever_is_left_in_a_quota_is_moved_out():
    with quota_or_skip(0.5) as path:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        (Path(path) / "cgroup.procs").write_text(str(child.pid))
    assert not Path(path).exists()
    child.communicate(b"\n", timeout=30)
    assert child.returncode == 0


@pytest.mark.parametrize(
    ("share", "options"), [(0, {}), (1, {}), (0.5, {"cores": 0}), (0.5, {"period_s": 1e-4})]
)
def test_quotas_that_make_no_sense(share, options):
    with (
        pytest.raises(DeviceError, match="needed a share between 0 and 1"),
        cgroup.quota(share, **options),
    ):
        pass


@pytest.mark.parametrize(
    ("files", "written"),
    [
        (("cpu.max",), {"cpu.max": "8000 10000"}),
        (
            ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
            {"cpu.cfs_quota_us": "8000", "cpu.cfs_period_us": "10000"},
        ),
    ],
)
def test_both_interfaces(files, written, tmp_path):
    for name in files:
        (tmp_path / name).touch()
    cgroup._limit(tmp_path, 8000, 10000)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == written


def test_joining_is_confirmed(tmp_path):
    """A plain file keeps what is written; /dev/null does not."""
    (tmp_path / "cgroup.procs").touch()
    cgroup.join(str(tmp_path))
    (tmp_path / "cgroup.procs").unlink()
    (tmp_path / "cgroup.procs").symlink_to("/dev/null")
    with pytest.raises(DeviceError, match="is not in it"):
        cgroup.join(str(tmp_path))


def test_a_group_that_is_not_there(tmp_path):
    path = str(tmp_path / "gone")
    with pytest.raises(
        DeviceError, match=r"stage 0 \(s0\), replica 0: control group .*gone.*creat"
    ):
        Pipeline(in_group(path))


def test_a_thread_cannot_join(tmp_path):
    with pytest.raises(DeviceError, match=r"stage 0 .*workers='process'"):
        Pipeline(in_group(str(tmp_path)), "thread")


def test_a_core_that_went_since_the_start(monkeypatch):
    """The caller believes in the CPUs it started with; the worker finds that one is gone."""
    monkeypatch.setattr(affinity, "_AT_IMPORT", affinity.allowed_cpus() | {5000})
    with pytest.raises(DeviceError) as caught:
        Pipeline(chain(runner("passing"), runner("passing"), cpus=(CPU, 5000)))
    said = str(caught.value)
    assert "stage 0 (s0), replica 0: " in said or "stage 1 (s1), replica 0: " in said
    assert f"cannot run on CPUs {{{CPU},5000}}, the kernel refuses {{5000}}" in said
    assert "bring these cores back" in said
    assert "plan again" in said


SHRUNK = f"""
import sys
sys.path.insert(0, {HERE!r})
from runtime_runners import chain, runner
from partitioner.errors import DeviceError
from partitioner.runtime import cgroup
from partitioner.runtime.pipeline import Pipeline
if sys.argv[1:]: cgroup.join(sys.argv[1])
try:
    Pipeline(chain(runner("passing"), cpus=(int(sys.argv[2]), int(sys.argv[3]))))
except DeviceError as error:
    print(error)
"""


def two_cpus():
    cpus = sorted(affinity.allowed_cpus())[:2]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    return cpus


def test_a_cpuset_that_shrinks_before_the_pipeline_starts():
    kept, lost = two_cpus()
    with cpuset([kept]) as path:
        done = subprocess.run(
            [sys.executable, "-c", SHRUNK, path, str(kept), str(lost)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert f"the kernel refuses {{{lost}}}; this process may use {{{kept}}}" in done.stdout
    assert "stage 0 (s0), replica 0" in done.stdout
    assert "plan again" in done.stdout
    assert not done.stderr


def test_a_process_with_fewer_cpus_from_the_start():
    kept, lost = two_cpus()
    code = SHRUNK.replace("if sys.argv[1:]: cgroup.join(sys.argv[1])", "")
    with affinity.preserved_affinity():
        affinity.pin([kept])
        done = subprocess.run(
            [sys.executable, "-c", code, "", str(kept), str(lost)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert done.stdout.startswith("pipeline: stage 0 (s0)")
    assert f"CPUs [{lost}], but this process may use [{kept}]" in done.stdout
    assert not done.stderr


def test_a_quota_makes_a_stage_slower():
    """A loaded machine only adds to the time that the share alone makes of it."""
    share, each_s, count = 0.2, 0.01, 20
    with quota_or_skip(share) as path, Pipeline(in_group(path, runner("burning", each_s))) as pipe:
        list(pipe.map(numbers(2)))
        start = time.perf_counter()
        assert sum(1 for _ in pipe.map(numbers(count))) == count
        wall_s = time.perf_counter() - start
    assert wall_s > 0.6 * count * each_s / share
