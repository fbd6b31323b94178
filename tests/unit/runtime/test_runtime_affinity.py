import os
import threading

import pytest

from partitioner.errors import DeviceError
from partitioner.runtime import affinity

CPUS = sorted(affinity.allowed_cpus())
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def test_pin_takes_effect_and_is_undone():
    before = os.sched_getaffinity(0)
    with affinity.preserved_affinity():
        affinity.pin([CPUS[0]])
        assert os.sched_getaffinity(0) == {CPUS[0]}
        assert affinity.allowed(os.getpid())[threading.get_native_id()] == {CPUS[0]}
    assert os.sched_getaffinity(0) == before


def test_affinity_is_restored_after_an_error():
    before = os.sched_getaffinity(0)

    def interrupted():
        with affinity.preserved_affinity():
            affinity.pin([CPUS[0]])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("cpus", [[], [100_000], [-1]])
def test_impossible_cpus_are_refused(cpus):
    before = os.sched_getaffinity(0)
    with pytest.raises(DeviceError, match="may use"):
        affinity.pin(cpus)
    assert os.sched_getaffinity(0) == before


def test_cpus_the_kernel_drops_silently_are_noticed():
    with affinity.preserved_affinity(), pytest.raises(DeviceError, match=r"refuses \{100000\}"):
        affinity.pin([CPUS[0], 100_000])


@two_cpus
def test_check_names_the_stray_thread():
    ready, leave = threading.Event(), threading.Event()

    def stray():
        os.sched_setaffinity(0, {CPUS[1]})
        ready.set()
        leave.wait()

    thread = threading.Thread(target=stray)
    with affinity.preserved_affinity():
        affinity.pin([CPUS[0]])
        thread.start()
        ready.wait()
        try:
            own = {threading.get_native_id(), thread.native_id}
            with pytest.raises(DeviceError, match=f"1 of 2 threads .*thread {thread.native_id}"):
                affinity.check([CPUS[0]], own)
            seen = affinity.check([CPUS[0]], {threading.get_native_id()})
            assert seen == {threading.get_native_id(): {CPUS[0]}}
            assert set(affinity.check(CPUS[:2], own)) == own
        finally:
            leave.set()
            thread.join()
