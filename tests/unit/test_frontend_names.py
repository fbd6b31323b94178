"""Unique names, and sources that survive when bindings are dropped."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax
from tvm.script import from_source

from partitioner.frontend.evaluate import evaluate
from partitioner.frontend.fusion import ordered_groups
from partitioner.frontend.names import carry_sources, claim_dropped, rename, unique
from partitioner.frontend.slots import Slot, Slots
from partitioner.frontend.straight import bindings_of, constant

CHAIN = """
@R.function
def main(x: R.Tensor((2,), "float32"), lv: R.Tensor((2,), "float32")):
    with R.dataflow():
        a = R.nn.relu(x)
        b = R.exp(a)
        c = R.add(b, lv)
        R.output(c)
    return c
"""


@given(st.lists(st.sampled_from(["", "a", "a_1", "lv", "lv1", "gv", "b"]), max_size=12))
def test_names_become_unique_and_none_looks_like_one_of_tvms(wanted):
    names = unique(wanted, reserved=["b"])
    assert len(set(names)) == len(names) == len(wanted)
    assert not {"lv", "lv1", "gv", "b", ""} & set(names)
    for want, name in zip(wanted, names, strict=True):
        assert name.startswith(want)


def test_parameters_keep_their_names_whatever_they_are():
    function, names = rename(from_source(CHAIN))
    assert [p.name for p in function.params] == ["x", "lv"]
    assert names == ["a", "b", "c"]


def test_dropped_values_count_for_the_first_that_needed_them():
    operands = {"a": [], "b": ["a"], "c": ["b", "x"], "d": ["b"], "e": ["c", "d"]}
    sources = {name: (name.upper(),) for name in operands}
    assert claim_dropped(operands, ["c", "e"], sources) == {
        "c": ("A", "B", "C"),
        "e": ("D", "E"),
    }


def test_added_bindings_take_the_sources_of_what_they_stand_before():
    before, _ = rename(from_source(CHAIN))
    after = from_source(
        CHAIN.replace("b = R.exp(a)", "lv3 = R.sqrt(a)\n        b = R.multiply(lv3, a)").replace(
            "a = R.nn.relu(x)", "a = R.abs(x)"
        )
    )
    sources = {"a": ("A",), "b": ("B",), "c": ("C",)}
    function, found = carry_sources(before, after, sources)
    assert list(found.values()) == [("A",), ("B",), ("B",), ("C",)]
    assert [str(b.var.name) for b in bindings_of(function)] == list(found)


def test_groups_that_need_each_other_become_one():
    slots = Slots(rename(from_source(CHAIN))[0])
    assert slots.reads == [(Slot(-2),), (Slot(0),), (Slot(1), Slot(-1))]
    assert ordered_groups(slots, []) == [[0], [1], [2]]
    assert ordered_groups(slots, [[1, 2]]) == [[0], [1, 2]]
    # a and c as one kernel would need b, which needs a.
    assert ordered_groups(slots, [[0, 2]]) == [[0, 1, 2]]


def test_constants_are_evaluated_as_declared():
    two, three = (constant(np.full(2, value, "float32")) for value in (2, 3))
    assert evaluate(relax.op.add(two, three), [two, three]).tolist() == [5.0, 5.0]
    shaped = relax.op.reshape(two, (2, 1))
    assert evaluate(shaped, shaped.args).shape == (2, 1)
    joined = relax.op.concat([two, three], axis=0)
    assert evaluate(joined, joined.args).tolist() == [2.0, 2.0, 3.0, 3.0]
    assert evaluate(relax.op.add(two, three), [two, relax.Var("x", two.ty)]) is None
    assert evaluate(relax.op.nn.softmax(two), [two]) is None
