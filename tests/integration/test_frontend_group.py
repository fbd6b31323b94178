"""Grouping: which ops a module has, that they compute what it computes, and their identity."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from frontend_run import run, runner
from onnx import TensorProto, helper
from tvm import relax
from tvm.script import from_source

from partitioner.errors import GraphError
from partitioner.frontend import group, load
from partitioner.frontend.signature import signature
from partitioner.rewrite.split import split

_LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def module(text):
    """A Relax module from the functions' text, with metadata-free constants only."""
    body = "\n".join("    " + line for line in text.strip().splitlines())
    return from_source(f"@I.ir_module\nclass Module:\n{body}\n")


def agree(imported, *shapes, seed=3):
    """Assert that grouping changed no output bit, and that outputs depend on the inputs."""
    grouped = group(imported)
    rng = np.random.default_rng(seed)
    first, second = ([rng.standard_normal(s).astype("float32") for s in shapes] for _ in range(2))
    results = []
    plain, in_groups = runner(imported.module), runner(grouped.module)
    for inputs in (first, second):
        want, found = plain(*inputs), in_groups(*inputs)
        assert len(want) == len(found) == len(grouped.graph.outputs)
        for one, other in zip(want, found, strict=True):
            assert np.isfinite(one).all()
            np.testing.assert_array_equal(one, other)
        results.append(want)
    assert any(np.abs(a - b).max() > 0 for a, b in zip(*results, strict=True))
    return grouped


def kinds(grouped):
    return [op.kind for op in grouped.graph.ops]


BRANCHES = """
@R.function
def main(x: R.Tensor((2, 8), "float32"), y: R.Tensor((2, 8), "float32")):
    with R.dataflow():
        halves = R.split(x, 2, axis=1)
        a = halves[0]
        b = halves[1]
        c = R.nn.softmax(a)
        d = R.concat((b, c, a), axis=1)
        e = R.nn.softmax(d)
        f = R.sum(y, axis=[1])
        R.output(e, b, f)
    return (e, b, y, f)
"""


def test_several_inputs_outputs_and_tuples():
    grouped = agree(load(module(BRANCHES)), (2, 8), (2, 8))
    graph = grouped.graph
    names = [tensor.name for tensor in graph.tensors]
    assert [names[i] for i in graph.inputs] == ["x", "y"]
    assert [names[i] for i in graph.outputs] == ["e", "b", "y", "f"]
    split = graph.find_op("halves")
    assert [names[i] for i in graph.outputs_of[split.id]] == ["a", "b"]
    assert set(split.sources) == {"halves", "a", "b"}
    # One call an op, in the graph's order, and the variables carry the tensors' names.
    (block,) = grouped.module["main"].body.blocks
    assert isinstance(block, relax.DataflowBlock)
    calls = [b.value for b in block.bindings if isinstance(b.value, relax.Call)]
    assert [call.op.name_hint for call in calls] == [op.name for op in graph.ops]
    assert {str(b.var.name) for b in block.bindings} >= set(names) - {"x", "y"}


NESTED = """
@R.function
def main(x: R.Tensor((2, 8), "float32"), y: R.Tensor((2, 8), "float32")):
    with R.dataflow():
        t = (x, (y, x))
        u = t[1]
        v = u[0]
        s = R.shape_of(x)
        r = R.reshape(v, s)
        d = R.nn.dropout(r, rate=0.5)
        e = d[0]
        g = R.sum(y, axis=[0])
        n = R.nn.layer_norm(e, g, g, axes=[1])
        k = R.split(n, 2, axis=1)
        q = (k, (n, x))
        R.output(q)
    return q
"""


def test_nested_tuples_aliases_shapes_and_dropout():
    grouped = agree(load(module(NESTED)), (2, 8), (2, 8))
    assert kinds(grouped) == ["reshape", "sum", "layer_norm", "split"]
    names = [tensor.name for tensor in grouped.graph.tensors]
    assert [names[i] for i in grouped.graph.outputs] == ["k_0", "k_1", "n", "x"]


