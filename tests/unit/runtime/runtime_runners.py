"""Runners and pipelines for the tests; worker processes import this module by name."""

import os
import threading
import time

import numpy as np

from partitioner.runtime.affinity import allowed_cpus
from partitioner.runtime.spec import PipelineSpec, ReplicaSpec, RunnerSpec, StageSpec, TensorSpec

CPU = min(allowed_cpus())


class Sum:
    """Each output is the sum of all inputs, times a factor of its own."""

    def __init__(self, factors, shape):
        self._factors = factors
        self._shape = shape

    def run(self, inputs):
        total = sum(inputs) if inputs else np.ones(self._shape, np.int64)
        return tuple(total * factor for factor in self._factors)


def summing(factors, shape, *, threads, cpus):
    return Sum(factors, shape)


class Call:
    """A runner made of a function."""

    def __init__(self, run):
        self.run = run


def passing(*, threads, cpus):
    """Outputs are the inputs themselves."""
    return Call(lambda inputs: inputs)


def failing(on, *, threads, cpus):
    def run(inputs):
        if inputs[0].flat[0] == on:
            raise ZeroDivisionError(f"met {on}")
        return inputs

    return Call(run)


def refusing(*, threads, cpus):
    raise OSError("no such artifact")


def wrong_dtype(*, threads, cpus):
    return Call(lambda inputs: (inputs[0].astype(np.float16),))


def hanging(on, *, threads, cpus):
    """Never returns from the item whose first number is `on`."""

    def run(inputs):
        if inputs[0].flat[0] == on:
            threading.Event().wait()
        return inputs

    return Call(run)


def slow(seconds, *, threads, cpus):
    def run(inputs):
        time.sleep(seconds)
        return inputs

    return Call(run)


def straying(elsewhere, *, threads, cpus):
    """Starts a thread that leaves the stage's CPUs."""

    def roam():
        os.sched_setaffinity(0, elsewhere)
        roaming.set()
        threading.Event().wait()

    roaming = threading.Event()
    threading.Thread(target=roam, daemon=True).start()
    roaming.wait()
    return Call(lambda inputs: inputs)


def environment(*names, threads, cpus):
    """The output counts up by what the environment and the arguments say."""
    values = [int(os.environ[name]) for name in names] + [threads, *cpus]
    return Call(lambda inputs: (np.array(values, np.int64),))


def affinity_now(*, threads, cpus):
    """The output is the sum of the CPUs it may run on, four times."""
    return Call(lambda inputs: (np.full(4, sum(os.sched_getaffinity(0)), np.int64),))


def runner(name, *args):
    return RunnerSpec(f"runtime_runners:{name}", args)


def burning(seconds, *, threads, cpus):
    """Uses up so much processor time, however long that takes."""

    def run(inputs):
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return inputs

    return Call(run)


def replica(run, cpus=(CPU,), threads=1, env=(), cgroup=None):
    return ReplicaSpec(cpus, threads, run, env, cgroup)


def chain(*runners, shape=(4,), dtype="int64", cpus=(CPU,)):
    """A pipeline of stages with one input and one output each."""
    stages = tuple(
        StageSpec(f"s{index}", (replica(run, cpus),), (index,), (index + 1,))
        for index, run in enumerate(runners)
    )
    tensors = {index: TensorSpec(f"t{index}", shape, dtype) for index in range(len(runners) + 1)}
    return PipelineSpec(stages, tensors, (0,), (len(runners),))


def numbers(count, shape=(4,), start=0):
    return [np.full(shape, start + index, np.int64) for index in range(count)]
