"""Running a Relax module as it is, for comparisons of outputs."""

import tvm
from tvm import relax

# TVM's default without StaticPlanBlockMemory, which plans storage across the branches of an `If`
# and crashes at run time when one of them is not taken.
_PASSES = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
)


def run(module, *inputs):
    """Outputs of a module's main in TVM's VM, unscheduled, as a flat list of arrays."""
    return runner(module)(*inputs)


def runner(module):
    """A function that runs a module compiled once."""
    vm = relax.VirtualMachine(tvm.compile(module, target="llvm", relax_pipeline=_PASSES), tvm.cpu())
    return lambda *inputs: _flat(vm["main"](*(tvm.runtime.tensor(value) for value in inputs)))


def _flat(value):
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    return [array for part in value for array in _flat(part)]
