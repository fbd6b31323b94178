"""Seeded weights for a bare topology, set in order from what really arrives at each layer.

Plain random initialisation makes deep networks saturate or forget their input. Here every layer is
normalised on a few smooth pictures before the next one is drawn, after the idea of layer-sequential
unit variance (Mishkin and Matas, "All you need is a good init", ICLR 2016, section 2); the last
layer is scaled so that its logits tell pictures apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.zoo.evaluate import run_node

__all__ = ["calibrate"]

Vector = NDArray[np.float32]

# Standard deviation, over pictures, that the logits get: the softmax over a thousand classes is
# then neither uniform nor a single one.
LOGIT_SPREAD = 1.7
# Spread of the normal draws for biases and of scale vectors around 1.
JITTER = 0.1


def _rounded(values: Any) -> Vector:
    """Round to 13 significant bits.

    Statistics computed on machines that sum in another order differ by about 1e-12 here, so that
    the rounded ones, and with them the weights, come out the same everywhere.
    """
    mantissa, exponent = np.frexp(np.asarray(values, np.float64))
    return np.ldexp(np.round(mantissa * 2.0**13) / 2.0**13, exponent).astype(np.float32)


class _Calibration:
    """State of one walk through a graph in order: activations and the parameters drawn so far."""

    def __init__(
        self,
        nodes: Sequence[Any],
        placeholders: Mapping[str, NDArray[Any]],
        activations: dict[str, NDArray[np.float64]],
        seed: int,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.activations = activations
        self.shapes = {name: values.shape for name, values in placeholders.items()}
        # Integers (the shapes that Reshape reads) are part of the topology.
        self.parameters = {
            name: values for name, values in placeholders.items() if values.dtype == np.int64
        }
        self.pending = Counter(name for node in nodes for name in node.input)
        self.normalized = {node.input[0] for node in nodes if node.op_type == "BatchNormalization"}

    def jitter(self, name: str, centre: float) -> None:
        """Draw parameter ``name`` near ``centre``."""
        draw = centre + JITTER * self.rng.standard_normal(self.shapes[name])
        self.parameters[name] = draw.astype(np.float32)

    def value(self, name: str) -> NDArray[Any]:
        found = self.activations.get(name)
        return self.parameters[name] if found is None else found

    def run(self, node: Any) -> NDArray[np.float64]:
        return run_node(node, [self.value(name) for name in node.input])

    def weigh(self, node: Any) -> NDArray[np.float64]:
        """Draw a convolution's or dense layer's weights and return its normalised output."""
        weight_name = node.input[1]
        shape = self.shapes[weight_name]
        # He et al., "Delving deep into rectifiers", ICCV 2015, equation 10.
        deviation = np.float32(np.sqrt(2.0 / np.prod(shape[1:])))
        weight = self.rng.standard_normal(shape, np.float32) * deviation
        self.parameters[weight_name] = weight
        bias_name = node.input[2] if len(node.input) > 2 else None
        if bias_name is not None:
            self.parameters[bias_name] = np.zeros(self.shapes[bias_name], np.float32)
        y = self.run(node)
        if node.output[0] in self.normalized:
            return y
        per_channel = (slice(None), *([None] * (y.ndim - 2)))
        if bias_name is None:
            factor = _rounded(1.0 / y.std())
            weight *= factor
            return y * factor
        axes = (0, *range(2, y.ndim))
        if y[0, 0].size == 1:
            # A dense layer has one value a picture and unit: too few for a deviation a unit.
            deviations = np.full(y.shape[1], (y - y.mean(axis=0)).std())
        else:
            deviations = y.std(axis=axes)
        factors = _rounded(1.0 / np.maximum(deviations, 1e-3 * deviations.max()))
        shift = _rounded(-y.mean(axis=axes) * factors)
        draw = JITTER * self.rng.standard_normal(shift.shape)
        bias = shift + draw.astype(np.float32)
        weight *= factors.reshape(-1, *([1] * (weight.ndim - 1)))
        self.parameters[bias_name] = bias
        return y * factors[per_channel] + bias[per_channel]

    def normalize(self, node: Any) -> NDArray[np.float64]:
        """Set a batch normalisation's statistics to those of its input."""
        x = self.value(node.input[0])
        scale, bias, mean, variance = node.input[1:]
        self.jitter(scale, 1.0)
        self.jitter(bias, 0.0)
        self.parameters[mean] = _rounded(x.mean(axis=(0, 2, 3)))
        self.parameters[variance] = _rounded(x.var(axis=(0, 2, 3)))
        return self.run(node)

    def step(self, node: Any) -> NDArray[np.float64]:
        """Evaluate one node, drawing the parameters that it reads."""
        if node.op_type in ("Conv", "Gemm"):
            result = self.weigh(node)
        elif node.op_type == "BatchNormalization":
            result = self.normalize(node)
        else:
            for name in node.input:
                if name in self.shapes and name not in self.parameters:
                    self.jitter(name, 1.0 if node.op_type == "Mul" else 0.0)
            result = self.run(node)
        self.activations[node.output[0]] = result
        for name in node.input:
            self.pending[name] -= 1
            if not self.pending[name]:
                self.activations.pop(name, None)
        return result


def calibrate(
    nodes: Sequence[Any],
    placeholders: Mapping[str, NDArray[Any]],
    input_name: str,
    pictures: NDArray[np.float64],
    seed: int,
) -> dict[str, NDArray[Any]]:
    """Draw every float parameter of an image classifier.

    Parameters
    ----------
    nodes : sequence of onnx.NodeProto
        The network in topological order.
    placeholders : mapping of str to ndarray
        Its parameters; of float ones only the shape is used, integer ones are kept.
    input_name : str
        Name of the picture input.
    pictures : ndarray, shape (N, 3, H, W)
        Inputs to calibrate on.
    seed : int
        Seed of all draws.

    Returns
    -------
    dict of str to ndarray
        A value for each placeholder, float32 or int64.
    """
    state = _Calibration(nodes, placeholders, {input_name: pictures}, seed)
    body = [node for node in nodes if node.op_type != "Softmax"]
    for node in body:
        logits = state.step(node)
    last = [node for node in body if node.op_type in ("Conv", "Gemm")][-1]
    # Only rectification and pooling follow the last layer, so that a factor passes through them.
    factor = _rounded(LOGIT_SPREAD / logits.std(axis=0).mean())
    for name in last.input[1:]:
        state.parameters[name] = state.parameters[name] * factor
    return state.parameters
