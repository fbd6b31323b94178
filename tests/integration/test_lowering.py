from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from scipy.signal import correlate2d
from scipy.special import erf
from tvm import relax, te
from tvm.s_tir import Schedule
from tvm_ffi import structural_equal

from partitioner.errors import BuildError
from partitioner.lowering import Choice, build, host_target, kernels_of, lower, tiles_of
from partitioner.lowering import schedule as schedule_module
from partitioner.lowering.blocks import block_names
from partitioner.lowering.conv_tile import ConvShape, tiles
from partitioner.lowering.isa import Isa, isa_of

op = relax.op
Step = Callable[[relax.BlockBuilder, list[Any]], Any]


def tensor(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return relax.TensorType(shape, dtype)


def network(inputs: list[tuple[int, ...]], *groups: tuple[str, list[int], Step]) -> tvm.IRModule:
    """Module whose main calls one private function a group.

    A group is (name, which earlier values it takes, its body); values count inputs first.
    """
    bb = relax.BlockBuilder()
    values = [relax.Var(f"x{i}", tensor(shape)) for i, shape in enumerate(inputs)]
    types = [v.ty for v in values]
    calls = []
    for name, takes, body in groups:
        params = [relax.Var(f"p{i}", types[i]) for i in takes]
        with bb.function(name, params, private=True):
            with bb.dataflow():
                out = bb.emit_output(body(bb, params))
            gv = bb.emit_func_output(out)
        calls.append((gv, takes))
        types.append(out.ty)
    with bb.function("main", values[: len(inputs)]):
        with bb.dataflow():
            for gv, takes in calls:
                values.append(bb.emit(relax.Call(gv, [values[i] for i in takes])))
            out = bb.emit_output(values[-1])
        bb.emit_func_output(out)
    return bb.finalize()


def run(
    mod: tvm.IRModule,
    *arrays: np.ndarray,
    target: Any = None,
    choices: dict[str, Choice] | None = None,
) -> np.ndarray:
    target = target or host_target(1)
    vm = relax.VirtualMachine(build(lower(mod, target, choices), target), tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def conv_reference(
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, int],
    pad: tuple[int, int, int, int],
    dilation: int,
    groups: int,
) -> np.ndarray:
    reach = [(k - 1) * dilation + 1 for k in w.shape[2:]]
    spread = np.zeros((*w.shape[:2], *reach), "float64")
    spread[:, :, ::dilation, ::dilation] = w
    padded = np.pad(x.astype("float64"), [(0, 0), (0, 0), (pad[0], pad[2]), (pad[1], pad[3])])
    per_in, per_out = x.shape[1] // groups, w.shape[0] // groups
    planes = [
        [
            sum(
                correlate2d(item[o // per_out * per_in + c], spread[o, c], mode="valid")
                for c in range(per_in)
            )
            for o in range(w.shape[0])
        ]
        for item in padded
    ]
    return np.array(planes)[:, :, :: stride[0], :: stride[1]]


CONVS = [
    # batch, channels, height, width, outputs, kernel, stride, pad, dilation, groups
    pytest.param(1, 8, 12, 12, 16, (3, 3), (1, 1), (1, 1, 1, 1), 1, 1, id="3x3"),
    pytest.param(1, 16, 7, 7, 24, (1, 1), (1, 1), (0, 0, 0, 0), 1, 1, id="1x1"),
    pytest.param(1, 8, 9, 8, 12, (1, 1), (2, 2), (0, 0, 0, 0), 1, 1, id="1x1-stride-2"),
    pytest.param(1, 3, 23, 21, 10, (7, 7), (2, 2), (3, 3, 3, 3), 1, 1, id="7x7-stem"),
    pytest.param(2, 5, 11, 13, 7, (3, 3), (2, 1), (0, 1, 1, 0), 1, 1, id="odd-everything"),
    pytest.param(1, 6, 14, 14, 6, (3, 3), (1, 1), (2, 2, 2, 2), 2, 1, id="dilated"),
    pytest.param(1, 12, 10, 10, 18, (1, 1), (1, 1), (0, 0, 0, 0), 1, 3, id="grouped"),
    pytest.param(1, 8, 9, 9, 16, (3, 3), (1, 1), (1, 1, 1, 1), 1, 4, id="grouped-3x3"),
    pytest.param(1, 10, 15, 17, 10, (3, 3), (1, 1), (1, 1, 1, 1), 1, 10, id="depthwise"),
    pytest.param(2, 6, 16, 16, 6, (5, 5), (2, 2), (2, 2, 2, 2), 1, 6, id="depthwise-stride-2"),
    pytest.param(1, 4, 20, 3, 4, (5, 1), (1, 1), (2, 0, 2, 0), 1, 1, id="column-kernel"),
    pytest.param(1, 2, 3, 3, 1, (3, 3), (1, 1), (0, 0, 0, 0), 1, 1, id="single-output"),
]


@pytest.mark.parametrize(
    ("n", "c", "h", "w", "o", "kernel", "stride", "pad", "dilation", "groups"), CONVS
)
def test_convolution_with_epilogue(n, c, h, w, o, kernel, stride, pad, dilation, groups):
    weight, bias = normal(o, c // groups, *kernel), normal(1, o, 1, 1, seed=1)

    def body(bb, params):
        y = op.nn.conv2d(
            params[0],
            relax.const(weight),
            strides=stride,
            padding=pad,
            dilation=dilation,
            groups=groups,
        )
        y = bb.emit(op.add(bb.emit(y), relax.const(bias)))
        return op.nn.relu(y)

    mod = network([(n, c, h, w)], ("conv", [0], body))
    lowered = lower(mod, host_target(1))
    assert len(kernels_of(lowered)[0][1]) == 1, "bias and relu did not fuse into the convolution"
    x = normal(n, c, h, w, seed=2)
    want = np.maximum(conv_reference(x, weight, stride, pad, dilation, groups) + bias, 0)
    np.testing.assert_allclose(run(mod, x), want, atol=2e-5, rtol=1e-4)


def test_every_convolution_gets_the_register_tile(monkeypatch):
    """The fallback gives right answers too, so say which rule took the kernel."""
    taken = []
    rule = schedule_module.RULES[0]

    def watched(sch, isa):
        taken.append(rule(sch, isa))
        return taken[-1]

    monkeypatch.setattr(schedule_module, "RULES", (watched, *schedule_module.RULES[1:]))
    for case in CONVS:
        n, c, h, w, o, kernel, stride, pad, dilation, groups = case.values
        weight = relax.const(normal(o, c // groups, *kernel))
        mod = network(
            [(n, c, h, w)],
            (
                "conv",
                [0],
                lambda bb, p, weight=weight, rest=(stride, pad, dilation, groups): op.nn.conv2d(
                    p[0], weight, *rest
                ),
            ),
        )
        lower(mod, host_target(1))
    assert taken == [True] * len(CONVS)


def test_convolution_with_swish_reads_its_sums_twice():
    weight = normal(8, 4, 3, 3)

    def body(bb, params):
        y = bb.emit(op.nn.conv2d(params[0], relax.const(weight), padding=1))
        return op.multiply(y, bb.emit(op.sigmoid(y)))

    x = normal(1, 4, 9, 9)
    y = conv_reference(x, weight, (1, 1), (1, 1, 1, 1), 1, 1)
    got = run(network([(1, 4, 9, 9)], ("conv", [0], body)), x)
    np.testing.assert_allclose(got, y / (1 + np.exp(-y)), atol=2e-5, rtol=1e-4)


def test_convolution_adds_a_residual():
    weight = normal(4, 4, 3, 3)

    def body(bb, params):
        y = bb.emit(op.nn.conv2d(params[0], relax.const(weight), padding=1))
        return op.add(y, params[1])

    x, r = normal(1, 4, 8, 8), normal(1, 4, 8, 8, seed=1)
    mod = network([x.shape, r.shape], ("conv", [0, 1], body))
    want = conv_reference(x, weight, (1, 1), (1, 1, 1, 1), 1, 1) + r
    np.testing.assert_allclose(run(mod, x, r), want, atol=2e-5, rtol=1e-4)


def test_convolution_with_a_weight_that_is_an_input():
    x, w = normal(1, 3, 8, 8), normal(5, 3, 3, 3, seed=1)
    mod = network([x.shape, w.shape], ("conv", [0, 1], lambda bb, p: op.nn.conv2d(p[0], p[1])))
    want = conv_reference(x, w, (1, 1), (0, 0, 0, 0), 1, 1)
    np.testing.assert_allclose(run(mod, x, w), want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("c", "o", "size"), [(6, 5, 2), (4, 1, 2), (3, 2, 3)])
def test_transposed_convolution_with_kernel_equal_to_stride(c, o, size):
    x, weight = normal(1, c, 5, 7), normal(c, o, size, size, seed=1)

    def body(bb, params):
        y = op.nn.conv2d_transpose(params[0], relax.const(weight), strides=size)
        return op.nn.relu(bb.emit(y))

    want = np.einsum("ncyx,coab->noyaxb", x, weight).reshape(1, o, 5 * size, 7 * size)
    got = run(network([x.shape], ("deconv", [0], body)), x)
    np.testing.assert_allclose(got, np.maximum(want, 0), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 64), (64, 10)),
        ((5, 33), (33, 17)),
        ((1, 8, 24), (24, 48)),
        ((2, 3, 7, 9), (9, 5)),
        ((128, 16), (16, 24)),
    ],
)
def test_matmul_by_a_constant(left, right):
    matrix, bias = normal(*right), normal(right[-1], seed=1)

    def body(bb, params):
        return op.add(bb.emit(op.matmul(params[0], relax.const(matrix))), relax.const(bias))

    x = normal(*left, seed=2)
    got = run(network([left], ("dense", [0], body)), x)
    np.testing.assert_allclose(got, x @ matrix + bias, atol=2e-5, rtol=1e-4)


def test_matmul_by_a_transposed_constant_is_one_kernel():
    matrix = normal(12, 20)

    def body(bb, params):
        return op.matmul(params[0], bb.emit(op.permute_dims(relax.const(matrix))))

    mod = network([(3, 20)], ("dense", [0], body))
    assert len(kernels_of(lower(mod, host_target(1)))[0][1]) == 1
    x = normal(3, 20)
    np.testing.assert_allclose(run(mod, x), x @ matrix.T, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3, 8, 16), (2, 3, 16, 24)), ((4, 7, 5), (4, 5, 9)), ((6, 5), (5, 3))],
)
def test_matmul_of_two_inputs(left, right):
    a, b = normal(*left), normal(*right, seed=1)
    mod = network([left, right], ("product", [0, 1], lambda bb, p: op.matmul(p[0], p[1])))
    np.testing.assert_allclose(run(mod, a, b), a @ b, atol=2e-5, rtol=1e-4)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def pool(x: np.ndarray, reduce: Any, fill: float) -> np.ndarray:
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return reduce(windows[:, :, ::2, ::2], axis=(-2, -1))


