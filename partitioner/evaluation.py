"""The one definition of stage time, period, latency and memory.

Every assignment, whoever made it, is scored here from the problem's arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.errors import ProblemError
from partitioner.list_schedule import ListSchedule
from partitioner.problem import Evaluation, LatencyModel, Problem

__all__ = ["evaluate"]

# Two sides of a comparison that add the same numbers in another order differ by this much at most.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Hop:
    """One tensor from one stage to another; stage None is the caller."""

    tensor: int
    source: int | None
    target: int | None


def evaluate(
    problem: Problem, stage_of: Sequence[int], placements: Sequence[Sequence[int]]
) -> Evaluation:
    """Score an assignment.

    Parameters
    ----------
    problem : Problem
        The frozen problem.
    stage_of : sequence of int, length n_ops
        Stage of each op.
    placements : sequence of sequence of int
        For each stage, the options of its replicas; an option with `Problem.replicas` stands for
        that many.

    Returns
    -------
    Evaluation
        With `violations` naming every rule the assignment breaks; times are given all the same,
        inf where an op cannot run.

    Raises
    ------
    ProblemError
        If the assignment is no assignment: wrong length, a stage without placement or ops.
    """
    stages = _members(problem, stage_of, placements)
    hops = list(_hops(problem, stage_of))
    counts = problem.replicas.tolist()
    replicas = [[each for each in options for _ in range(counts[each])] for options in placements]
    send: list[list[float]] = [[0.0] * len(options) for options in replicas]
    recv: list[list[float]] = [[0.0] * len(options) for options in replicas]
    links: dict[str, float] = {}
    _charge(problem, replicas, hops, send, recv, links)

    compute = [
        [float(problem.time_s[ops, option].sum()) for option in options]
        for ops, options in zip(stages, replicas, strict=True)
    ]
    busy = [
        [
            compute[s][r] + float(problem.host_s[option]) + send[s][r] + recv[s][r]
            for r, option in enumerate(options)
        ]
        for s, options in enumerate(replicas)
    ]
    stage_period = [_shared(times) for times in busy]
    links |= _host_loads(problem, replicas, busy)
    loads = [(f"stage {s}", time) for s, time in enumerate(stage_period)] + list(links.items())
    bottleneck, period = max(loads, key=lambda load: load[1])

    latency = _latency(problem, stage_of, replicas, hops, busy)
    stage_bytes = _stage_bytes(problem, stage_of, stages, hops)
    pools = np.zeros(len(problem.pool_bytes))
    for options, size in zip(replicas, stage_bytes, strict=True):
        for option in options:
            pools[problem.pool_of[option]] += size

    return Evaluation(
        period_s=period,
        latency_s=latency,
        compute_s=_tuples(compute),
        send_s=_tuples(send),
        recv_s=_tuples(recv),
        busy_s=_tuples(busy),
        stage_period_s=tuple(stage_period),
        link_s=tuple((name, time) for name, time in links.items() if time > 0),
        stage_bytes=tuple(stage_bytes),
        pool_bytes=tuple(pools.tolist()),
        copies=sum(hop.source is not None and hop.target is not None for hop in hops),
        devices=sum(len(options) for options in replicas),
        bottleneck=bottleneck,
        violations=(
            *_violations(problem, stage_of, placements, stages, pools),
            *_over("period", period, problem.period_cap_s),
            *_over("latency", latency, problem.latency_cap_s),
        ),
    )


def _members(
    problem: Problem, stage_of: Sequence[int], placements: Sequence[Sequence[int]]
) -> list[list[int]]:
    if len(stage_of) != problem.n_ops:
        raise ProblemError(f"{len(stage_of)} ops are assigned; the problem has {problem.n_ops}")
    stages: list[list[int]] = [[] for _ in placements]
    for op, stage in enumerate(stage_of):
        if not 0 <= stage < len(placements):
            raise ProblemError(
                f"op {problem.op_names[op]!r} is in stage {stage}; "
                f"placements are given for stages 0..{len(placements) - 1}"
            )
        stages[stage].append(op)
    for stage, (ops, options) in enumerate(zip(stages, placements, strict=True)):
        if not ops:
            raise ProblemError(f"stage {stage} has no ops; leave it out")
        if not options:
            raise ProblemError(f"stage {stage} has no placement")
        for option in options:
            if not 0 <= option < problem.n_options:
                raise ProblemError(
                    f"stage {stage} is placed on option {option}; "
                    f"there are {problem.n_options} ({', '.join(problem.option_names)})"
                )
    return stages


def _hops(problem: Problem, stage_of: Sequence[int]) -> Iterator[_Hop]:
    """Each (tensor, consuming stage) pair that leaves its producer's stage, once."""
    for tensor, readers in enumerate(problem.consumers):
        producer = int(problem.producer[tensor])
        source = stage_of[producer] if producer >= 0 else None
        for target in sorted({stage_of[reader] for reader in readers}):
            if target != source:
                yield _Hop(tensor, source, target)
        if problem.to_caller[tensor] and source is not None:
            yield _Hop(tensor, source, None)


