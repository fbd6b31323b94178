"""The float64 evaluator against ONNX's own reference implementation."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from partitioner.errors import ImportModelError
from partitioner.zoo.evaluate import run_node


def reference(node, inputs):
    """Evaluate one node with ONNX."""
    names = [name for name in node.input if name]
    values = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in zip(names, inputs, strict=True)
    ]
    output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "one", values, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    return ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))[0]


def node(kind, count, **attributes):
    return helper.make_node(kind, [f"x{i}" for i in range(count)], ["y"], "n", **attributes)


CASES = {
    "conv": (
        node("Conv", 3, kernel_shape=[3, 3], strides=[2, 1], pads=[1, 0, 2, 1]),
        [(2, 4, 9, 8), (6, 4, 3, 3), (6,)],
    ),
    "conv_grouped": (
        node("Conv", 2, kernel_shape=[1, 3], group=2),
        [(2, 4, 5, 7), (6, 2, 1, 3)],
    ),
    "conv_depthwise": (
        node("Conv", 2, kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=4),
        [(1, 4, 6, 6), (4, 1, 3, 3)],
    ),
    "max_pool": (
        node("MaxPool", 1, kernel_shape=[3, 2], strides=[2, 2], pads=[0, 0, 1, 1]),
        [(2, 3, 7, 8)],
    ),
    "average_pool": (
        node("AveragePool", 1, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        [(2, 3, 8, 8)],
    ),
    "average_pool_counting_pads": (
        node("AveragePool", 1, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
        [(1, 2, 5, 5)],
    ),
    # The reference covers as many channels as there are items: make them equal.
    "lrn": (node("LRN", 1, size=5, alpha=0.5, beta=0.75, bias=2.0), [(7, 7, 3, 3)]),
    "gemm": (node("Gemm", 3, transB=1, alpha=0.5, beta=2.0), [(3, 5), (9, 5), (9,)]),
    "gemm_transposed": (node("Gemm", 3, transA=1), [(5, 3), (5, 9), (9,)]),
    "global_average_pool": (node("GlobalAveragePool", 1), [(2, 3, 4, 5)]),
    "sum": (node("Sum", 3), [(2, 3), (2, 3), (2, 3)]),
    "concat": (node("Concat", 2, axis=1), [(2, 3, 4), (2, 1, 4)]),
    "transpose": (node("Transpose", 1, perm=[0, 2, 1]), [(2, 3, 4)]),
}


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_onnx_reference(case):
    operator, shapes = CASES[case]
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    expected = reference(operator, inputs)
    found = run_node(operator, [array.astype(np.float64) for array in inputs])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_batch_normalisation_agrees_with_the_onnx_reference():
    rng = np.random.default_rng(2)
    operator = node("BatchNormalization", 5, epsilon=1e-3)
    inputs = [rng.normal(size=(2, 3, 4, 4)), *rng.normal(size=(3, 3)), rng.uniform(0.5, 2, 3)]
    inputs = [array.astype(np.float32) for array in inputs]
    np.testing.assert_allclose(
        run_node(operator, inputs), reference(operator, inputs), rtol=1e-5, atol=1e-5
    )


def test_reshape_keeps_the_number_of_items():
    x = np.arange(24.0).reshape(2, 3, 4)
    assert run_node(node("Reshape", 2), [x, np.array([1, 12])]).shape == (2, 12)


def test_unknown_operator_names_itself_and_the_known_ones():
    with pytest.raises(ImportModelError, match=r"'n' is a Tan, .* Conv, "):
        run_node(node("Tan", 1), [np.zeros((1, 1))])
