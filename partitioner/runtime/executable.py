"""A compiled stage as a worker runs it: load, set threads, call, time per kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from partitioner.errors import BuildError, DeviceError

__all__ = ["Executable", "load"]

Array = np.ndarray[Any, np.dtype[Any]]

# TVM's "every thread may run on any of the listed cores": with one thread a core the kernel
# scheduler keeps them apart, and an idle thread never waits for one particular core.
_SHARED_CORES = -3


class Executable:
    """A shared library that holds one stage, loaded for the calling thread.

    The TVM thread pool and the VM's frames belong to the thread that makes this object; use it
    from that thread only.

    Parameters
    ----------
    path : str
        Library made by `partitioner.runtime.build`.
    cpus : sequence of int
        Cores that its threads may use.
    threads : int
        Threads for its kernels.

    Raises
    ------
    BuildError
        If the library cannot be loaded.
    DeviceError
        If TVM's pool has another number of threads.
    """

    def __init__(self, path: str, cpus: Sequence[int], threads: int) -> None:
        try:
            library = tvm.runtime.load_module(path)
            self._vm = relax.VirtualMachine(library, tvm.cpu())
        except (RuntimeError, ValueError, OSError) as error:
            raise BuildError(f"{path}: cannot load the stage: {error}; build it again") from error
        # The pool takes its size from the first kernel, so this comes before any.
        configure = tvm.get_global_func("runtime.config_threadpool")
        configure(_SHARED_CORES, threads, [str(cpu) for cpu in cpus])
        found = int(tvm.get_global_func("runtime.NumThreads")())
        if found != threads:
            raise DeviceError(
                f"{path}: TVM runs kernels with {found} threads, {threads} were asked for; is "
                "TVM_NUM_THREADS set, or the pool already in use?"
            )
        self._main = self._vm["main"]

    def run(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Run the stage on one item.

        Parameters
        ----------
        inputs : tuple of array
            In the order of the stage's inputs; C-contiguous. Aligned ones are read in place.

        Returns
        -------
        tuple of array
            In the order of the stage's outputs; valid until the next call, may alias inputs.
        """
        result = self._main(*[_to_tvm(array) for array in inputs])
        parts = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return tuple(np.from_dlpack(part) for part in parts)

    def trace(
        self, inputs: tuple[Array, ...], clock: Callable[[], float] = time.perf_counter
    ) -> tuple[tuple[str, float], ...]:
        """Run one item and time each kernel in place.

        Parameters
        ----------
        inputs : tuple of array
            As `run` takes them.
        clock : callable
            Seconds; read by the calling thread before and after each kernel.

        Returns
        -------
        tuple of (str, float)
            Symbol and seconds of what `main` calls, in the order it ran: kernels, and functions
            with all that they call. The VM's own built-ins are left out.
        """
        events: list[tuple[str, float]] = []
        began: list[float] = []

        def observe(_: Any, symbol: str, before: bool, *__: Any) -> None:
            if before:
                began.append(clock())
                return
            seconds = clock() - began.pop()
            if not began:
                events.append((str(symbol), seconds))

        self._vm.set_instrument(observe)
        try:
            self.run(inputs)
        finally:
            self._vm.set_instrument(None)
        return tuple((name, s) for name, s in events if not name.startswith("vm.builtin."))


def load(path: str, *, threads: int, cpus: Sequence[int]) -> Executable:
    """Runner factory for a pipeline's worker (see `partitioner.runtime.spec.RunnerSpec`)."""
    return Executable(path, cpus, threads)


def _to_tvm(array: Array) -> Any:
    # Kernels assume 64-byte alignment, and TVM takes no read-only memory: others are copied.
    flags = array.flags
    if array.ctypes.data % 64 == 0 and flags.c_contiguous and flags.writeable:
        return tvm.runtime.from_dlpack(array)
    return tvm.runtime.tensor(array)
