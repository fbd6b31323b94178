"""Each network of the zoo, cut and run as a pipeline: bitwise the uncut model, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from partitioner import auto_partition, zoo
from partitioner.host import allowed_cpus
from partitioner.runtime.build import BuildCache
from partitioner.tuning.records import Records

ITEMS = 20
NETWORKS = (
    "squeezenet",
    "shufflenet",
    "resnet50",
    "inception_v1",
    "densenet121",
    "ppocr_det",
    "ddddocr_det",
    "minilm",
)

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> BuildCache:
    return BuildCache(tmp_path_factory.mktemp("builds"), Records.shipped())


def _tuples(results: Any) -> list[tuple[Array, ...]]:
    return [result if isinstance(result, tuple) else (result,) for result in results]


def _by_onnx_runtime(model: Any, items: list[dict[str, Array]]) -> list[tuple[Array, ...]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [tuple(session.run(None, item)) for item in items]


@pytest.mark.parametrize("name", NETWORKS)
def test_stages_equal_the_uncut_model_and_onnx_runtime(name: str, builds: BuildCache) -> None:
    cpus = allowed_cpus()
    if len(cpus) < 2:
        pytest.skip(f"two stages need two cores; this process may use {cpus}")
    found = zoo.load(name)
    items = zoo.inputs(name, ITEMS)
    expected = _by_onnx_runtime(found.model, items)
    for column in zip(*expected, strict=True):
        assert all(np.isfinite(array).all() for array in column)
        spread = max(float(np.ptp(array)) for array in column)
        for other in column[1:]:
            difference = float(np.abs(other.astype(float) - column[0]).max())
            assert difference > 1e-2 * spread, "the inputs give the same output: nothing is shown"

    part = auto_partition(
        f"zoo:{name}",
        [f"cores:{cpu}" for cpu in cpus[:2]],
        profile="estimate",
        strategy="pipeline",
        builds=builds,
    )
    assert len(part.plan.stages) == 2
    assert part.plan.predicted is not None
    assert part.plan.predicted.status == "OPTIMAL"
    with part.pipeline() as pipe:
        ours = _tuples(pipe.map(items))
    with part.reference() as uncut:
        reference = _tuples(uncut.map(items))
    for mine, whole, other in zip(ours, reference, expected, strict=True):
        for a, b, c in zip(mine, whole, other, strict=True):
            assert a.tobytes() == b.tobytes()
            np.testing.assert_allclose(a, c, rtol=0, atol=1e-3 * float(np.ptp(c)))
