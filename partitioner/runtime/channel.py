"""Hand-over of tensors between two workers: a ring of slots in shared memory.

One channel joins one producer to one consumer. Each slot holds one item's tensors at fixed,
aligned places. Two counting semaphores in the same memory say how many slots are free and how
many are filled; waiting is the kernel's (a futex), never a loop. As there is one writer and one
reader, either side counts its own position and nothing else is shared, and order is that of a
queue. Process and thread workers use the same code: threads merely map the memory once.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from partitioner.runtime.spec import TensorSpec

__all__ = ["ALIGNMENT", "Arena", "ChannelLayout", "Receiver", "Semaphore", "Sender", "copy"]

ALIGNMENT = 128  # Two cache lines: neighbours' prefetchers do not meet, and vector loads align.

# Below this a copy keeps the interpreter lock: handing it to a busy thread of the caller costs up
# to a switch interval (5 ms) to get back, far more than the copy. Above, others should get a turn.
_KEEP_LOCK_BYTES = 4 << 20

Array = np.ndarray[Any, np.dtype[Any]]


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


# Calls that cannot block keep the interpreter lock (PyDLL), those that can give it up (CDLL).
_HOLDING = ctypes.PyDLL(None)
_YIELDING = ctypes.CDLL(None, use_errno=True)

_sem_init = _HOLDING.sem_init
_sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
_sem_trywait = _HOLDING.sem_trywait
_sem_trywait.argtypes = (ctypes.c_void_p,)
_sem_post = _HOLDING.sem_post
_sem_post.argtypes = (ctypes.c_void_p,)

# A wait against the monotonic clock is glibc 2.30's; elsewhere a set clock may stretch one slice.
_MONOTONIC = hasattr(_YIELDING, "sem_clockwait")
if _MONOTONIC:
    _sem_wait = _YIELDING.sem_clockwait
    _sem_wait.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Timespec))
else:
    _sem_wait = _YIELDING.sem_timedwait
    _sem_wait.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Timespec))


class Semaphore:
    """A POSIX semaphore at a given address of shared memory.

    Parameters
    ----------
    address : int
        Where its 32 bytes lie.
    """

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def initialise(self, value: int) -> None:
        """Make it a semaphore with `value` units; once, before anyone uses it."""
        if _sem_init(self._address, 1, value) != 0:
            raise OSError("sem_init refused the semaphore")

    def try_acquire(self) -> bool:
        """Take a unit if there is one, without waiting and without giving up the GIL."""
        return bool(_sem_trywait(self._address) == 0)

    def acquire(self, timeout_s: float) -> bool:
        """Take a unit, waiting up to `timeout_s` for it; whether one was taken."""
        if self.try_acquire():
            return True
        if _MONOTONIC:
            until = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(timeout_s * 1e9)
            clock: tuple[int, ...] = (time.CLOCK_MONOTONIC,)
        else:
            until = time.clock_gettime_ns(time.CLOCK_REALTIME) + int(timeout_s * 1e9)
            clock = ()
        moment = ctypes.byref(_Timespec(until // 1_000_000_000, until % 1_000_000_000))
        while _sem_wait(self._address, *clock, moment) != 0:
            # A signal ends the wait so that its handler runs (Ctrl-C); then the wait goes on.
            if ctypes.get_errno() != errno.EINTR:
                return False
        return True

    def release(self) -> None:
        """Add a unit and wake whoever waits for one."""
        _sem_post(self._address)


class Arena:
    """The memory that the caller and all workers of a pipeline share.

    It has no name in any file system, so nothing is left behind however its users end.

    Parameters
    ----------
    nbytes : int
        Size in bytes.
    fd : int, optional
        Descriptor of an existing arena; a new zeroed one is made when left out.
    """

    def __init__(self, nbytes: int, fd: int | None = None) -> None:
        self.nbytes = nbytes
        self.fd: int | None = fd
        if fd is None:
            self.fd = fd = os.memfd_create("partitioner", os.MFD_CLOEXEC)
            os.ftruncate(fd, nbytes)
        # Present from the start: a first touch costs microseconds a page, in every process anew.
        self.memory = mmap.mmap(fd, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.address = int(np.frombuffer(self.memory, np.uint8).ctypes.data)

    def close_fd(self) -> None:
        """Drop the descriptor; the mapping lives as long as arrays in it do."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def array(self, offset: int, tensor: TensorSpec) -> Array:
        """Return the array at `offset` with the shape and type of `tensor`."""
        return np.ndarray(tensor.shape, tensor.numpy_dtype, buffer=self.memory, offset=offset)


