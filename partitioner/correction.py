"""A problem whose times agree with what stages took in pipelines that ran.

Op times are taken while a model runs alone; a stage of a pipeline runs beside the others, with
their traffic in the shared caches. What the stages of some plans took is therefore brought back
into the op times, in three steps:

1. For each option, the *factor* by which its stages took longer than their op times say: the sum of
   measured times over the sum of op times, drawn towards the factor of its cluster, and that
   towards the factor of all options, as if one more stage had been seen that follows the wider
   one. So what nobody has tried is not taken for faster than its kind.
2. For each option, corrections of single ops on top of that: the likeliest ones when ops deviate
   from their option's factor independently of one another, a long op as much as many short ones
   that take as long together, and a measured time deviates from the sum by the observation's
   error. One stage alone changes all its ops by one factor; where two plans cut at different
   places, the ops between the cuts get the difference. It is the conditional mean of a Gaussian
   (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 2.2) whose
   covariance of two stages is the time of the ops that they share.
3. What a byte costs the sender, for each option: measured over modelled copies, drawn alike. Both
   have the fixed part of a hop in them, since copies shorter than that tell little about bytes.

Reading a tensor in place is part of what a stage was seen to take and is already in the problem by
its bytes: that part is taken off first. The fixed part of a hop stays as it was measured: most of
it is in no stage's times.

It is assumed that a stage takes as long in a plan not yet run as in those that ran: how much a
stage suffers from the others is not known for each set of others.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partitioner.evaluation import evaluate
from partitioner.problem import Floats, Problem, Solution, TransferCost

__all__ = ["Factor", "Observation", "corrected", "factors"]

# How far, relatively, a stage's ops lie off their option's factor before anything is known of them.
_DEVIATION = 0.3
# No op is corrected by more than this beyond its option's factor, up or down.
_MOST = 2.0
# Modelled reading never takes more than this part of what a stage was seen to take.
_MOST_READING = 0.9

Times = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """What the stages of a plan took while all of them ran.

    Attributes
    ----------
    solution : Solution
        The plan, on options of the problem without replicas.
    run_s, send_s : tuple of tuple of float
        For each stage, for each of its replicas: seconds an item in its kernels (and what else it
        does between having its inputs and having its outputs), and copying to consumers.
    error : float
        Relative standard error; above zero. An observation counts by 1 / error ** 2.
    """

    solution: Solution
    run_s: Times
    send_s: Times
    error: float


@dataclass(frozen=True, slots=True)
class Factor:
    """How much longer than by the problem things took on an option.

    Attributes
    ----------
    option : int
    run, send : float
        Measured over modelled: op times, and copies by their bytes.
    workers : int
        How many were seen there; with none the factor is that of its kind.
    """

    option: int
    run: float
    send: float
    workers: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """One worker: what it took, and what the problem says that it takes."""

    ops: tuple[int, ...]
    option: int
    run_s: float
    send_s: float
    compute_s: float
    copy_s: float
    error: float


def corrected(problem: Problem, observations: Sequence[Observation]) -> Problem:
    """The problem with op times and copies as observed.

    Parameters
    ----------
    problem : Problem
        Not a corrected one: all observations count each time.
    observations : sequence of Observation
        With none, the problem stays as it is.

    Returns
    -------
    Problem
        Equal in all else. Bounds and proofs of it are exact; how well it describes the devices is
        what the observations are good for.
    """
    if not observations:
        return problem
    seen = [worker for each in observations for worker in _workers(problem, each)]
    known = _factors(problem, seen)
    scale = np.array([np.full(problem.n_ops, factor.run) for factor in known]).T
    for option in {worker.option for worker in seen}:
        there = [worker for worker in seen if worker.option == option]
        scale[:, option] = _by_op(problem.time_s[:, option], known[option].run, there)
    send = problem.send.per_unit_s.copy()
    send[:-1] *= np.array([factor.send for factor in known])[:, None]
    return replace(
        problem,
        time_s=problem.time_s * scale,
        send=TransferCost(problem.send.base_s, send),
    )


def factors(problem: Problem, observations: Sequence[Observation]) -> tuple[Factor, ...]:
    """The factor of each option, in the problem's order."""
    return _factors(
        problem, [worker for each in observations for worker in _workers(problem, each)]
    )