def test_tuple_inputs_become_several():
    text = """
@R.function
def main(p: R.Tuple(R.Tensor((3,), "float32"), R.Tensor((3,), "float32"))):
    with R.dataflow():
        a = p[0]
        b = p[1]
        c = R.subtract(a, b)
        R.output(c)
    return c
"""
    grouped = group(load(module(text)))
    assert [t.name for t in grouped.graph.tensors[:2]] == ["a", "b"]
    x, y = np.arange(3, dtype="float32"), np.full(3, 2, "float32")
    np.testing.assert_array_equal(run(grouped.module, x, y)[0], x - y)


CONTROL = """
@R.function
def main(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")):
    a = R.exp(x)
    if flag:
        t = R.add(a, x)
        r = R.nn.relu(t)
    else:
        u = R.multiply(a, a)
        r = R.negative(u)
    z = R.sqrt(R.abs(r))
    return z
"""


def test_control_flow_is_one_op():
    grouped = group(load(module(CONTROL)))
    assert "if" in kinds(grouped)
    assert len(grouped.graph.ops) == 3
    imported = load(module(CONTROL))
    x = np.array([1.0, -2.0, 0.5, 3.0], "float32")
    outputs = []
    for flag in (np.array(True), np.array(False)):
        (want,), (found,) = run(imported.module, x, flag), run(grouped.module, x, flag)
        np.testing.assert_array_equal(want, found)
        outputs.append(found)
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1