def _charge(
    problem: Problem,
    placements: Sequence[Sequence[int]],
    hops: Sequence[_Hop],
    send: list[list[float]],
    recv: list[list[float]],
    links: dict[str, float],
) -> None:
    """Book every hop on its sender, its receiver and its link.

    An end with replicas is averaged: each of its replicas exchanges with every replica of the
    other end in turn.
    """
    caller = (problem.n_options,)
    caller_s = 0.0
    dearest: dict[tuple[int, int | None, int], float] = {}
    for hop in hops:
        amount = float(problem.amount[hop.tensor])
        sources = caller if hop.source is None else placements[hop.source]
        targets = caller if hop.target is None else placements[hop.target]
        for r, a in enumerate(sources):
            cost = sum(problem.send.seconds(a, b, amount) for b in targets) / len(targets)
            if problem.send_once:
                key = (hop.tensor, hop.source, r)
                cost, dearest[key] = (
                    max(0.0, cost - dearest.get(key, 0.0)),
                    max(cost, dearest.get(key, 0.0)),
                )
            if hop.source is None:
                caller_s += cost
            else:
                send[hop.source][r] += cost
        for r, b in enumerate(targets):
            cost = sum(problem.recv.seconds(a, b, amount) for a in sources) / len(sources)
            if hop.target is None:
                caller_s += cost
            else:
                recv[hop.target][r] += cost
        share = len(sources) * len(targets)
        for a in sources:
            for b in targets:
                time = problem.link.seconds(a, b, amount) / share
                if time > 0:
                    name = _link_name(problem, a, b)
                    links[name] = links.get(name, 0.0) + time
    links["caller"] = caller_s


def _link_name(problem: Problem, a: int, b: int) -> str:
    if problem.bus_of[a, b] >= 0:
        return f"bus {problem.bus_of[a, b]}"
    names = (*problem.option_names, "caller")
    return f"link {names[a]} > {names[b]}"


def _shared(times: Sequence[float]) -> float:
    """Period of replicas that share items in proportion to their speed: 1 / sum(1 / T)."""
    if len(times) == 1:
        return times[0]
    if min(times) <= 0:
        return 0.0
    rate = sum(1.0 / time for time in times)
    return 1.0 / rate if rate > 0 else float("inf")


