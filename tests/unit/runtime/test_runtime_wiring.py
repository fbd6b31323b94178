import json

import numpy as np
import pytest
from runtime_runners import chain, replica, runner

from partitioner.runtime.spec import PipelineSpec, StageSpec, TensorSpec
from partitioner.runtime.wiring import WorkerSpec, wire


def skipping(nbytes):
    """Three stages; the first one's tensor goes to the second and, past it, to the third."""
    tensors = {one: TensorSpec(one, (nbytes,), "uint8") for one in "xabcy"}
    workers = (replica(runner("passing")),)
    stages = (
        StageSpec("first", workers, ("x",), ("a",)),
        StageSpec("second", workers * 2, ("a",), ("b",), (0, 0, 1)),
        StageSpec("third", workers, ("a", "b"), ("y",)),
    )
    return PipelineSpec(stages, tensors, ("x",), ("y",))


def depths(wiring):
    """Slots by (name of the first tensor, producer's replica channels)."""
    found = {}
    for channel in wiring.channels:
        found.setdefault(channel.tensors[0].name, set()).add(channel.slots)
    return found


def test_a_worker_survives_json():
    for worker in wire(skipping(100), None, 10).workers:
        assert WorkerSpec.from_json(json.loads(json.dumps(worker.to_json()))) == worker


def test_a_channel_past_a_stage_has_room_for_what_that_stage_holds():
    wiring = wire(skipping(100), 2, 10)
    # The second stage holds, in each of its two replicas, an item at work and a queue of two.
    assert depths(wiring) == {"x": {2}, "a": {2, 2 + 2 * 3}, "b": {2}, "y": {2}}
    assert wiring.capacity == 2 + (1 + 2 + 1) * 3


def test_large_tensors_get_short_queues_and_small_ones_deep_ones():
    small, large = depths(wire(skipping(100), None, 10)), depths(wire(skipping(20 << 20), None, 10))
    assert (small["x"], small["b"]) == ({64}, {4})
    assert (large["x"], large["b"]) == ({2}, {2})


@pytest.mark.parametrize("slots", [1, 3, None])
def test_nothing_overlaps_in_memory(slots):
    wiring = wire(skipping(1000), slots, 10)
    spans = [(channel.offset, channel.offset + channel.nbytes) for channel in wiring.channels]
    spans += [(w.log.offset, w.log.offset + w.log.nbytes) for w in wiring.workers]
    spans.sort()
    assert spans[0][0] > 0, "the first byte says that the pipeline stops"
    ends = np.array([end for _, end in spans])
    starts = np.array([start for start, _ in spans])
    assert (ends[:-1] <= starts[1:]).all()
    assert ends[-1] <= wiring.nbytes


def test_replicas_that_never_meet_have_no_channel():
    tensors = {n: TensorSpec(f"t{n}", (4,), "int64") for n in range(3)}
    workers = (replica(runner("passing")),) * 2
    stages = tuple(StageSpec(f"s{n}", workers, (n,), (n + 1,), (0, 1)) for n in range(2))
    wiring = wire(PipelineSpec(stages, tensors, (0,), (2,)), None, 10)
    between = [port.channels for worker in wiring.workers[:2] for port in worker.sends]
    assert [[channel is None for channel in pair] for pair in between] == [
        [False, True],
        [True, False],
    ]


def test_a_chain_has_a_channel_for_each_hop():
    wiring = wire(chain(*[runner("passing")] * 3), None, 10)
    assert len(wiring.channels) == 4
    assert [len(worker.receives) for worker in wiring.workers] == [1, 1, 1]