def _workers(problem: Problem, observation: Observation) -> Iterator[_Seen]:
    """Every replica of every stage."""
    solution = observation.solution
    whole = evaluate(problem, solution.stage_of, solution.placements)
    nothing = np.zeros_like(problem.send.base_s)
    by_bytes = evaluate(
        replace(
            problem,
            send=TransferCost(nothing, problem.send.per_unit_s),
            recv=TransferCost(nothing, problem.recv.per_unit_s),
        ),
        solution.stage_of,
        solution.placements,
    )
    for stage, options in enumerate(solution.placements):
        ops = tuple(op for op, home in enumerate(solution.stage_of) if home == stage)
        for replica, option in enumerate(options):
            run_s = observation.run_s[stage][replica]
            fixed_s = whole.send_s[stage][replica] - by_bytes.send_s[stage][replica]
            reading_s = min(by_bytes.recv_s[stage][replica], _MOST_READING * run_s)
            yield _Seen(
                ops=ops,
                option=option,
                run_s=run_s - reading_s,
                send_s=max(fixed_s, observation.send_s[stage][replica]),
                compute_s=whole.compute_s[stage][replica],
                copy_s=whole.send_s[stage][replica],
                error=observation.error,
            )


def _factors(problem: Problem, seen: Sequence[_Seen]) -> tuple[Factor, ...]:
    runs = [(worker.option, worker.run_s, worker.compute_s, worker.error) for worker in seen]
    sends = [(worker.option, worker.send_s, worker.copy_s, worker.error) for worker in seen]
    run, send = _pooled(problem, runs), _pooled(problem, sends)
    return tuple(
        Factor(option, run[option], send[option], sum(w.option == option for w in seen))
        for option in range(problem.n_options)
    )


def _pooled(problem: Problem, rows: Sequence[tuple[int, float, float, float]]) -> list[float]:
    """For each option the ratio of measured to modelled time: all, cluster, option in turn.

    Parameters
    ----------
    rows : sequence of (option, measured, modelled, error)
    """
    kinds = [tuple(np.flatnonzero(uses)) for uses in problem.uses]
    weighted = [(o, found / e**2, said / e**2) for o, found, said, e in rows if said > 0]
    if not weighted:
        return [1.0] * problem.n_options
    # What the wider factor counts for: as one more observation of middling weight.
    usual = statistics.mean(said for _, _, said in weighted)
    whole = sum(found for _, found, _ in weighted) / sum(said for _, _, said in weighted)

    def drawn(options: Sequence[int], wider: float) -> float:
        found, said = usual * wider, usual
        for other, more_found, more_said in weighted:
            if other in options:
                found, said = found + more_found, said + more_said
        return found / said

    result = []
    for option, kind in enumerate(kinds):
        same = [other for other in range(problem.n_options) if kinds[other] == kind]
        result.append(drawn([option], drawn(same, whole)))
    return result


def _by_op(time_s: Floats, factor: float, seen: Sequence[_Seen]) -> Floats:
    """The factor of each op on one option, shape (n_ops,)."""
    of = np.zeros((len(seen), len(time_s)))
    for row, worker in enumerate(seen):
        of[row, list(worker.ops)] = 1.0
    compute_s = np.array([worker.compute_s for worker in seen])
    run_s = np.array([worker.run_s for worker in seen])
    noise_s = np.array([worker.error * worker.run_s for worker in seen])
    # Variance of a stage's time in proportion to its ops' times: `_DEVIATION` for the usual stage.
    unit_s = (_DEVIATION * factor) ** 2 * compute_s.mean()
    shared_s = (of * np.where(np.isfinite(time_s), time_s, 0.0)) @ of.T
    pull = np.linalg.solve(
        unit_s * shared_s + np.diag(noise_s**2 + 1e-30), run_s - factor * compute_s
    )
    change = unit_s * (of.T @ pull)
    return np.asarray(np.clip(factor + change, factor / _MOST, factor * _MOST))