def _host_loads(
    problem: Problem, placements: Sequence[Sequence[int]], busy: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Time an item takes of each host core; unequal replicas serve items by their speed."""
    loads: dict[str, float] = {}
    for options, times in zip(placements, busy, strict=True):
        unequal = 0 < min(times) < float("inf")
        speeds = [1.0 / time if unequal else 1.0 for time in times]
        for option, speed in zip(options, speeds, strict=True):
            if problem.host_core[option] >= 0:
                name = f"host core {problem.host_core[option]}"
                share = speed / sum(speeds)
                loads[name] = loads.get(name, 0.0) + share * float(problem.host_s[option])
    return loads


def _latency(
    problem: Problem,
    stage_of: Sequence[int],
    placements: Sequence[Sequence[int]],
    hops: Sequence[_Hop],
    busy: Sequence[Sequence[float]],
) -> float:
    """One item through an empty pipeline, on the slowest replica of each stage.

    Stages that are not contiguous visit each other in turns, so their times can only be added up,
    unless they are looked at op by op.
    """
    if problem.latency_model is LatencyModel.LIST:
        return ListSchedule(problem).latency(stage_of, placements)
    ends = [*placements, (problem.n_options,)]

    def link_s(hop: _Hop) -> float:
        a = ends[-1 if hop.source is None else hop.source]
        b = ends[-1 if hop.target is None else hop.target]
        amount = float(problem.amount[hop.tensor])
        return max(problem.link.seconds(x, y, amount) for x in a for y in b)

    slowest = [max(times) for times in busy]
    if problem.latency_model is LatencyModel.SERIAL or not problem.contiguous:
        return sum(slowest) + sum(link_s(hop) for hop in hops)
    ready = [0.0] * len(ends)  # the caller, last, is ready when its last output has come
    leaving: list[list[_Hop]] = [[] for _ in slowest]
    for hop in hops:
        if hop.source is not None:
            leaving[hop.source].append(hop)
        elif hop.target is not None:
            ready[hop.target] = max(ready[hop.target], link_s(hop))
    # Stages are numbered along their edges, so one pass in order settles each start time.
    for stage, time in enumerate(slowest):
        ready[stage] += time
        for hop in leaving[stage]:
            target = -1 if hop.target is None else hop.target
            if not 0 <= target < stage:
                ready[target] = max(ready[target], ready[stage] + link_s(hop))
    return max(ready)


def _stage_bytes(
    problem: Problem,
    stage_of: Sequence[int],
    stages: Sequence[Sequence[int]],
    hops: Sequence[_Hop],
) -> list[float]:
    """Constants once, the largest working set, and every entering tensor in each queue slot."""
    sizes = [float(problem.live_bytes[list(ops)].max()) for ops in stages]
    for size, readers in zip(problem.constant_bytes.tolist(), problem.constant_ops, strict=True):
        for stage in {stage_of[reader] for reader in readers}:
            sizes[stage] += size
    for hop in hops:
        if hop.target is not None:
            sizes[hop.target] += problem.queue_slots * float(problem.tensor_bytes[hop.tensor])
    return sizes


def _over(name: str, value: float, cap: float) -> Iterator[str]:
    if value > cap * (1 + _ROUNDING):
        yield f"the {name} is {value:.9g} s; its cap is {cap:.9g} s"


def _violations(
    problem: Problem,
    stage_of: Sequence[int],
    placements: Sequence[Sequence[int]],
    stages: Sequence[Sequence[int]],
    pools: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> Iterator[str]:
    names = problem.op_names
    for u, v in problem.edges if problem.contiguous else ():
        if stage_of[u] > stage_of[v]:
            yield (
                f"op {names[u]!r} in stage {stage_of[u]} feeds {names[v]!r} in the earlier "
                f"stage {stage_of[v]}"
            )
    runs = problem.runs()
    for stage, (ops, options) in enumerate(zip(stages, placements, strict=True)):
        for option in options:
            refused = [op for op in ops if not runs[op, option]]
            if refused:
                more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
                yield (
                    f"op {names[refused[0]]!r}{more} of stage {stage} cannot run on "
                    f"{problem.option_names[option]!r}"
                )
    for group in problem.colocate:
        if len({stage_of[op] for op in group}) > 1:
            yield f"ops {', '.join(names[op] for op in group)} must share a stage"
    for group in problem.same_option:
        if len({tuple(placements[stage_of[op]]) for op in group}) > 1:
            yield f"ops {', '.join(names[op] for op in group)} must be on the same option"
    if len(placements) > problem.max_stages:
        yield f"{len(placements)} stages; at most {problem.max_stages} are allowed"
    used = sum(
        (problem.uses[option] for options in placements for option in options),
        np.zeros_like(problem.capacity),
    )
    for resource in np.flatnonzero(used > problem.capacity):
        yield (
            f"resource {resource} is used {used[resource]} times; "
            f"there are {problem.capacity[resource]}"
        )
    for pool, (demand, budget) in enumerate(zip(pools, problem.pool_bytes, strict=True)):
        if demand > budget * (1 + _ROUNDING):
            yield f"memory pool {pool} needs {demand:.0f} bytes; its budget is {budget:.0f}"


def _tuples(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, rows))