REDUCTIONS = [
    ("softmax", (3, 5, 32), lambda x: op.nn.softmax(x, axis=-1), softmax),
    ("softmax-odd", (2, 37), lambda x: op.nn.softmax(x, axis=-1), softmax),
    (
        "layer-norm",
        (2, 6, 48),
        lambda x: op.nn.layer_norm(
            x, relax.const(np.ones(48, "float32")), relax.const(np.zeros(48, "float32")), axes=[-1]
        ),
        layer_norm,
    ),
    (
        "mean-plane",
        (1, 9, 8, 8),
        lambda x: op.mean(x, axis=[2, 3], keepdims=True),
        lambda x: x.mean((2, 3), keepdims=True),
    ),
    (
        "mean-7x7",
        (2, 5, 7, 7),
        lambda x: op.mean(x, axis=[2, 3]),
        lambda x: x.mean((2, 3)),
    ),
    ("sum-channels", (2, 6, 5, 16), lambda x: op.sum(x, axis=1), lambda x: x.sum(1)),
    ("max-all", (3, 4), lambda x: op.max(x), lambda x: x.max()),
    ("argmax", (4, 19), lambda x: op.argmax(x, axis=1), lambda x: x.argmax(1)),
    (
        "max-pool",
        (1, 3, 13, 12),
        lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)),
        lambda x: pool(x, np.max, -np.inf),
    ),
    (
        "average-pool",
        (1, 3, 13, 12),
        lambda x: op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), count_include_pad=True),
        lambda x: pool(x, np.mean, 0.0),
    ),
]


