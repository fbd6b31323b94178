import gc
import itertools
import os
import threading
import time
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_runners import CPU, chain, numbers, replica, runner

from partitioner.errors import InputError, PartitionerError, PlanError
from partitioner.runtime.measure import measure
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.spec import PipelineSpec, StageSpec, TensorSpec

KINDS = ("process", "thread")


def tensors(*ids, shape=(4,), dtype="int64"):
    return {one: TensorSpec(f"t_{one}", shape, dtype) for one in ids}


def branching():
    """Three stages, replicas dispatched unevenly, a skip over two, several inputs and outputs.

    a = (x + y), b = 10(x + y); c = a + z with 2 replicas; d = 2(b + c + x), e = 3(b + c + x).
    """

    def workers(*factors):
        return replica(runner("summing", list(factors), [4]))

    stages = (
        StageSpec("first", (workers(1, 10),), ("x", "y"), ("a", "b")),
        StageSpec("middle", (workers(1), workers(1)), ("a", "z"), ("c",), (0, 0, 1)),
        StageSpec(
            "last",
            tuple(workers(2, 3) for _ in range(3)),
            ("b", "c", "x"),
            ("d", "e"),
            (2, 0, 1, 0),
        ),
    )
    return PipelineSpec(
        stages, tensors(*"abcdexyz"), ("x", "y", "z"), ("e", "a", "x", "d", "c", "e")
    )


def expected_of_branching(x, y, z):
    a, b = x + y, 10 * (x + y)
    c = a + z
    return (3 * (b + c + x), a, x, 2 * (b + c + x), c, 3 * (b + c + x))


@pytest.fixture(scope="module", params=KINDS)
def branched(request):
    with Pipeline(branching(), request.param) as pipe:
        yield pipe


def items_of_branching(count, seed=0):
    random = np.random.default_rng(seed)
    return [tuple(random.integers(-99, 99, (4,)) for _ in "xyz") for _ in range(count)]


def assert_equal(found, needed):
    assert len(found) == len(needed)
    for one, other in zip(found, needed, strict=True):
        assert np.array_equal(one, other)


def test_map_keeps_order_across_replicas_and_skips(branched):
    items = items_of_branching(300)
    results = list(branched.map(iter(items)))
    assert len(results) == 300
    for item, result in zip(items, results, strict=True):
        assert_equal(result, expected_of_branching(*item))


def test_one_item_by_position_by_name_and_as_mapping(branched):
    x, y, z = items_of_branching(1, seed=5)[0]
    needed = expected_of_branching(x, y, z)
    assert_equal(branched(x, y, z), needed)
    assert_equal(branched((x, y, z)), needed)
    assert_equal(branched(t_z=z, t_x=x, t_y=y), needed)
    assert_equal(branched({"t_y": y, "t_z": z, "t_x": x}), needed)
    assert_equal(branched(x, t_z=z, t_y=y), needed)


def test_submitted_items_complete_whatever_else_goes_on(branched):
    items = items_of_branching(400, seed=9)
    futures = [branched.submit(*item) for item in items[:200]]
    mixed = branched.map(items[200:])
    first = next(mixed)
    single = branched(*items[0])
    rest = list(mixed)
    assert not wait(futures, timeout=60).not_done
    results = [future.result() for future in futures] + [first, *rest]
    for item, result in zip(items, results, strict=True):
        assert_equal(result, expected_of_branching(*item))
    assert_equal(single, expected_of_branching(*items[0]))


