import itertools
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from partitioner.runtime.channel import (
    ALIGNMENT,
    Arena,
    ChannelLayout,
    Receiver,
    Semaphore,
    Sender,
    copy,
)
from partitioner.runtime.spec import TensorSpec

TENSORS = (
    TensorSpec("a", (3, 5), "float32"),
    TensorSpec("b", (), "int64"),
    TensorSpec("c", (0, 4), "float16"),
    TensorSpec("d", (7,), "bool"),
)


@pytest.fixture
def channel():
    layout = ChannelLayout(ALIGNMENT, 3, TENSORS)
    arena = Arena(ALIGNMENT + layout.nbytes)
    layout.initialise(arena)
    yield layout, arena
    arena.close_fd()


def fill(slot, number):
    for array in slot:
        array[...] = number


def test_items_arrive_in_order_and_slots_are_reused(channel):
    sender, receiver = Sender(*channel), Receiver(*channel)
    for number in range(10):
        assert sender.try_reserve()
        fill(sender.slot, number)
        sender.commit()
        assert receiver.take(0.0)
        assert int(receiver.slot[1]) == number
        assert (receiver.slot[0] == number).all()
        assert (receiver.slot[3] == bool(number)).all()
        receiver.release()


def test_a_full_channel_has_no_room_and_an_empty_one_no_item(channel):
    sender, receiver = Sender(*channel), Receiver(*channel)
    assert not receiver.try_take()
    for number in range(3):
        assert sender.reserve(0.0)
        fill(sender.slot, number)
        sender.commit()
    assert not sender.try_reserve()
    start = time.monotonic()
    assert not sender.reserve(0.02)
    assert time.monotonic() - start >= 0.02
    assert receiver.try_take()
    receiver.release()
    assert sender.try_reserve()


def test_a_reserved_slot_and_a_taken_one_are_kept(channel):
    sender, receiver = Sender(*channel), Receiver(*channel)
    for _ in range(5):
        assert sender.try_reserve()
    sender.commit()
    for _ in range(5):
        assert receiver.try_take()
    receiver.release()
    assert not receiver.try_take()


def test_tensors_are_aligned_and_do_not_overlap(channel):
    layout, arena = channel
    spans = []
    for slot in layout.views(arena):
        for array, tensor in zip(slot, TENSORS, strict=True):
            assert array.ctypes.data % ALIGNMENT == 0
            assert (array.shape, array.dtype) == (tensor.shape, tensor.numpy_dtype)
            spans.append((array.ctypes.data, array.ctypes.data + array.nbytes))
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= arena.address + arena.nbytes


def test_a_waiting_receiver_is_woken(channel):
    sender, receiver = Sender(*channel), Receiver(*channel)
    got = []
    thread = threading.Thread(target=lambda: got.append(receiver.take(30.0)))
    thread.start()
    sender.reserve(0.0)
    sender.commit()
    thread.join(30.0)
    assert got == [True]


def test_another_process_sees_the_same_memory(channel):
    layout, arena = channel
    code = (
        "import sys; from partitioner.runtime.channel import *;"
        "from partitioner.runtime.spec import TensorSpec;"
        f"layout = {layout!r}; arena = Arena({arena.nbytes}, {arena.fd});"
        "r = Receiver(layout, arena); assert r.take(30.0);"
        "print(int(r.slot[1])); r.release()"
    )
    sender = Sender(layout, arena)
    for number in range(3):
        sender.reserve(0.0)
        fill(sender.slot, number + 40)
        sender.commit()
    done = subprocess.run(
        [sys.executable, "-c", code],
        pass_fds=(arena.fd,),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "40"
    assert sender.reserve(0.0)
    sender.commit()
    assert not sender.try_reserve()


def test_a_signal_does_not_end_a_wait_but_its_handler_runs():
    arena = Arena(ALIGNMENT)
    semaphore = Semaphore(arena.address)
    semaphore.initialise(0)
    handled = []
    before = signal.signal(signal.SIGUSR1, lambda *_: (handled.append(1), semaphore.release()))
    main = threading.get_ident()
    timer = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGUSR1))
    try:
        timer.start()
        assert semaphore.acquire(30.0)
        assert handled == [1]
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
        arena.close_fd()


def test_arena_has_no_name_in_shared_memory():
    before = set(Path("/dev/shm").iterdir())
    arena = Arena(1 << 20)
    assert set(Path("/dev/shm").iterdir()) == before
    arena.close_fd()
    arena.close_fd()


@pytest.mark.parametrize("shape", [(), (0,), (5,), (1200, 1000)])
def test_copy_of_any_layout(shape):
    source = np.asarray(np.random.default_rng(0).standard_normal(shape))
    strided = np.copy(source, order="F")
    for layout in (source, strided, source[..., ::-1] if shape else source):
        target = np.full(shape, np.nan)
        copy(target, layout)
        assert np.array_equal(target, layout)


def test_bfloat16_has_a_size():
    assert TensorSpec("x", (3, 2), "bfloat16").nbytes == 12