@pytest.mark.parametrize(
    ("shape", "make", "want"), [r[1:] for r in REDUCTIONS], ids=[r[0] for r in REDUCTIONS]
)
def test_reductions(shape, make, want):
    x = normal(*shape)
    got = run(network([shape], ("reduce", [0], lambda bb, p: make(p[0]))), x)
    np.testing.assert_allclose(got, want(x.astype("float64")), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (op.exp, np.exp),
        (op.tanh, np.tanh),
        (op.erf, erf),
        (op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    ],
    ids=["exp", "tanh", "erf", "sigmoid"],
)
def test_elementary_functions(make, want):
    x = np.linspace(-20, 20, 4099, dtype="float32")
    got = run(network([x.shape], ("f", [0], lambda bb, p: make(p[0]))), x)
    np.testing.assert_allclose(got, want(x.astype("float64")), atol=4e-7, rtol=4e-7)


def test_elementary_functions_at_the_edges():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -200.0, 200.0, -0.0, 1.0], "float32")
    for make, want in [
        (op.exp, [np.nan, np.inf, 0, 1, 0, np.inf, 1, np.e]),
        (op.tanh, [np.nan, 1, -1, 0, -1, 1, 0, np.tanh(1)]),
        (op.erf, [np.nan, 1, -1, 0, -1, 1, 0, erf(1)]),
        (op.sigmoid, [np.nan, 1, 0, 0.5, 0, 1, 0.5, 1 / (1 + np.exp(-1))]),
    ]:
        got = run(network([x.shape], ("f", [0], lambda bb, p, make=make: make(p[0]))), x)
        np.testing.assert_allclose(got, want, atol=5e-7)