@dataclass(frozen=True, slots=True)
class ChannelLayout:
    """Where in the arena a channel lies.

    Attributes
    ----------
    offset : int
        Of the two semaphores (``filled``, then ``free``); the slots follow.
    slots : int
        How many items fit.
    tensors : tuple of TensorSpec
        What each slot holds, in order.
    """

    offset: int
    slots: int
    tensors: tuple[TensorSpec, ...]

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next."""
        return sum(aligned(tensor.nbytes) for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole channel."""
        return 2 * ALIGNMENT + self.slots * self.slot_bytes

    def filled(self, arena: Arena) -> Semaphore:
        """The semaphore that counts filled slots."""
        return Semaphore(arena.address + self.offset)

    def free(self, arena: Arena) -> Semaphore:
        """The semaphore that counts free slots."""
        return Semaphore(arena.address + self.offset + ALIGNMENT)

    def initialise(self, arena: Arena) -> None:
        """Set both semaphores: no slot filled, every slot free."""
        self.filled(arena).initialise(0)
        self.free(arena).initialise(self.slots)

    def views(self, arena: Arena) -> tuple[tuple[Array, ...], ...]:
        """Return the arrays of each slot, made once so that their addresses can be remembered."""
        at = self.offset + 2 * ALIGNMENT
        slots = []
        for _ in range(self.slots):
            arrays = []
            for tensor in self.tensors:
                arrays.append(arena.array(at, tensor))
                at += aligned(tensor.nbytes)
            slots.append(tuple(arrays))
        return tuple(slots)


class Sender:
    """The producer's end of a channel.

    Parameters
    ----------
    layout : ChannelLayout
        The channel.
    arena : Arena
        The memory it lies in.
    """

    __slots__ = ("_filled", "_free", "_next", "_reserved", "_views")

    def __init__(self, layout: ChannelLayout, arena: Arena) -> None:
        self._filled = layout.filled(arena)
        self._free = layout.free(arena)
        self._views = layout.views(arena)
        self._next = 0
        self._reserved = False

    def try_reserve(self) -> bool:
        """Reserve the next slot if it is free; a slot once reserved stays so until `commit`."""
        if not self._reserved:
            self._reserved = self._free.try_acquire()
        return self._reserved

    def reserve(self, timeout_s: float) -> bool:
        """Reserve the next slot, waiting up to `timeout_s`; whether it is reserved."""
        if not self._reserved:
            self._reserved = self._free.acquire(timeout_s)
        return self._reserved

    @property
    def slot(self) -> tuple[Array, ...]:
        """The arrays of the reserved slot, to be written."""
        return self._views[self._next]

    def commit(self) -> None:
        """Hand the reserved slot to the consumer."""
        self._reserved = False
        self._next = (self._next + 1) % len(self._views)
        self._filled.release()


class Receiver:
    """The consumer's end of a channel.

    Parameters
    ----------
    layout : ChannelLayout
        The channel.
    arena : Arena
        The memory it lies in.
    """

    __slots__ = ("_filled", "_free", "_next", "_taken", "_views")

    def __init__(self, layout: ChannelLayout, arena: Arena) -> None:
        self._filled = layout.filled(arena)
        self._free = layout.free(arena)
        self._views = layout.views(arena)
        self._next = 0
        self._taken = False

    def try_take(self) -> bool:
        """Take the next slot if it is filled; a slot once taken stays so until `release`."""
        if not self._taken:
            self._taken = self._filled.try_acquire()
        return self._taken

    def take(self, timeout_s: float) -> bool:
        """Take the next slot, waiting up to `timeout_s`; whether it is taken."""
        if not self._taken:
            self._taken = self._filled.acquire(timeout_s)
        return self._taken

    @property
    def slot(self) -> tuple[Array, ...]:
        """The arrays of the taken slot, to be read in place until `release`."""
        return self._views[self._next]

    def release(self) -> None:
        """Give the taken slot back to the producer."""
        self._taken = False
        self._next = (self._next + 1) % len(self._views)
        self._free.release()


def aligned(nbytes: int) -> int:
    """Round a size up to the alignment of tensors."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def copy(target: Array, source: Array) -> None:
    """Copy `source` into `target` of the same shape and type.

    Parameters
    ----------
    target : ndarray
        C-contiguous.
    source : ndarray
        With any strides.
    """
    if source.nbytes < _KEEP_LOCK_BYTES and source.flags.c_contiguous:
        # NumPy gives up the interpreter lock for any copy of over 500 elements; this does not.
        _raw(target)[:] = _raw(source)
    else:
        np.copyto(target, source, casting="no")


def _raw(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