def test_many_threads_may_call_at_once(branched):
    items = items_of_branching(40, seed=2)
    wrong = []

    def work(own):
        for item in own:
            for one, other in zip(branched(*item), expected_of_branching(*item), strict=True):
                if not np.array_equal(one, other):
                    wrong.append(item)

    threads = [threading.Thread(target=work, args=(items[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_results_are_the_callers_own(branched):
    x, y, z = items_of_branching(1)[0]
    first = branched(x, y, z)
    before = [array.copy() for array in first]
    x += 1
    list(branched.map(items_of_branching(200, seed=3)))
    assert_equal(first, before)
    assert all(array.flags.writeable for array in first)


def test_an_abandoned_map_disturbs_nobody(branched):
    items = items_of_branching(500, seed=4)
    for _ in range(3):
        abandoned = branched.map(items)
        next(abandoned)
        abandoned.close()
    x, y, z = items[7]
    assert_equal(branched(x, y, z), expected_of_branching(x, y, z))


@pytest.mark.parametrize("kind", KINDS)
def test_items_are_not_pulled_beyond_the_capacity(kind):
    pulled = itertools.count()
    latest = -1

    def source():
        nonlocal latest
        while True:
            latest = next(pulled)
            yield np.full(4, latest, np.int64)

    with Pipeline(chain(runner("passing"), runner("passing")), kind, slots=2) as pipe:
        results = pipe.map(source())
        assert latest == -1
        for number, result in enumerate(itertools.islice(results, 100)):
            assert int(result[0]) == number
            assert latest + 1 - number <= pipe.capacity
        assert latest > 100, "nothing was overlapped"


@pytest.mark.parametrize("kind", KINDS)
def test_submit_waits_for_room(kind):
    with Pipeline(chain(runner("slow", 0.02)), kind, slots=1) as pipe:
        pipe(numbers(1)[0])
        start = time.monotonic()
        futures = [pipe.submit(item) for item in numbers(12)]
        # Queues and worker hold a handful; the others had to wait for theirs.
        assert time.monotonic() - start > 0.02 * (12 - pipe.capacity - 2)
        assert [int(future.result(30)[0]) for future in futures] == list(range(12))


def test_stages_overlap():
    with Pipeline(chain(*[runner("slow", 0.02)] * 4), "process") as pipe:
        times = measure(pipe, lambda number: numbers(1, start=number)[0], items=20)
        assert times.latency_s > 0.08
        assert times.period_s < 0.06  # Not overlapped, it would be 0.08 at least.
        assert all(0.02 <= busy < 0.06 for busy in pipe.stage_busy_s())


def test_a_stage_without_inputs_runs_once_an_item():
    stages = (
        StageSpec("constant", (replica(runner("summing", [7], [4])),), (), ("c",)),
        StageSpec("sum", (replica(runner("summing", [1], [4])),), ("x", "c"), ("y",)),
    )
    spec = PipelineSpec(stages, tensors("c", "x", "y"), ("x",), ("y",))
    with Pipeline(spec, "thread", slots=1) as pipe:
        assert [int(y[0]) for y in pipe.map(numbers(20))] == list(range(7, 27))


@pytest.mark.parametrize("kind", KINDS)
def test_closing_is_final_and_harmless_again(kind):
    pipe = Pipeline(chain(runner("passing")), kind)
    assert int(pipe(numbers(1, start=3)[0])[0]) == 3
    pipe.close()
    pipe.close()
    with pytest.raises(PartitionerError, match="closed"):
        pipe(numbers(1)[0])
    with pytest.raises(PartitionerError, match="closed"):
        pipe.submit(numbers(1)[0])
    with pytest.raises(PartitionerError, match="closed"):
        next(pipe.map(numbers(1)))


def test_closing_fails_the_futures_that_are_left():
    with Pipeline(chain(runner("hanging", 5)), "process") as pipe:
        futures = [pipe.submit(item) for item in numbers(8)]
        assert [int(future.result(30)[0]) for future in futures[:5]] == list(range(5))
    for future in futures[5:]:
        with pytest.raises(PartitionerError, match="closed"):
            future.result(0)


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_collection_closes(kind):
    before = set(threading.enumerate())
    pipe = Pipeline(chain(runner("passing")), kind)
    workers = set(pipe.pids) - {os.getpid()}
    list(pipe.map(numbers(5)))
    pipe.submit(numbers(1)[0]).result(30)
    finalizer = pipe._finalizer
    del pipe
    gc.collect()
    assert not finalizer.alive
    assert set(threading.enumerate()) <= before
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("args", "by_name", "message"),
    [
        ((), {}, "found 0, needed 2: left: float32.2, 3., right: int64.2."),
        ((np.zeros((2, 3), "f"),), {}, "found 1, needed 2"),
        ((np.zeros((2, 3), "f"), np.zeros(2, "i8"), 1), {}, "found 3, needed 2"),
        ((np.zeros((3, 2), "f"), np.zeros(2, "i8")), {}, "'left': found float32.3, 2., needed"),
        ((np.zeros((2, 3)), np.zeros(2, "i8")), {}, "'left': found float64.2, 3., needed float32"),
        ((np.zeros((2, 3), "f"), [1.5, 2]), {}, "'right': found float64"),
        ((np.zeros((2, 3), "f"), [[1], [2, 3]]), {}, "'right': found a list that is no array"),
        ((), {"left": 1, "wrong": 2}, r"not expected \['wrong'\], missing \['right'\]"),
        (({"left": 1},), {}, r"missing \['right'\]"),
        ((np.zeros((2, 3), "f"),), {"left": 1}, r"after 1 positional .* not expected \['left'\]"),
    ],
)
def test_wrong_inputs_are_explained_and_do_no_harm(two_inputs, args, by_name, message):
    with pytest.raises(InputError, match=message):
        two_inputs(*args, **by_name)
    with pytest.raises(InputError, match=message):
        two_inputs.submit(*args, **by_name)
    out = two_inputs(np.ones((2, 3), "f"), right=np.arange(2))
    assert np.array_equal(out[0], np.ones((2, 3), "f"))
    assert np.array_equal(out[1], [0, 1])


@pytest.fixture(scope="module")
def two_inputs():
    named = {
        "x": TensorSpec("left", (2, 3), "float32"),
        "y": TensorSpec("right", (2,), "int64"),
        "u": TensorSpec("u", (2, 3), "float32"),
        "v": TensorSpec("v", (2,), "int64"),
    }
    stage = StageSpec("only", (replica(runner("passing")),), ("x", "y"), ("u", "v"))
    with Pipeline(PipelineSpec((stage,), named, ("x", "y"), ("u", "v")), "thread") as pipe:
        yield pipe


def test_map_tells_wrong_items_and_goes_on(two_inputs):
    good = (np.ones((2, 3), "f"), np.arange(2))
    results = two_inputs.map([good, good, (1, 2, 3)])
    with pytest.raises(InputError, match="found 3, needed 2"):
        list(results)
    assert len(list(two_inputs.map([good] * 5))) == 5


def test_unknown_options_are_refused():
    spec = chain(runner("passing"))
    with pytest.raises(InputError, match=r"known: .'process', 'thread'"):
        Pipeline(spec, "fibre")
    with pytest.raises(InputError, match="at least 1"):
        Pipeline(spec, "thread", slots=0)


def _stage(inputs, outputs, pattern=(0,), replicas=1, threads=1):
    worker = replica(runner("passing"), threads=threads)
    return StageSpec("s", (worker,) * replicas, inputs, outputs, pattern)


@pytest.mark.parametrize(
    ("stages", "outputs", "message"),
    [
        ((), ("x",), "no stages"),
        ((_stage(("x",), ("y",)),), (), "no outputs"),
        ((_stage(("q",), ("y",)),), ("y",), "made by no earlier stage"),
        ((_stage(("y",), ("z",)), _stage(("x",), ("y",))), ("z",), "made by no earlier stage"),
        ((_stage(("x",), ("x",)),), ("x",), "one producer"),
        ((_stage(("x",), ("y",)),), ("z",), "made by no stage"),
        ((_stage(("x",), ("w",)),), ("w",), "has no TensorSpec"),
        ((_stage(("x",), ("y",)), _stage(("x",), ("z",))), ("y",), "nobody needs"),
        ((_stage(("x",), ("y",), (0, 2), 2),), ("y",), "dispatch pattern"),
        ((_stage(("x",), ("y",), (0,), 2),), ("y",), "dispatch pattern"),
        ((_stage(("x",), ("y",), threads=0),), ("y",), "0 threads"),
        ((_stage(("x", "x"), ("y",)),), ("y",), "listed more than once"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(stages, outputs, message):
    with pytest.raises(PlanError, match=message):
        PipelineSpec(stages, tensors("x", "y", "z"), ("x",), outputs)


@st.composite
def topologies(draw):
    """A random pipeline and a function that computes the same."""
    known = [f"x{n}" for n in range(draw(st.integers(1, 3)))]
    inputs = tuple(known)
    stages = []
    for number in range(draw(st.integers(1, 4))):
        takes = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        factors = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
        makes = tuple(f"s{number}_{n}" for n in range(len(factors)))
        replicas = draw(st.integers(1, 3))
        extra = draw(st.lists(st.integers(0, replicas - 1), max_size=4))
        pattern = tuple(draw(st.permutations([*range(replicas), *extra])))
        workers = (replica(runner("summing", factors, [2])),) * replicas
        stages.append((StageSpec(f"s{number}", workers, tuple(takes), makes, pattern), factors))
        known.extend(makes)
    used = {tensor for stage, _ in stages for tensor in stage.inputs}
    outputs = draw(st.lists(st.sampled_from(known), max_size=3))
    for stage, _ in stages:  # Whatever nobody needs becomes an output.
        if used.union(outputs).isdisjoint(stage.outputs):
            outputs.append(stage.outputs[0])
    outputs = outputs or [stages[-1][0].outputs[0]]
    spec = PipelineSpec(
        tuple(stage for stage, _ in stages), tensors(*known, shape=(2,)), inputs, tuple(outputs)
    )

    def compute(item):
        values = dict(zip(inputs, item, strict=True))
        for stage, factors in stages:
            total = sum(values[tensor] for tensor in stage.inputs)
            values.update((t, total * f) for t, f in zip(stage.outputs, factors, strict=True))
        return tuple(values[tensor] for tensor in outputs)

    return spec, compute


@settings(max_examples=40, deadline=None, derandomize=True)
@given(topologies(), st.sampled_from([1, 2, None]), st.integers(0, 60))
def test_any_topology_computes_what_its_stages_say(topology, slots, count):
    spec, compute = topology
    items = [
        tuple(np.array([number, -place]) for place, _ in enumerate(spec.inputs))
        for number in range(count)
    ]
    with Pipeline(spec, "thread", slots=slots) as pipe:
        results = [result if isinstance(result, tuple) else (result,) for result in pipe.map(items)]
    assert len(results) == count
    for item, result in zip(items, results, strict=True):
        assert_equal(result, compute(item))


def test_worker_processes_get_their_environment():
    stage = StageSpec(
        "s",
        (replica(runner("environment", "OMP_NUM_THREADS", "EXTRA"), (CPU,), 3, (("EXTRA", "5"),)),),
        ("x",),
        ("y",),
    )
    with Pipeline(PipelineSpec((stage,), tensors("x", "y"), ("x",), ("y",))) as pipe:
        assert pipe(numbers(1)[0]).tolist() == [3, 5, 3, CPU]
