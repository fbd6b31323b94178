"""A partitioned model: its plan, its stages, its pipeline, and what running it shows."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from partitioner.errors import InputError, OutputError, PlanError
from partitioner.graph import OpGraph
from partitioner.host import host_info
from partitioner.machine import Machine
from partitioner.plan import MOST_REPLICAS, Plan, Stage
from partitioner.plan_check import assignment_of, device_for, stage_tensors, verify_plan
from partitioner.plan_kernels import kernels_of, one_set_of_kernels
from partitioner.planning import Choice, make_plan
from partitioner.problem import Problem
from partitioner.profiling.measure import measure_whole
from partitioner.profiling.table import ProfileTable
from partitioner.refine import refine
from partitioner.report import Baseline, Measured, Outputs, Refinement, Report
from partitioner.report.outputs import compared
from partitioner.rewrite.split import split
from partitioner.runtime.build import BuildCache, Built
from partitioner.runtime.compare import run_each
from partitioner.runtime.deploy import pipeline_spec
from partitioner.runtime.measure import PipelineTimes
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.spec import PipelineSpec
from partitioner.runtime.trace import Trace
from partitioner.samples import random_items
from partitioner.trials import Trials

__all__ = ["Partition"]

Progress = Callable[[str, float], None]
Array = np.ndarray[Any, np.dtype[Any]]

_SAMPLES = 16
_OURS = "this plan"


def _silent(what: str, part: float) -> None:
    """Report progress to nobody."""


class Partition:
    """A model cut and placed, ready to build and run.

    Parameters
    ----------
    module : tvm.IRModule
        The grouped model; `main` calls one function an op.
    graph : OpGraph
        Its ops and tensors.
    machine : Machine
        The devices.
    profile : ProfileTable
        The times behind the plan.
    problem : Problem
        What was solved.
    choice : Choice
        The solution and the alternatives.
    plan : Plan
        What runs.
    builds : BuildCache
        Where compiled stages are kept, and by which records their kernels are made.
    refinement : Refinement, optional
        How the plan was found by the clock, where it was.
    """

    def __init__(
        self,
        module: Any,
        graph: OpGraph,
        machine: Machine,
        profile: ProfileTable,
        problem: Problem,
        choice: Choice,
        plan: Plan,
        builds: BuildCache,
        refinement: Refinement | None = None,
    ) -> None:
        verify_plan(plan, graph, machine)
        self.module = module
        self.graph = graph
        self.machine = machine
        self.profile = profile
        self.problem = problem
        self.choice = choice
        self.plan = plan
        self.builds = builds
        self.refinement = refinement
        # Corrected op times are no longer sums of what the profile says.
        op_sum_s = _op_sum(refinement.before if refinement else plan)
        self._report = Report(
            plan,
            host_info(),
            op_sum_s=op_sum_s,
            refinement=refinement,
            kernels=kernels_of(plan, graph, machine, builds),
        )

    @property
    def stages(self) -> tuple[Any, ...]:
        """One IRModule a stage; `main` takes what enters the stage and returns what leaves it."""
        return split(self.module, self.graph, assignment_of(self.plan, self.graph))

    @property
    def report(self) -> Report:
        """What is known so far: predicted figures, and measured ones after `measure`."""
        return self._report

    def build(self, plan: Plan | None = None) -> tuple[tuple[Built, ...], ...]:
        """Compile each stage for each of its placements; what was compiled before is reused.

        Raises
        ------
        BuildError
            If a stage cannot be compiled.
        """
        plan = plan or self.plan
        modules = split(self.module, self.graph, assignment_of(plan, self.graph))
        return tuple(
            tuple(
                self.builds.build(module, device_for(self.machine, placement))
                for placement in stage.placements
            )
            for stage, module in zip(plan.stages, modules, strict=True)
        )

    def spec(self, plan: Plan | None = None) -> PipelineSpec:
        """The workers of the plan, compiled."""
        plan = plan or self.plan
        return pipeline_spec(plan, self.graph, self.machine, self.build(plan))

    def pipeline(
        self,
        *,
        workers: Literal["process", "thread"] = "process",
        slots: int | None = None,
        trace: Trace | None = None,
    ) -> Pipeline:
        """Build the stages and start their workers.

        Parameters
        ----------
        workers, slots, trace
            As `partitioner.runtime.pipeline.Pipeline` takes them.

        Returns
        -------
        Pipeline
            Running; close it, or use it in a ``with`` statement.
        """
        self.machine.require_present()
        return Pipeline(self.spec(), workers, slots=slots, trace=trace)

    def reference(self, *, workers: Literal["process", "thread"] = "process") -> Pipeline:
        """The plan's own kernels in one VM, uncut: what its outputs must equal bitwise.

        Parameters
        ----------
        workers : {"process", "thread"}
            Where the VM runs.

        Raises
        ------
        PlanError
            If stages are compiled for different targets, or by schedules that tuning found for
            different numbers of threads, which one VM cannot hold.
        """
        if not self._one_set_of_kernels():
            raise PlanError(
                "the plan's stages are compiled for different targets or by different schedules, "
                "so there is no uncut module of the same kernels; compare with a tolerance instead"
            )
        return Pipeline(self.spec(self._uncut()), workers)

    def measure(
        self,
        items: Iterable[Mapping[str, Array]] | None = None,
        *,
        baselines: bool = False,
        check: bool = True,
        rounds: int = 5,
        seconds: float = 2.0,
        progress: Progress = _silent,
    ) -> Report:
        """Run the plan by the clock, check its outputs, and put it beside the predictions.

        Parameters
        ----------
        items : iterable of mapping, optional
            Inputs to run; used over and over. Default: seeded random ones.
        baselines : bool
            Whether the alternatives run too, in turn with the plan.
        check : bool
            Whether outputs are compared with the uncut model's first.
        rounds : int
            How often each runs, each time in fresh processes.
        seconds : float
            Measuring time of each in a round.
        progress : callable
            Told what is done, and how much of it, from 0 to 1.

        Returns
        -------
        Report
            Also kept as `report`.

        Raises
        ------
        OutputError
            If outputs are not the uncut model's.
        InputError
            If there are no items, no rounds, or an item does not fit the model.
        """
        self.machine.require_present()
        samples = list(items) if items is not None else self.samples(_SAMPLES)
        if not samples or rounds < 1:
            raise InputError(
                f"measure: found {len(samples)} items and {rounds} rounds, at least one of each "
                "is needed"
            )
        outputs = self._report.outputs
        if check:
            progress("checking outputs", 0.0)
            outputs = self.check(samples)
            if not outputs.right:
                raise OutputError(
                    f"{self.graph.name}: outputs of the {self.plan.name} plan differ from the "
                    f"uncut model's by up to {outputs.max_abs_diff:g}, at most "
                    f"{outputs.tolerance:g} is right; do not use this plan, and report the model"
                )
        plans = {_OURS: self.plan}
        if baselines:
            mine = self.plan.assignment_hash
            others = self._alternatives()
            plans |= {name: plan for name, plan in others if plan.assignment_hash != mine}
        specs = {name: self.spec(plan) for name, plan in plans.items()}
        expected = {
            name: plan.predicted.period_s if plan.predicted else 0.01
            for name, plan in plans.items()
        }
        alone = []
        times: dict[str, list[PipelineTimes]] = {name: [] for name in plans}
        for turn in range(rounds):
            say = partial(_say, progress, turn, rounds)
            say("each stage alone")
            alone.append(self.time_stages(seconds))
            # In any order, so that nobody always runs on a machine that has just rested.
            found = run_each(
                dict(random.sample(list(specs.items()), len(specs))),
                lambda number: samples[number % len(samples)],
                expected_s=expected,
                seconds=seconds,
                progress=say,
            )
            for name, one in found.items():
                times[name].append(one)
        ours = times.pop(_OURS)
        self._report = replace(
            self._report,
            stage_measured_s=statistics.median(alone),
            measured=_measured(ours),
            baselines=tuple(
                _baseline(name, theirs, ours, plans[name]) for name, theirs in times.items()
            ),
            outputs=outputs,
        )
        return self._report

    def refined(
        self,
        rounds: int,
        *,
        strategy: str = "best",
        replicas: int = MOST_REPLICAS,
        time_limit_s: float = 10.0,
        repeats: int = 3,
        seconds: float = 1.0,
        progress: Progress = _silent,
    ) -> Partition:
        """The partition with the plan that is best by the clock, among those predicted best.

        Parameters
        ----------
        rounds, strategy, replicas, time_limit_s, repeats
            As `partitioner.refine.refine` takes them.
        seconds : float
            Measuring time of a plan in a repeat.
        progress : callable
            Told what is done, and how much of it, from 0 to 1.

        Returns
        -------
        Partition
            Of the corrected problem; `refinement` says what was tried.

        Raises
        ------
        InputError, InfeasibleError
            As `partitioner.refine.refine`.
        """
        self.machine.require_present()
        found = refine(
            self.problem,
            self.choice,
            self.graph,
            self.machine,
            self.profile,
            Trials(self.spec, self.samples(_SAMPLES), seconds=seconds),
            rounds=rounds,
            strategy=strategy,
            replicas=replicas,
            time_limit_s=time_limit_s,
            repeats=repeats,
            progress=progress,
        )
        return Partition(
            self.module,
            self.graph,
            self.machine,
            self.profile,
            found.problem,
            found.choice,
            found.plan,
            self.builds,
            found.refinement,
        )

    def samples(self, count: int, seed: int = 0) -> list[dict[str, Array]]:
        """Seeded random inputs."""
        return list(random_items(self.graph, count, seed))

    def check(self, items: Sequence[Mapping[str, Array]]) -> Outputs:
        """Compare the pipeline's outputs with the uncut model's on each item.

        They must be bitwise equal, unless stages are compiled for different targets or by
        different schedules: then the uncut model is compiled as the first stage is, and rounding
        may differ.
        """
        with self.pipeline() as pipe:
            ours = list(pipe.map(items))
        with Pipeline(self.spec(self._uncut())) as uncut:
            theirs = list(uncut.map(items))
        return compared(ours, theirs, bitwise=self._one_set_of_kernels())

    def time_stages(self, seconds: float = 2.0) -> float:
        """Period from each built stage timed alone on its cores in a fresh process.

        Modelled copies are added, which no stage makes while it is alone.
        """
        borders = stage_tensors(self.graph, assignment_of(self.plan, self.graph))
        periods = []
        for stage, built, (entering, _) in zip(
            self.plan.stages, self.build(), borders, strict=True
        ):
            inputs = [self.graph.tensors[tensor] for tensor in entering]
            times = []
            for placement, compiled in zip(stage.placements, built, strict=True):
                device = device_for(self.machine, placement)
                alone = measure_whole(compiled, inputs, device, seconds=seconds)
                times.append(alone.median_s + (placement.copy_s or 0.0))
            periods.append(_together(times))
        return max(periods)

    def _one_set_of_kernels(self) -> bool:
        return one_set_of_kernels(self.plan, self.graph, self.machine, self.builds)

    def _uncut(self) -> Plan:
        """All ops in one stage, on the first placement."""
        place = replace(self.plan.stages[0].placements[0], share=1.0)
        whole = Stage(tuple(op.name for op in self.graph.ops), (place,))
        return replace(self.plan, name="uncut", stages=(whole,), predicted=None)

    def _alternatives(self) -> list[tuple[str, Plan]]:
        return [
            (
                name,
                make_plan(
                    self.graph,
                    self.machine,
                    self.profile,
                    self.problem,
                    replace(self.choice, solution=solution),
                ),
            )
            for name, solution in self.choice.others
        ]


def _say(progress: Progress, turn: int, rounds: int, what: str) -> None:
    progress(f"round {turn + 1} of {rounds}: {what}", turn / rounds)


def _op_sum(plan: Plan) -> float | None:
    if plan.predicted is None:
        return None
    return max(_together([p.compute_s or 0.0 for p in stage.placements]) for stage in plan.stages)


def _together(times: Sequence[float]) -> float:
    """Period of replicas that take `times` each: 1 / sum(1 / T)."""
    return 1.0 / sum(1.0 / max(time, 1e-12) for time in times)


def _measured(times: Sequence[PipelineTimes]) -> Measured:
    periods = np.array([one.period_s for one in times])
    low, middle, high = np.percentile(periods, [25, 50, 75])
    spread = float((high - low) / middle) if len(times) > 1 else times[0].spread
    return Measured(
        period_s=float(middle),
        latency_s=statistics.median(one.latency_s for one in times),
        items=times[0].items,
        spread=spread,
    )


def _baseline(
    name: str, theirs: Sequence[PipelineTimes], ours: Sequence[PipelineTimes], plan: Plan
) -> Baseline:
    ratios = [a.period_s / b.period_s for a, b in zip(theirs, ours, strict=True)]
    predicted = plan.predicted
    return Baseline(
        name=name,
        period_s=statistics.median(one.period_s for one in theirs),
        latency_s=statistics.median(one.latency_s for one in theirs),
        predicted_period_s=None if predicted is None or predicted.estimated else predicted.period_s,
        ratio=statistics.median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
    )
