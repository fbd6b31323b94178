from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from partitioner.graph import OpGraph
from partitioner.lowering import Choice
from partitioner.machine import Device, Machine
from partitioner.plan import Plan
from partitioner.plan_kernels import kernels_of, one_set_of_kernels
from partitioner.runtime.build import Recorded

TILE, OTHER_TILE = Choice(tile=(1, 2)), Choice(tile=(2, 2))
TRACE, OTHER_TRACE = Choice(trace="[[], []]"), Choice(trace="[[], [1]]")


class Builds:
    """Stands for a cache of builds: what its records say, by device and signature."""

    def __init__(self, choices: Mapping[tuple[str, str], Choice]) -> None:
        self._choices = choices

    def recorded(self, signatures: Iterable[str], device: Device) -> dict[str, Recorded]:
        return {
            each: Recorded(self._choices[device.name, each], "d", f"of {device.name}")
            for each in signatures
            if (device.name, each) in self._choices
        }


# The plan runs k0 and k1 on cores:0, k2 and k3 on cores:1.


def test_bits_are_the_uncut_models_unless_a_stage_has_another_schedule(
    plan: Plan, graph: OpGraph, machine: Machine
) -> None:
    def same(choices: dict[tuple[str, str], Choice]) -> bool:
        builds: Any = Builds(choices)
        return one_set_of_kernels(plan, graph, machine, builds)

    first, second = "cores:0", "cores:1"
    assert same({})
    assert same({(first, "k2"): TILE, (second, "k2"): OTHER_TILE, (second, "k3"): TILE})
    assert same({(first, "k2"): TRACE, (second, "k2"): TRACE})
    assert not same({(second, "k2"): TRACE})
    assert not same({(first, "k2"): TRACE})
    assert not same({(first, "k2"): TRACE, (second, "k2"): OTHER_TRACE})
    # The uncut model is built as the first stage is, and the second has no k0.
    assert same({(first, "k0"): TRACE, (second, "k1"): TRACE})


def test_ops_are_counted_where_they_run(plan: Plan, graph: OpGraph, machine: Machine) -> None:
    builds: Any = Builds(
        {("cores:0", "k1"): TILE, ("cores:1", "k1"): TILE, ("cores:1", "k2"): TRACE}
    )
    made = kernels_of(plan, graph, machine, builds)
    assert (made.ops, made.recorded) == (4, 2)
    assert made.sources == (("of cores:0", 1), ("of cores:1", 1))
