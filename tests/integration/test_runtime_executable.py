"""Compiled stages in a pipeline's workers: results, threads, affinity."""

import numpy as np
import pytest
import tvm
from tvm.script import ir
from tvm.script import relax as R  # noqa: N812 - TVMScript's name

from partitioner.errors import BuildError
from partitioner.runtime.affinity import allowed_cpus
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.spec import PipelineSpec, ReplicaSpec, RunnerSpec, StageSpec, TensorSpec

SHAPE = (64, 64)
CPUS = tuple(sorted(allowed_cpus()))[:2]


@ir.ir_module
class Double:
    """Doubles its input; its second output is the first one's memory under another shape."""

    @R.function
    def main(
        x: R.Tensor((64, 64), "float32"),  # noqa: N805 - TVMScript has no self
    ) -> R.Tuple(R.Tensor((64, 64), "float32"), R.Tensor((4096,), "float32")):
        with R.dataflow():
            doubled = R.add(x, x)
            flat = R.reshape(doubled, (4096,))
            R.output(doubled, flat)
        return doubled, flat


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("stage") / "double.so"
    tvm.compile(Double, target="llvm").export_library(str(path))
    return str(path)


def two_stages(path):
    run = RunnerSpec("partitioner.runtime.executable:load", (path,))
    stages = tuple(
        StageSpec(f"s{n}", (ReplicaSpec(cpus, len(cpus), run),), (n,), (n + 1, f"flat{n}"))
        for n, cpus in enumerate((CPUS[:1], CPUS))
    )
    tensors = {n: TensorSpec(f"t{n}", SHAPE, "float32") for n in range(3)}
    flat = {f"flat{n}": TensorSpec(f"flat{n}", (64 * 64,), "float32") for n in range(2)}
    return PipelineSpec(stages, tensors | flat, (0,), (2, "flat0", "flat1"))


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_stages_of_one_and_of_several_threads(library, kind):
    items = [np.random.default_rng(n).standard_normal(SHAPE).astype("f") for n in range(50)]
    with Pipeline(two_stages(library), kind) as pipe:
        results = list(pipe.map(items))
    assert len(results) == len(items)
    for item, (last, first_flat, last_flat) in zip(items, results, strict=True):
        assert np.array_equal(last, 4 * item)
        assert np.array_equal(first_flat, 2 * item.reshape(-1))
        assert np.array_equal(last_flat, 4 * item.reshape(-1))


def test_a_library_that_is_missing(tmp_path):
    with pytest.raises(BuildError, match=r"absent\.so: cannot load"):
        Pipeline(two_stages(str(tmp_path / "absent.so")))
