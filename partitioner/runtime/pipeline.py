"""A running pipeline, as its user sees it: call it, map over it, submit to it, close it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal

import numpy as np

from partitioner.errors import InputError
from partitioner.runtime.crew import Member
from partitioner.runtime.engine import Arrays, Engine, Ticket
from partitioner.runtime.spec import PipelineSpec, TensorSpec
from partitioner.runtime.trace import StageTimes, Trace, stage_times

__all__ = ["Outputs", "Pipeline"]

_LOG_ITEMS = 1024

Outputs = np.ndarray[Any, np.dtype[Any]] | Arrays


class Pipeline:
    """The workers of a `PipelineSpec`, started, pinned and warmed up.

    An item is given as positional arrays, arrays by name, one tuple or list in the order of the
    inputs, or one mapping from input names. Results are one array, or a tuple where there are
    several outputs; they are the caller's own. Any thread may use a pipeline.

    Parameters
    ----------
    spec : PipelineSpec
        What to run.
    workers : {"process", "thread"}
        A process for each replica, or a thread of this process: quicker to start, but subject to
        the interpreter lock, and a stage's crash is the caller's. What a thread runs cannot be
        ended, so closing waits for it.
    slots : int, optional
        Depth of every queue. Left out, it depends on the tensors' sizes: up to 4 items between
        stages and 64 at the caller, each queue at most 16 MiB unless two items need more.
    trace : Trace, optional
        Keeps the times of all items rather than of the latest 1024.
    start_timeout_s : float
        How long all workers together may take to load and run once.

    Raises
    ------
    DeviceError
        If a worker cannot have its CPUs, or one of its threads strays from them.
    StageError, BuildError
        If a worker cannot start. Nothing is left running then.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        workers: Literal["process", "thread"] = "process",
        *,
        slots: int | None = None,
        trace: Trace | None = None,
        start_timeout_s: float = 300.0,
    ) -> None:
        self.spec = spec
        self._tensors = [spec.tensors[tensor] for tensor in spec.inputs]
        self._types = [(tensor.shape, tensor.numpy_dtype) for tensor in self._tensors]
        self._names = [tensor.name for tensor in self._tensors]
        self._single = len(spec.outputs) == 1
        log_items = _LOG_ITEMS if trace is None else trace.items
        self._engine = Engine(spec, workers, slots, log_items, start_timeout_s)
        self._trace = trace
        if trace is not None:
            trace.watch(self._engine.crew.records)
        # Runs at garbage collection and at the interpreter's end too.
        self._finalizer = weakref.finalize(self, _finish, self._engine, trace)

    @property
    def workers(self) -> tuple[Member, ...]:
        """The workers with their CPUs and processes, in the order of stages and replicas."""
        return self._engine.crew.members

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers, in the order of stages and replicas."""
        return tuple(worker.pid for worker in self.workers)

    @property
    def capacity(self) -> int:
        """How many items `map` takes ahead of the result it yields."""
        return self._engine.capacity

    def __call__(self, *args: Any, **by_name: Any) -> Outputs:
        """Run one item.

        Raises
        ------
        InputError
            If the inputs do not fit; the pipeline goes on.
        StageError
            If a stage failed; the pipeline is shut down.
        """
        arrays = self._arrays(args, by_name)
        try:
            ticket = self._engine.send(arrays)
            self._engine.wait_for(ticket)
        except KeyboardInterrupt:
            self.close()
            raise
        return self._shape(ticket.result())

    def map(self, items: Iterable[Any]) -> Iterator[Outputs]:
        """Run items overlapped and yield their results in order.

        At most `capacity` items are taken from `items` ahead of the result that is yielded. Left
        early, the iterator abandons the items on their way, nothing more.

        Raises
        ------
        InputError
            If an item does not fit; the pipeline goes on.
        StageError
            If a stage failed; the pipeline is shut down.
        """
        engine, source = self._engine, iter(items)
        sent: deque[Ticket] = deque()
        held: Arrays | None = None
        more = True
        try:
            while True:
                while more and len(sent) < engine.capacity:
                    if held is None:
                        try:
                            held = self._arrays((next(source),), {})
                        except StopIteration:
                            more = False
                            break
                    ticket = engine.try_send(held)
                    if ticket is None:
                        break
                    sent.append(ticket)
                    held = None
                if not sent and held is None:
                    return
                engine.drain()
                if sent and sent[0].done:
                    yield self._shape(sent.popleft().result())
                elif held is not None:
                    engine.wait_room()
                else:
                    engine.wait_for(sent[0])
        except KeyboardInterrupt:
            self.close()
            raise
        finally:
            for ticket in sent:
                ticket.wanted = False

    def submit(self, *args: Any, **by_name: Any) -> Future[Outputs]:
        """Send one item and return a future of its result; waits while the queues are full.

        A future cannot be cancelled. Closing the pipeline before it is done makes it fail.

        Raises
        ------
        InputError
            If the inputs do not fit; the pipeline goes on.
        StageError
            If a stage has failed; the pipeline is shut down.
        """
        arrays = self._arrays(args, by_name)
        try:
            return self._engine.promise(arrays, single=self._single)
        except KeyboardInterrupt:
            self.close()
            raise

    def stage_times(self) -> tuple[StageTimes, ...]:
        """Return each stage's times an item: medians over its latest items and all replicas."""
        workers = list(self._trace.records() if self._trace else self._engine.crew.records())
        return tuple(
            stage_times(worker for worker in workers if worker.stage == index)
            for index in range(len(self.spec.stages))
        )

    def stage_busy_s(self) -> tuple[float, ...]:
        """Return how long an item keeps a worker of each stage busy, in seconds (medians)."""
        return tuple(times.busy_s for times in self.stage_times())

    def close(self) -> None:
        """Stop the workers; items on their way are given up. Again is harmless."""
        self._finalizer()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _shape(self, outputs: Arrays) -> Outputs:
        return outputs[0] if self._single else outputs

    def _arrays(self, args: Sequence[Any], by_name: Mapping[str, Any]) -> Arrays:
        """Check one item's inputs and return them in order."""
        if len(args) == 1 and not by_name:
            if isinstance(args[0], Mapping):
                by_name, args = args[0], ()
            elif isinstance(args[0], tuple | list):
                args = args[0]
        if by_name:
            args = (*args, *self._ordered(len(args), by_name))
        if len(args) != len(self._names):
            raise InputError(
                f"pipeline inputs: found {len(args)}, needed {len(self._names)}: "
                f"{self._needed()}. Give one array for each."
            )
        arrays = tuple(
            _array(given, tensor) for given, tensor in zip(args, self._tensors, strict=True)
        )
        for array, (shape, dtype), tensor in zip(arrays, self._types, self._tensors, strict=True):
            if array.shape != shape or array.dtype != dtype:
                raise InputError(
                    f"pipeline input {tensor.name!r}: found {array.dtype}{list(array.shape)}, "
                    f"needed {tensor.dtype}{list(tensor.shape)}; nothing is converted silently, "
                    "reshape or cast it first."
                )
        return arrays

    def _ordered(self, positional: int, by_name: Mapping[str, Any]) -> list[Any]:
        missing = self._names[positional:]
        unknown = [name for name in by_name if name not in missing]
        absent = [name for name in missing if name not in by_name]
        if unknown or absent:
            raise InputError(
                f"pipeline inputs: found names {list(by_name)}"
                + (f" after {positional} positional ones" if positional else "")
                + (f", not expected {unknown}" if unknown else "")
                + (f", missing {absent}" if absent else "")
                + f"; needed: {self._needed()}."
            )
        return [by_name[name] for name in missing]

    def _needed(self) -> str:
        return ", ".join(str(tensor) for tensor in self._tensors) or "none"


def _array(given: Any, tensor: TensorSpec) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"pipeline input {tensor.name!r}: found a {type(given).__name__} that is no array "
            f"({error}), needed {tensor.dtype}{list(tensor.shape)}."
        ) from error


def _finish(engine: Engine, trace: Trace | None) -> None:
    engine.close()
    if trace is not None:
        trace.freeze()
