"""CP-SAT without the steps that have been seen to give wrong answers (OR-Tools 9.15)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from ortools.sat.python import cp_model

from partitioner.solvers.limits import Limits

__all__ = ["run_sound", "sound_solver"]

_LOOK_S = 0.1


def sound_solver(limits: Limits, seconds: float) -> Any:
    """A solver with the given workers, seed and wall time.

    Notes
    -----
    On models of pipelines with costs of 28 bits, probing has declared feasible ones infeasible,
    and the search for constraints within others has lost the best solutions; both proofs were
    refuted by known assignments. Neither costs much to do without.
    """
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = limits.workers
    solver.parameters.random_seed = limits.seed
    # Its handler of Ctrl-C would hide the signal from us and take Python's away for good.
    solver.parameters.catch_sigint_signal = False
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.presolve_inclusion_work_limit = 0
    if limits.workers == 1:
        # Several workers differ in this by themselves; without it, one alone can get stuck.
        solver.parameters.linearization_level = 2
    return solver


def run_sound(solver: Any, model: cp_model.CpModel, limits: Limits, watch: Any = None) -> Any:
    """Solve, `watch` being told of every solution; the status.

    It runs in a thread of its own: a thread inside CP-SAT sees no signal until the end. This one
    looks every now and then: a signal that another thread receives does not wake it, and one may
    have come before that raised nothing here.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, once the search has stopped.
    """
    thread = ThreadPoolExecutor(1)
    try:
        running = thread.submit(solver.solve, model, watch)
        while not running.done():
            if limits.interrupted.is_set():
                raise KeyboardInterrupt
            wait([running], _LOOK_S)
        return running.result()
    except KeyboardInterrupt:
        # The signal may have come before the search began, and the search forgets what it is told
        # before that: it is told again and again, until the thread is free for something else.
        free = thread.submit(int)
        while not free.done():
            solver.stop_search()
            wait([free], _LOOK_S)
        raise
    finally:
        thread.shutdown()