def test_onnx_control_flow_names_the_nodes_inside():
    def branch(operator, name):
        return helper.make_graph(
            [helper.make_node(operator, ["x"], [f"{name}_out"], name=name)],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [4])],
        )

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0, name="total"),
        helper.make_node("Cast", ["s"], ["flag"], to=TensorProto.BOOL, name="cast"),
        helper.make_node(
            "If",
            ["flag"],
            ["i"],
            name="choice",
            then_branch=branch("Relu", "inner_then"),
            else_branch=branch("Neg", "inner_else"),
        ),
        helper.make_node("Exp", ["i"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "choice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    grouped = group(load(model))
    op = grouped.graph.find_op("choice")
    assert op.kind == "if"
    assert {"inner_then", "inner_else"} <= set(op.sources)
    for x in (np.array([1, -2, 3, 4], "float32"), np.zeros(4, "float32")):
        want = np.exp(np.maximum(x, 0) if x.sum() else -x)
        np.testing.assert_allclose(run(grouped.module, x)[0], want, rtol=1e-5)


OPAQUE = """
@R.function(private=True)
def twice(v: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    with R.dataflow():
        w = R.add(v, v)
        R.output(w)
    return w

@R.function(pure=False)
def main(x: R.Tensor((4,), "float32")):
    cls = Module
    a = R.nn.relu(x)
    b = cls.twice(a)
    c = R.call_dps_packed("test.negate", (b,), out_ty=R.Tensor((4,), dtype="float32"))
    d = R.call_packed("test.note", c, ty_args=R.Tensor((4,), dtype="float32"))
    e = R.exp(d)
    return e
"""


def test_opaque_calls_and_calls_of_functions_are_one_op_each():
    noted = []

    def negate(source, target):
        target.copyfrom(-source.numpy())

    def note(value):
        noted.append(value.numpy())
        return value

    tvm.register_global_func("test.negate", negate, override=True)
    tvm.register_global_func("test.note", note, override=True)
    grouped = group(load(module(OPAQUE)))
    assert kinds(grouped) == ["relu", "twice", "test_negate", "test_note", "exp"]
    x = np.array([1, -2, 3, 4], "float32")
    np.testing.assert_allclose(run(grouped.module, x)[0], np.exp(-2 * np.maximum(x, 0)), rtol=1e-5)
    assert len(noted) == 1
    assert not grouped.module["main"].is_pure


CHAIN = """
@R.function
def main(x: R.Tensor((1, 4, 6, 6), "float32"), w: R.Tensor((4, 4, 3, 3), "float32"),
         k: R.Tensor((1, 4, 6, 6), "float32")):
    with R.dataflow():
        a = R.nn.conv2d(x, w, padding=(1, 1))
        b = R.nn.relu(a)
        c = R.nn.conv2d(b, w, padding=(1, 1))
        d = R.nn.relu(c)
        e = R.nn.max_pool2d(d, pool_size=(2, 2), strides=(2, 2))
        R.output(e)
    return e
"""


def _chain(**weights):
    rng = np.random.default_rng(1)
    drawn = rng.standard_normal((4, 4, 3, 3)).astype("float32")
    return load(module(CHAIN), params={"w": weights.get("w", drawn)})


def test_a_shared_weight_is_one_constant_of_several_ops():
    grouped = group(_chain())
    graph = grouped.graph
    assert kinds(grouped) == ["conv2d_relu", "conv2d_relu", "max_pool2d"]
    (weight,) = graph.constants
    assert (weight.consumers, weight.bytes) == ((0, 1), 4 * 4 * 9 * 4)
    assert graph.ops[0].flops == 2 * 4 * 36 * 4 * 9
    # x, b: read and made; then b and d; then d and e.
    size = 4 * 36 * 4
    assert [op.live_bytes for op in graph.ops] == [2 * size, 2 * size, size + size // 4]


def test_signatures_ignore_names_and_weights_and_see_everything_else():
    first, other = _chain(), _chain(w=np.ones((4, 4, 3, 3), "float32"))
    ops = group(first).graph.ops
    assert ops[0].signature == ops[1].signature != ops[2].signature
    assert [op.signature for op in group(other).graph.ops] == [op.signature for op in ops]
    text = CHAIN.replace("b = R.nn.relu(a)", "b = R.nn.relu(R.nn.relu(a))")
    strided = CHAIN.replace("padding=(1, 1))\n        d", "padding=(1, 1), groups=1)\n        d")
    weights = {"w": np.ones((4, 4, 3, 3), "float32")}
    assert group(load(module(text), params=weights)).graph.ops[0].signature != ops[0].signature
    assert group(load(module(strided), params=weights)).graph.ops[1].signature == ops[1].signature
    scalars = [
        f"""
@R.function
def main(x: R.Tensor((4,), "float32")):
    with R.dataflow():
        y = R.multiply(x, R.const({value}, "float32"))
        R.output(y)
    return y
"""
        for value in (2.0, 2.0, 3.0)
    ]
    two, same, three = (group(load(module(s))).graph.ops[0].signature for s in scalars)
    assert two == same != three


def test_signatures_are_those_of_the_functions_in_the_module_and_in_its_stages():
    # Records of tuning are looked up for what is lowered, profiles for what is in the graph.
    for imported in (_chain(), load(relax.transform.LegalizeOps()(_chain().module))):
        grouped = group(imported)
        wanted = [op.signature for op in grouped.graph.ops]
        for made in (grouped.module, *split(grouped.module, grouped.graph, [0] * len(wanted))):
            functions = [made[op.name] for op in grouped.graph.ops]
            assert [signature(made, function) for function in functions] == wanted


def test_signatures_and_hashes_are_the_same_in_another_process(tmp_path):
    # One model with high-level operators only, one that calls lowered functions.
    high, lowered = _LIGHT / "light_squeezenet.onnx", tmp_path / "lowered.json"
    lowered.write_text(tvm.ir.save_json(relax.transform.LegalizeOps()(_chain().module)))
    code = (
        "from partitioner.frontend import group, load\n"
        f"for path in {[str(high), str(lowered)]!r}:\n"
        "    graph = group(load(path)).graph\n"
        "    print(graph.hash, *(op.signature for op in graph.ops))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    for path, line in zip((high, lowered), done.stdout.splitlines(), strict=True):
        graph = group(load(path)).graph
        assert line.split() == [graph.hash, *(op.signature for op in graph.ops)]


@pytest.mark.parametrize("fuse", [False, True])
def test_a_lowered_module_has_one_op_a_call(fuse):
    high = _chain()
    passes = [relax.transform.LegalizeOps()]
    if fuse:
        passes += [
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    passes.append(relax.transform.DeadCodeElimination(["main"]))
    lowered = tvm.transform.Sequential(passes)(high.module)
    before = tvm_ffi.structural_hash(lowered)
    grouped = agree(load(lowered), (1, 4, 6, 6), (1, 4, 6, 6))
    assert tvm_ffi.structural_hash(lowered) == before
    expected = ["conv2d", "relu", "conv2d", "relu", "max_pool2d"]
    if fuse:
        expected = ["conv2d_relu", "conv2d_relu", "max_pool2d"]
    assert kinds(grouped) == expected
    assert grouped.graph.ops[0].signature == grouped.graph.ops[len(expected) // 2].signature


def test_a_grouped_module_groups_the_same_way_again():
    imported = _chain()
    before = tvm_ffi.structural_hash(imported.module)
    once = group(imported)
    assert tvm_ffi.structural_hash(imported.module) == before
    again = agree(load(once.module), (1, 4, 6, 6), (1, 4, 6, 6))
    assert kinds(again) == kinds(once)
    assert again.graph.edges == once.graph.edges


def _random_network(seed):
    """A random DAG of operators that fuse, join, split and reduce, in one shape."""
    rng = np.random.default_rng(seed)
    lines, values = [], ["x", "y"]
    for number in range(14):
        a, b = (values[i] for i in rng.integers(max(0, len(values) - 5), len(values), 2))
        name = f"v{number}"
        choices = [
            f"{name} = R.add({a}, {b})",
            f"{name} = R.multiply({a}, R.tanh({b}))",
            f"{name} = R.nn.softmax({a})",
            f"{name} = R.matmul({a}, {b})",
            f"{name} = R.nn.relu({a})",
            f"{name} = R.permute_dims({a})",
            f"{name} = R.split(R.concat(({a}, {b}), axis=0), 2, axis=0)[1]",
            f"{name} = R.reshape(R.reshape({a}, (16,)), (4, 4))",
        ]
        lines.append(choices[rng.integers(len(choices))])
        values.append(name)
    body = "\n".join(f"        {line}" for line in lines)
    kind = 'R.Tensor((4, 4), "float32")'
    return module(
        f"@R.function\ndef main(x: {kind}, y: {kind}):\n    with R.dataflow():\n{body}\n"
        "        R.output(v13, v9)\n    return (v13, v9)\n"
    )


@pytest.mark.parametrize("seed", range(6))
def test_random_networks_compute_the_same_in_groups(seed):
    grouped = agree(load(_random_network(seed)), (4, 4), (4, 4))
    assert all(op.sources for op in grouped.graph.ops)


CONSTANT = """
@R.function
def main(x: R.Tensor((2,), "float32")):
    with R.dataflow():
        a = R.add(R.const(1, "float32"), R.const(2, "float32"))
        b = R.nn.relu(x)
        R.output(a, b)
    return (b, a)
"""
NOTHING = """
@R.function
def main(x: R.Tensor((2,), "float32")):
    return x
"""
DATA_DEPENDENT = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    with R.dataflow():
        a = R.unique(x)
        R.output(a)
    return a
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CONSTANT, "output 1 is a constant"),
        (NOTHING, "nothing to compute"),
        (DATA_DEPENDENT, "depends on data"),
    ],
)
def test_what_cannot_be_a_graph_is_explained(text, words):
    with pytest.raises(GraphError, match=words):
        group(load(module(text)))


@pytest.mark.parametrize(
    ("name", "count"), [("squeezenet", 41), ("shufflenet", 104), ("inception_v1", 89)]
)
def test_real_topologies_have_the_groups_that_fusion_finds(name, count):
    path = _LIGHT / f"light_{name}.onnx"
    imported = load(path)
    graph = group(imported).graph
    assert len(graph.ops) == count
    assert all(op.sources for op in graph.ops)
    nodes = {node.name or node.op_type for node in onnx.load(str(path)).graph.node}
    named = {source for op in graph.ops for source in op.sources}
    assert {node for node in nodes if node.startswith("n")} <= named
    assert len({op.signature for op in graph.ops}) < count


def test_squeezenet_computes_the_same_in_groups():
    imported = load(_LIGHT / "light_squeezenet.onnx")
    # Its own weights are constants and hide the input: draw others into the same structure.
    rng = np.random.default_rng(5)

    def drawn(constant):
        shape = [int(extent) for extent in constant.value.shape]
        scale = np.sqrt(2 / max(1, np.prod(shape[1:])))
        return relax.const(rng.normal(0, scale, shape).astype("float32"))

    main = tvm_ffi.structural_map(imported.module["main"], (tvm.ir.GenericConst, drawn))
    agree(load(tvm.IRModule({"main": main})), (1, 3, 224, 224))
