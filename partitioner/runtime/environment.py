"""The environment of every process that runs a stage: measured and deployed alike."""

from __future__ import annotations

import os

__all__ = ["stage_environment"]

# An idle TVM worker spins before it sleeps, which takes the core from whoever shares it; a stage
# has its cores to itself, but the caller may have to live on one of them, and spinning uses up a
# control group's quota. TVM's own count lasts longer than 10 ms. By benchmarks/spin.py this one
# takes no more of the core than no spinning does, and the stage is as fast as with TVM's.
_SPIN_COUNT = 2000


def stage_environment(threads: int) -> dict[str, str]:
    """This process's environment with every thread pool set to the stage's size.

    Parameters
    ----------
    threads : int
        Threads of the stage.
    """
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "TVM_NUM_THREADS": str(threads),
        "TVM_THREAD_POOL_SPIN_COUNT": str(_SPIN_COUNT),
    }