@pytest.mark.parametrize("exponent", [0.25, 0.5, 0.75, 2.0, 3.25, 1.7, -1.0])
def test_power_by_a_constant(exponent):
    x = np.linspace(0.1, 9, 64, dtype="float32")
    body = lambda bb, p: op.power(p[0], relax.const(np.float32(exponent)))  # noqa: E731
    np.testing.assert_allclose(run(network([x.shape], ("f", [0], body)), x), x**exponent, rtol=2e-6)


def test_broadcast_transpose_and_concatenation():
    x, y = normal(1, 6, 5, 7), normal(1, 6, 1, 1, seed=1)
    mod = network(
        [x.shape, y.shape],
        ("scale", [0, 1], lambda bb, p: op.multiply(p[0], p[1])),
        ("turn", [2], lambda bb, p: op.permute_dims(p[0], [0, 2, 3, 1])),
        ("join", [3], lambda bb, p: op.concat([p[0], p[0]], axis=1)),
        ("flat", [4], lambda bb, p: op.reshape(p[0], (10, 42))),
    )
    turned = (x * y).transpose(0, 2, 3, 1)
    want = np.concatenate([turned, turned], axis=1).reshape(10, 42)
    np.testing.assert_array_equal(run(mod, x, y), want)
    assert dict(kernels_of(lower(mod, host_target(1))))["flat"] == (), "a reshape is a view"


def test_slice_of_leading_elements_is_no_view():
    x = normal(3, 4)
    body = lambda bb, p: op.strided_slice(p[0], [0], [0], [1])  # noqa: E731
    np.testing.assert_array_equal(run(network([x.shape], ("head", [0], body)), x), x[:1])


def six_ops(start: int, stop: int) -> tvm.IRModule:
    """Groups `start` to `stop` of one network of six."""
    w1, w2, w3 = normal(8, 3, 3, 3), normal(8, 1, 3, 3, seed=1), normal(128, 10, seed=2)

    def first(bb, p):
        return op.nn.relu(bb.emit(op.nn.conv2d(p[0], relax.const(w1), padding=1)))

    def second(bb, p):
        return op.sigmoid(
            bb.emit(op.nn.conv2d(p[0], relax.const(w2), padding=1, strides=2, groups=8))
        )

    steps = [
        ("g0_conv", first),
        ("g1_conv", second),
        ("g2_pool", lambda bb, p: op.nn.max_pool2d(p[0], (2, 2), (1, 1), (0, 0, 1, 1))),
        ("g3_reshape", lambda bb, p: op.reshape(p[0], (1, 128))),
        ("g4_dense", lambda bb, p: op.matmul(p[0], relax.const(w3))),
        ("g5_softmax", lambda bb, p: op.nn.softmax(p[0])),
    ]
    shape = {0: (1, 3, 8, 8), 3: (1, 8, 4, 4)}[start]
    chosen = steps[start:stop]
    return network([shape], *((name, [i], body) for i, (name, body) in enumerate(chosen)))


def test_a_network_in_halves_gives_the_same_bits():
    whole, front, back = six_ops(0, 6), six_ops(0, 3), six_ops(3, 6)
    outputs = []
    for seed in range(3):
        x = normal(1, 3, 8, 8, seed=seed)
        outputs.append(run(whole, x))
        assert run(back, run(front, x)).tobytes() == outputs[-1].tobytes()
    assert np.isfinite(outputs).all()
    assert not np.array_equal(outputs[0], outputs[1])


