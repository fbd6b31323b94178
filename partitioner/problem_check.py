"""What a problem must hold before any solver sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from partitioner.errors import ProblemError

if TYPE_CHECKING:
    from partitioner.problem import Problem, TransferCost

__all__ = ["check_problem"]

Floats = npt.NDArray[np.float64]


def check_problem(p: Problem) -> None:
    """Check shapes, values and order.

    Raises
    ------
    ProblemError
        Naming the first that is wrong.
    """
    _check_shapes(p)
    _check_values(p)
    _check_structure(p)


def _check_shapes(p: Problem) -> None:
    n, m, t = len(p.op_names), len(p.option_names), len(p.consumers)
    if n == 0:
        raise ProblemError("the problem has no ops; it needs at least one")
    if m == 0:
        raise ProblemError("the problem has no placement options; name at least one device")
    if p.max_stages < 1:
        raise ProblemError(f"max_stages is {p.max_stages}; it must be at least 1")
    expected: dict[str, tuple[int, ...]] = {
        "time_s": (n, m),
        "allowed": (n, m),
        "host_s": (m,),
        "uses": (m, len(p.capacity)),
        "pool_of": (m,),
        "producer": (t,),
        "to_caller": (t,),
        "amount": (t,),
        "tensor_bytes": (t,),
        "bus_of": (m + 1, m + 1),
        "constant_bytes": (len(p.constant_ops),),
        "live_bytes": (n,),
        "replicas": (m,),
        "host_core": (m,),
    }
    for name, shape in expected.items():
        found = getattr(p, name).shape
        if found != shape:
            raise ProblemError(f"{name} has shape {found}; {n} ops, {m} options need {shape}")
    for name in ("send", "recv", "link"):
        cost: TransferCost = getattr(p, name)
        for part in (cost.base_s, cost.per_unit_s):
            if part.shape != (m + 1, m + 1):
                raise ProblemError(
                    f"{name} has shape {part.shape}; {m} options and the caller need {(m + 1,) * 2}"
                )


def _check_values(p: Problem) -> None:
    bad = np.argwhere(np.isnan(p.time_s) | (p.time_s < 0))
    if len(bad):
        op, option = bad[0]
        raise ProblemError(
            f"op {p.op_names[op]!r} takes {p.time_s[op, option]} s on {p.option_names[option]!r}; "
            "times must be zero or more (inf: cannot run there)"
        )
    for name in ("host_s", "amount", "tensor_bytes", "constant_bytes", "live_bytes"):
        _check_finite(name, getattr(p, name))
    for name in ("send", "recv", "link"):
        _check_finite(f"{name}.base_s", getattr(p, name).base_s)
        _check_finite(f"{name}.per_unit_s", getattr(p, name).per_unit_s)
    if np.isnan(p.pool_bytes).any() or (p.pool_bytes < 0).any():
        raise ProblemError(f"memory budgets must be zero or more, found {p.pool_bytes.tolist()}")
    if (p.uses < 0).any() or (p.capacity < 0).any():
        raise ProblemError("resource uses and capacities must be zero or more")
    if (p.replicas < 1).any():
        raise ProblemError(f"replicas must be one or more, found {p.replicas.tolist()}")
    for name in ("period_cap_s", "latency_cap_s"):
        cap = getattr(p, name)
        if not cap >= 0:
            raise ProblemError(f"{name} is {cap}; it must be zero or more (inf: no limit)")


def _check_structure(p: Problem) -> None:
    if p.contiguous and p.latency_model.value == "list":
        raise ProblemError(
            "the latency model is 'list', by which stages hand ops to and fro, and the problem is "
            "contiguous; set contiguous=False, or count latency as 'atomic' or 'serial'"
        )
    if ((p.pool_of < 0) | (p.pool_of >= len(p.pool_bytes))).any():
        raise ProblemError(f"pool_of must name one of {len(p.pool_bytes)} pools")
    for tensor, (producer, readers) in enumerate(zip(p.producer, p.consumers, strict=True)):
        if not -1 <= producer < p.n_ops:
            raise ProblemError(f"tensor {tensor} is made by op {producer}, which is not there")
        for reader in readers:
            if not producer < reader < p.n_ops:
                raise ProblemError(
                    f"tensor {tensor} of op {producer} is read by op {reader}; ops must be in a "
                    f"topological order and below {p.n_ops} (is there a cycle?)"
                )
    for group in (*p.constant_ops, *p.colocate, *p.same_option):
        if any(not 0 <= op < p.n_ops for op in group):
            raise ProblemError(f"{group} names ops that are not there (0..{p.n_ops - 1})")


def _check_finite(name: str, values: Floats) -> None:
    if not np.isfinite(values).all() or (values < 0).any():
        raise ProblemError(
            f"{name} holds a negative, NaN or infinite value; zero or more is needed"
        )
