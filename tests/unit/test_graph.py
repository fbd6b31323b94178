from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.errors import GraphError
from partitioner.graph import Constant, OpGraph


def with_tensor(graph: OpGraph, index: int, **changes: object) -> OpGraph:
    tensors = list(graph.tensors)
    tensors[index] = replace(tensors[index], **changes)
    return replace(graph, tensors=tuple(tensors))


def test_what_each_op_reads_and_makes(graph: OpGraph) -> None:
    assert graph.inputs_of == ((0,), (1,), (2,), (1, 3))
    assert graph.outputs_of == ((1,), (2,), (3,), (4,))
    assert graph.edges == ((0, 1), (0, 3), (1, 2), (2, 3))


@pytest.mark.parametrize(
    ("position", "crossing"),
    [
        (0, 0),  # the model input is the caller's, not a cut tensor
        (1, 400),  # skip, once though two ops read it
        (2, 800),  # skip and mid
        (3, 800),  # skip and wide
        (4, 0),
    ],
)
def test_cut_bytes(graph: OpGraph, position: int, crossing: int) -> None:
    assert graph.cut_bytes(position) == crossing


def test_networkx_view_adds_up_parallel_tensors(graph: OpGraph) -> None:
    doubled = with_tensor(graph, 2, consumers=(2, 3))  # now mid and wide... and skip reach add_3
    doubled = with_tensor(doubled, 3, producer=1)
    view = doubled.to_networkx()
    assert view.nodes[2]["name"] == "conv_2"
    assert view.edges[0, 3]["bytes"] == 400
    assert view.edges[1, 3]["bytes"] == 800


@pytest.mark.parametrize(("key", "found"), [(2, 2), ("relu_1", 1), ("Bias_2", 2)])
def test_find_op(graph: OpGraph, key: str | int, found: int) -> None:
    assert graph.find_op(key).id == found


def test_find_op_says_what_there_is(graph: OpGraph) -> None:
    with pytest.raises(GraphError, match=r"no op or source node 'pool'.*conv_0, relu_1"):
        graph.find_op("pool")
    for absent in (4, -1):
        with pytest.raises(GraphError, match=r"no op -?\d; ids are 0\.\.3"):
            graph.find_op(absent)


def test_a_source_in_two_ops_is_ambiguous_unless_it_names_an_op(graph: OpGraph) -> None:
    ops = (
        graph.ops[0],
        replace(graph.ops[1], sources=("Conv_0", "relu_1")),
        replace(graph.ops[2], sources=("relu_1",)),
        graph.ops[3],
    )
    shared = replace(graph, ops=ops)
    with pytest.raises(GraphError, match=r"'Conv_0' is part of several ops \(conv_0, relu_1\)"):
        shared.find_op("Conv_0")
    assert shared.find_op("relu_1").id == 1


def test_hash_follows_the_structure_only(graph: OpGraph) -> None:
    renamed = with_tensor(graph, 1, name="other")
    pinned = replace(graph, ops=(replace(graph.ops[0], pinned_to="cores:0"), *graph.ops[1:]))
    assert renamed.hash == pinned.hash == graph.hash

    reshaped = with_tensor(graph, 1, shape=(10, 10))
    other_kernel = replace(graph, ops=(replace(graph.ops[0], signature="k9"), *graph.ops[1:]))
    rewired = with_tensor(graph, 1, consumers=(1,))
    larger = replace(graph, constants=(Constant("w0", (0,), 1001), graph.constants[1]))
    hashes = {g.hash for g in (graph, reshaped, other_kernel, rewired, larger)}
    assert len(hashes) == 5


def test_a_tensor_must_be_made_before_it_is_read(graph: OpGraph) -> None:
    with pytest.raises(GraphError, match=r"'wide' of op 3 is read by op 3.*topological order"):
        with_tensor(graph, 3, producer=3)


def test_a_reader_must_exist(graph: OpGraph) -> None:
    with pytest.raises(GraphError, match=r"'x' of the caller is read by op 4"):
        with_tensor(graph, 0, consumers=(4,))
    with pytest.raises(GraphError, match=r"constant 'w' is read by op 4; ids are 0\.\.3"):
        replace(graph, constants=(Constant("w", (4,), 8),))


def test_malformed_tensors(graph: OpGraph) -> None:
    with pytest.raises(GraphError, match="'skip' has no producer and is no model input"):
        with_tensor(graph, 1, producer=None)
    with pytest.raises(GraphError, match="'skip' is a model input and yet made by op 0"):
        replace(graph, inputs=(0, 1))
    with pytest.raises(GraphError, match="ascending"):
        with_tensor(graph, 1, consumers=(3, 1))
    with pytest.raises(GraphError, match=r"no tensor 9.*ids are 0\.\.4"):
        replace(graph, outputs=(9,))


def test_names_and_ids(graph: OpGraph) -> None:
    with pytest.raises(GraphError, match="two ops are named 'conv_0'"):
        replace(graph, ops=(graph.ops[0], replace(graph.ops[1], name="conv_0"), *graph.ops[2:]))
    with pytest.raises(GraphError, match="two tensors are named 'x'"):
        with_tensor(graph, 1, name="x")
    with pytest.raises(GraphError, match="op 'relu_1' at position 0 has id 1"):
        replace(graph, ops=graph.ops[1:])


def test_an_input_may_be_an_output(graph: OpGraph) -> None:
    assert replace(graph, outputs=(4, 0)).outputs == (4, 0)