def test_a_group_has_the_same_kernel_in_every_module():
    target = host_target(1)
    whole, front, back = (lower(six_ops(*r), target) for r in [(0, 6), (0, 3), (3, 6)])
    assert kernels_of(whole) == kernels_of(front) + kernels_of(back)
    for part in (front, back):
        for _, names in kernels_of(part):
            for name in names:
                assert structural_equal(part[name], whole[name])


def test_more_cores_give_the_same_bits():
    mod, x = six_ops(0, 6), normal(1, 3, 8, 8)
    one, two = (run(mod, x, target=host_target(cores)) for cores in (1, 2))
    assert one.tobytes() == two.tobytes()


def test_lowering_leaves_its_input_alone_and_repeats_itself():
    mod, target = six_ops(0, 6), host_target(1)
    before = mod.script(show_meta=True)
    first, second = lower(mod, target), lower(mod, target)
    assert mod.script(show_meta=True) == before
    assert structural_equal(first, second)


def test_kernels_follow_the_groups_and_equal_groups_share_one():
    def conv(seed):
        weight = relax.const(normal(4, 4, 3, 3, seed=seed))
        return lambda bb, p: op.nn.conv2d(p[0], weight, padding=1)

    mod = network([(1, 4, 6, 6)], ("a", [0], conv(1)), ("b", [1], conv(2)), ("c", [0, 2], _add))
    lowered = lower(mod, host_target(1))
    record = kernels_of(lowered)
    assert [name for name, _ in record] == ["a", "b", "c"]
    assert record[0][1] == record[1][1] != record[2][1]
    calls = [
        b.value.args[0].name_hint
        for block in lowered["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call)
    ]
    assert calls == [name for _, names in record for name in names]


def _add(bb, p):
    return op.add(p[0], p[1])


def test_control_flow_stays_a_function_whose_kernels_carry_its_name():
    bb = relax.BlockBuilder()
    x, flag = relax.Var("x", tensor((2, 3))), relax.Var("flag", tensor((), "bool"))
    then, other = relax.Var("t", tensor((2, 3))), relax.Var("e", tensor((2, 3)))

    def branch(value, var):
        return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(var, value)])], var)

    with bb.function("choice", [x, flag], private=True):
        two = relax.const(np.float32(2))
        gv = bb.emit_func_output(
            bb.emit(
                relax.If(flag, branch(op.multiply(x, two), then), branch(op.add(x, two), other))
            )
        )
    mx, mf = relax.Var("x", tensor((2, 3))), relax.Var("flag", tensor((), "bool"))
    with bb.function("main", [mx, mf]):
        bb.emit_func_output(bb.emit(relax.Call(gv, [mx, mf])))
    mod = bb.finalize()
    target = host_target(1)
    lowered = lower(mod, target)
    ((group, kernels),) = kernels_of(lowered)
    assert group == "choice"
    assert len(kernels) == 2
    assert all(name.startswith("choice") for name in kernels)
    vm = relax.VirtualMachine(build(lowered, target), tvm.cpu())
    a = normal(2, 3)
    for value, want in ((True, a * 2), (False, a + 2)):
        got = vm["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(np.array(value)))
        np.testing.assert_array_equal(got.numpy(), want)


def test_a_rule_that_fails_leaves_the_kernel_to_the_next(monkeypatch):
    def broken(sch, isa):
        sch.fuse(*sch.get_loops(block_names(sch)[0])[:1])
        sch.get_sblock("there is no such block")

    monkeypatch.setattr(schedule_module, "RULES", (broken, *schedule_module.RULES))
    x = normal(3, 16)
    got = run(network([x.shape], ("f", [0], lambda bb, p: op.nn.relu(p[0]))), x)
    np.testing.assert_array_equal(got, np.maximum(x, 0))


def halves_and_difference(*, grouped: bool) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", tensor((4, 6)))
    with bb.function("halves", [x], private=True):
        with bb.dataflow():
            out = bb.emit_output(op.split(x, 2, axis=1))
        halves = bb.emit_func_output(out)
    left, right = relax.Var("l", tensor((4, 3))), relax.Var("r", tensor((4, 3)))
    with bb.function("minus", [left, right], private=True):
        with bb.dataflow():
            out = bb.emit_output(op.subtract(left, right))
        minus = bb.emit_func_output(out)
    mx = relax.Var("x", tensor((4, 6)))
    with bb.function("main", [mx]):
        with bb.dataflow():
            pair = bb.emit(relax.Call(halves, [mx]))
            a, b = bb.emit(pair[0]), bb.emit(pair[1])
            last = relax.Call(minus, [a, b]) if grouped else op.subtract(a, b)
            out = bb.emit_output(last)
        bb.emit_func_output(out)
    return bb.finalize()


def test_two_outputs_of_a_group():
    x = normal(4, 6)
    got = run(halves_and_difference(grouped=True), x)
    np.testing.assert_array_equal(got, x[:, :3] - x[:, 3:])


def test_operator_outside_any_group():
    with pytest.raises(BuildError, match=r"relax\.subtract.*outside any group"):
        lower(halves_and_difference(grouped=False), host_target(1))


def test_main_that_calls_kernels_itself():
    bb = relax.BlockBuilder()
    x = relax.Var("x", tensor((4, 6)))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(op.exp(x))
            out = bb.emit_output(op.add(y, x))
        bb.emit_func_output(out)
    mod = relax.transform.LegalizeOps()(bb.finalize())
    assert [name for name, _ in kernels_of(lower(mod, host_target(1)))] == ["tir_exp", "add"]
    a = normal(4, 6)
    np.testing.assert_allclose(run(mod, a), np.exp(a) + a, rtol=1e-6)


def test_module_without_main():
    bb = relax.BlockBuilder()
    x = relax.Var("x", tensor((2,)))
    with bb.function("other", [x]):
        bb.emit_func_output(bb.emit(op.nn.relu(x)))
    with pytest.raises(BuildError, match=r"functions other, but no 'main'"):
        lower(bb.finalize(), host_target(1))


def test_record_of_a_module_that_was_not_lowered():
    with pytest.raises(BuildError, match="no record of kernels"):
        kernels_of(six_ops(0, 3))


def test_vector_width_comes_from_the_target():
    llvm = {"kind": "llvm"}
    arm = {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a73", "mattr": ["+neon"]}
    assert isa_of(tvm.target.Target(llvm | {"mcpu": "skylake-avx512"})) == Isa(16, 32)
    assert isa_of(tvm.target.Target(llvm | {"mcpu": "znver3"})) == Isa(8, 16)
    assert isa_of(tvm.target.Target(llvm | {"mcpu": "x86-64"})) == Isa(4, 16)
    assert isa_of(tvm.target.Target(llvm | arm)) == Isa(4, 32)


@pytest.mark.parametrize("lanes", [4, 16])
def test_other_vector_widths_give_the_same_values(lanes, monkeypatch):
    from partitioner.lowering import cpu

    x = normal(1, 3, 8, 8)
    want = run(six_ops(0, 6), x)
    monkeypatch.setattr(cpu, "isa_of", lambda target: Isa(lanes, 32))
    np.testing.assert_allclose(run(six_ops(0, 6), x), want, atol=1e-6)


@pytest.mark.parametrize(
    ("n", "c", "h", "w", "o", "kernel", "stride", "pad", "dilation", "groups"), CONVS
)
def test_tiles_do_not_change_a_bit(n, c, h, w, o, kernel, stride, pad, dilation, groups):
    weight = relax.const(normal(o, c // groups, *kernel))

    def body(bb, params):
        attrs = {"strides": stride, "padding": pad, "dilation": dilation, "groups": groups}
        y = bb.emit(op.nn.conv2d(params[0], weight, **attrs))
        return op.nn.relu(y)

    mod = network([(n, c, h, w)], ("g0_conv", [0], body))
    x = normal(n, c, h, w, seed=3)
    known = tiles_of(mod, "g0_conv", host_target(1))
    assert len(set(known)) == len(known) >= 2
    want = run(mod, x)
    kernels = set()
    for tile in known[:: max(1, len(known) // 4)]:
        choices = {"g0_conv": Choice(tile=tile)}
        kernels.add(kernels_of(lower(mod, host_target(1), choices)))
        assert run(mod, x, choices=choices).tobytes() == want.tobytes(), tile
    assert len(kernels) > 1


def test_tiles_of_a_matrix_product_do_not_change_a_bit():
    mod = network(
        [(5, 40)], ("g0_matmul", [0], lambda bb, p: op.matmul(p[0], relax.const(normal(40, 50))))
    )
    x = normal(5, 40, seed=3)
    known = tiles_of(mod, "g0_matmul", host_target(1))
    found = {run(mod, x, choices={"g0_matmul": Choice(tile=tile)}).tobytes() for tile in known}
    assert len(known) > 5
    assert found == {run(mod, x).tobytes()}


def test_unknown_tiles_are_ignored():
    mod = six_ops(0, 6)
    target = host_target(1)
    group = next(
        gv.name_hint for gv in mod.get_global_vars() if tiles_of(mod, gv.name_hint, target)
    )
    for tile in ((3, 999), (1,), ()):
        found = lower(mod, target, {group: Choice(tile=tile)})
        assert kernels_of(found) == kernels_of(lower(mod, target))


def doubled() -> Any:
    """A kernel of a user's own, unscheduled."""
    x = te.placeholder((64, 64), "float32", "x")
    out = te.compute((64, 64), lambda i, j: x[i, j] * 2.0, "out")
    return te.create_prim_func([x, out], index_dtype_override="int64")


def with_loop(primitive: str) -> Any:
    sch = Schedule(doubled())
    getattr(sch, primitive)(sch.get_loops(sch.get_sblock("out"))[0])
    return sch.mod["main"]


@pytest.mark.parametrize(
    ("kernel", "kept"),
    [
        (with_loop("parallel"), True),
        (with_loop("unroll"), True),
        (doubled().with_attr("tirx.is_scheduled", True), True),
        (doubled(), False),
    ],
)
def test_a_scheduled_kernel_of_the_users_stays_as_it_is(kernel, kept):
    bb = relax.BlockBuilder()
    x = relax.Var("x", tensor((64, 64)))
    with bb.function("main", [x]):
        with bb.dataflow():
            gv = bb.add_func(kernel.without_attr("global_symbol"), "doubled")
            out = bb.emit_output(relax.call_tir(gv, [x], tensor((64, 64))))
        bb.emit_func_output(out)
    mod = bb.finalize()
    lowered = lower(mod, host_target(1))
    (found,) = [f for _, f in lowered.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert structural_equal(found.body, kernel.body) == kept
    data = normal(64, 64)
    np.testing.assert_array_equal(run(mod, data), data * 2)


def test_a_group_without_tiles_has_none():
    mod = network([(4, 4)], ("g0_relu", [0], lambda bb, p: op.nn.relu(p[0])))
    assert tiles_of(mod, "g0_relu", host_target(1)) == ()


@pytest.mark.parametrize(
    ("size", "stride", "pad", "dilation", "ceil"),
    [
        ((2, 2), (2, 2), (0, 0, 0, 0), 1, False),
        ((3, 3), (2, 2), (0, 0, 0, 0), 1, True),
        ((3, 2), (1, 3), (1, 0, 2, 1), 1, False),
        ((3, 3), (1, 1), (1, 1, 1, 1), 2, False),
        ((5, 1), (1, 1), (2, 0, 2, 0), 1, False),
        ((9, 20), (1, 1), (0, 0, 0, 0), 1, False),
    ],
)
def test_max_pool(size, stride, pad, dilation, ceil):
    def body(bb, params):
        y = bb.emit(op.nn.max_pool2d(params[0], size, stride, pad, (dilation,) * 2, ceil))
        return op.negative(y)

    x = normal(2, 3, 15, 22) - 5.0  # a zero from beyond the edge would be the largest
    got = run(network([x.shape], ("g0_pool", [0], body)), x)
    padded = np.pad(x, [(0, 0), (0, 0), (pad[0], 30), (pad[1], 30)], constant_values=-np.inf)
    reach = [(k - 1) * dilation + 1 for k in size]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1], ::dilation, ::dilation]
    want = -windows.max(axis=(4, 5))[:, :, : got.shape[2], : got.shape[3]]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("isa", [Isa(4, 16), Isa(4, 32), Isa(8, 16), Isa(16, 32)])
@pytest.mark.parametrize("size", [7, 14, 56, 160])
def test_tile_covers_the_output(isa, size):
    shape = ConvShape(1, 64, size, size, 96, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1)
    assert tiles(shape, isa)
    for tile in tiles(shape, isa):
        assert tile.span >= tile.rows * shape.row
        assert tile.span % (tile.vectors * isa.lanes) == 0
        narrow = min(tile.channels, tile.vectors)
        assert tile.channels * tile.vectors + narrow + 1 <= isa.registers
