"""The alternatives that every plan competes with, as Solutions scored by `evaluation`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from partitioner.problem import Floats, Ints, Problem, Solution
from partitioner.solvers.reduce import symmetry
from partitioner.solvers.scoring import best_of, scored

__all__ = [
    "alternatives",
    "best_replicas",
    "equal_split",
    "proportional_split",
    "replicas",
    "single",
]

# Sets of options that replicas and splits try at most.
_MOST_SETS = 2000
# The slowest replica may take this many times the fastest's time.
_MOST_UNEQUAL = 64


def single(problem: Problem, option: int) -> Solution | None:
    """The uncut model on one option, None when that is infeasible."""
    name = f"single {problem.option_names[option]}"
    return scored(problem, (0,) * problem.n_ops, ((option,),), name)


def replicas(problem: Problem, options: Sequence[int]) -> Solution | None:
    """The whole model on each of the options, items shared by speed; None when infeasible.

    Also None when one takes over 64 times another's time: items are dealt in cycles of about
    a hundred at most, in which so small a share rounds badly.
    """
    whole = [problem.time_s[:, option].sum() for option in options]
    if min(whole, default=0.0) * _MOST_UNEQUAL < max(whole, default=0.0):
        return None
    counts = Counter(problem.option_names[option] for option in options)
    name = "replicas " + " + ".join(
        name if count == 1 else f"{count} x {name}" for name, count in counts.items()
    )
    return scored(problem, (0,) * problem.n_ops, (tuple(options),), name)


def best_replicas(problem: Problem, most: int) -> Solution | None:
    """The best 2 to `most` replicas on options that fit the resources together."""
    best: Solution | None = None
    able = [option for option in range(problem.n_options) if single(problem, option)]
    for options in _sets(problem, able):
        if 1 < len(options) <= most:
            best = best_of(problem, best, replicas(problem, options))
    return best


def equal_split(problem: Problem, options: Sequence[int]) -> Solution | None:
    """Equally many ops a stage, in op order, on the options in order; None when infeasible."""
    share = np.arange(problem.n_ops) * len(options) // problem.n_ops
    return _split(problem, share.tolist(), options, "equal split")


def proportional_split(problem: Problem, options: Sequence[int]) -> Solution | None:
    """Stages with equal shares of the time, in op order, on the options in order.

    Filled one stage after the other, as one would by hand: a stage is closed when the next op
    would bring it further from its share than leaving it out. None when infeasible.
    """
    options = list(options)[: problem.n_ops]
    times = problem.time_s[:, options]
    times = np.where(np.isfinite(times), times, 0.0)
    share = _fair_share(times)
    stage, filled, assigned = 0, 0.0, []
    for op in range(problem.n_ops):
        left = problem.n_ops - op
        time = float(times[op, stage])
        over = filled > 0 and filled + time / 2 > share
        if stage + 1 < len(options) and (over or left <= len(options) - 1 - stage):
            stage, filled, time = stage + 1, 0.0, float(times[op, stage + 1])
        assigned.append(stage)
        filled += time
    return _split(problem, assigned, options, "proportional split")


def alternatives(
    problem: Problem, most_replicas: int = _MOST_SETS
) -> tuple[tuple[str, Solution], ...]:
    """Every simple alternative that is feasible, by name, in a fixed order.

    Each option alone, the best replicas of the whole model, and the best equal and proportional
    splits over sets of options that fit together, in the options' order.
    """
    found: list[tuple[str, Solution | None]] = [
        (f"single {problem.option_names[option]}", single(problem, option))
        for option in range(problem.n_options)
    ]
    copies = best_replicas(problem, most_replicas)
    found.append((copies.stats.method if copies else "replicas", copies))
    splits: tuple[Callable[[Problem, Sequence[int]], Solution | None], ...] = (
        equal_split,
        proportional_split,
    )
    sets = [
        options
        for options in _sets(problem, range(problem.n_options))
        if 1 < len(options) <= min(problem.max_stages, problem.n_ops)
    ]
    for split in splits:
        best: Solution | None = None
        for options in sets:
            best = best_of(problem, best, split(problem, options))
        found.append((split.__name__.replace("_", " "), best))
    return tuple((name, solution) for name, solution in found if solution is not None)


def _split(
    problem: Problem, share: Sequence[int], options: Sequence[int], name: str
) -> Solution | None:
    # Stages without ops, where there are fewer ops than options, are left out.
    kept = sorted(set(share))
    stage_of = tuple(kept.index(stage) for stage in share)
    names = " > ".join(problem.option_names[options[stage]] for stage in kept)
    return scored(problem, stage_of, tuple((options[stage],) for stage in kept), f"{name} {names}")


def _fair_share(times: Floats) -> float:
    """Time a stage that perfect balance over unequal options would give: 1 / sum(1 / T)."""
    totals = times.sum(axis=0)
    if (totals <= 0).any():
        return 0.0
    return float(1.0 / (1.0 / totals).sum())


def _sets(problem: Problem, options: Iterable[int]) -> list[tuple[int, ...]]:
    """Multisets of options that the resources allow together, one for each that is equal.

    Smaller sets are there too, for a slow device can hurt a split.
    """
    classes = symmetry(problem).classes
    kind = {option: group[0] for group in classes for option in group}
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    able = sorted(options)

    def extend(chosen: tuple[int, ...], used: Ints) -> None:
        for option in able:
            # An option that occupies nothing would go in any number of times.
            again = bool(chosen) and (
                option < chosen[-1] or (option == chosen[-1] and not problem.uses[option].any())
            )
            total = used + problem.uses[option]
            if again or len(found) >= _MOST_SETS or (total > problem.capacity).any():
                continue
            grown = (*chosen, option)
            key = tuple(kind[each] for each in grown)
            if key not in found:
                found[key] = grown
                extend(grown, total)

    extend((), np.zeros_like(problem.capacity))
    return list(found.values())
