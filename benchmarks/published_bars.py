"""What is known of the published instances, and the bars that results are held to.

Best known values and bounds, and who proved them: the table of figures to beat in the README that
comes with the instances (the authors' program, a plain CP-SAT model, literature). They are kept as
printed there, because equality means: equal in all digits printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

GIGABYTE = 1e9
# A bound this many times another is clearly better.
CLEARLY = 1.25


@dataclass(frozen=True)
class Known:
    """Best known value and bound, as printed; no bound: the value is proven optimal or unknown."""

    value: str
    bound: str = ""
    proven: bool = False

    @property
    def figure(self) -> float:
        return float(self.value)

    @property
    def slack(self) -> float:
        """Half a unit in the last printed place."""
        return 0.5 * 10.0 ** -len(self.value.partition(".")[2]) * (1 + 1e-9)

    @property
    def gap(self) -> float:
        return (self.figure - float(self.bound)) / self.figure if self.bound else 0.0


@dataclass(frozen=True)
class Run:
    """One instance solved.

    `checked` is the value of the assignment by the format's own definition, `broken` the rules
    of the format that it breaks, `critical_path` what no latency is below.
    """

    name: str
    status: str
    objective: float
    bound: float
    checked: float
    broken: tuple[str, ...]
    critical_path: float
    solve_s: float
    process_s: float
    peak_bytes: float
    known: Known

    @property
    def proven(self) -> bool:
        return self.status == "OPTIMAL"

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.bound / self.objective)

    @property
    def valid(self) -> bool:
        """Whether the format agrees with the value, or finds it better than was said."""
        return not self.broken and self.checked <= self.objective * (1 + 1e-9)

    @property
    def matches(self) -> bool:
        """Whether it is at least as good as the best known."""
        return self.valid and self.checked <= self.known.figure + self.known.slack

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Bar:
    """One bar, whether it is met, and by which figures."""

    text: str
    met: bool
    found: str

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'MISSED'}  {self.text}: {self.found}"


def _proven(value: str) -> Known:
    return Known(value, proven=True)


KNOWN: Mapping[str, Mapping[str, Known]] = {
    "throughput": {
        "LayerGraphs/bert24": _proven("17.7899"),
        "LayerGraphs/gnmt": _proven("32.9107"),
        "LayerGraphs/resnet50": _proven("33.7747"),
        "LayerGraphs/inceptionv3": _proven("51.552"),
        "OperatorGraphs/bert_l-3": _proven("27.9186"),
        "OperatorGraphs/bert_l-6": _proven("29.5795"),
        "OperatorGraphs/bert_l-12": _proven("147.478"),
        "OperatorGraphs/resnet50": _proven("124.349"),
    },
    "free": {
        "LayerGraphs/bert24": Known("17.715", "17.705"),
        "LayerGraphs/gnmt": _proven("31.687"),
        "LayerGraphs/resnet50": Known("33.551", "33.054"),
        "LayerGraphs/inceptionv3": Known("51.712", "51.011"),
        "OperatorGraphs/bert_l-3": _proven("21.908"),
        "OperatorGraphs/bert_l-6": Known("28.327", "26.414"),
        "OperatorGraphs/bert_l-12": Known("130.039", "109.355"),
        "OperatorGraphs/resnet50": _proven("124.353"),
    },
    # Bounds: the better of the known one and a critical path, as far as either is known.
    "latency": {
        "LayerGraphs/bert24": _proven("100.218"),
        "LayerGraphs/gnmt": Known("225.651", "182.4"),
        "LayerGraphs/resnet50": Known("1014.927", "187.5"),
        "LayerGraphs/inceptionv3": Known("865.519"),
        "OperatorGraphs/bert_l-3": _proven("408.471"),
        "OperatorGraphs/bert_l-6": Known("439.521", "376.55"),
        "OperatorGraphs/bert_l-12": Known("867.839"),
        "OperatorGraphs/resnet50": Known("839.536", "289.9"),
    },
}


def _throughput(runs: Sequence[Run]) -> Iterator[Bar]:
    yield _all("proven optimal", runs, lambda r: r.proven, lambda r: f"gap {r.gap:.3%}")
    yield _all(
        "equal to the known optimum",
        runs,
        lambda r: r.valid and abs(r.checked - r.known.figure) <= r.known.slack,
        lambda r: f"{r.checked:.6g} for {r.known.value}",
    )
    yield _slowest(runs, 5.0)
    total, processes = sum(run.solve_s for run in runs), sum(run.process_s for run in runs)
    found = f"{total:.1f} s, {processes:.1f} s with the start of Python"
    yield Bar("all in at most 15 s", total <= 15, found)
    yield _memory(runs)


def _free(runs: Sequence[Run]) -> Iterator[Bar]:
    yield _all(
        "at least as good as the best known",
        runs,
        lambda r: r.matches,
        lambda r: f"{r.checked:.6g} for {r.known.value}",
    )
    closed = [run for run in runs if run.known.proven]
    yield _all(
        "gnmt, resnet50 operator and bert_l-3 proven",
        closed,
        lambda r: r.proven,
        lambda r: f"gap {r.gap:.3%}",
    )
    yield _all(
        "gap of the others at most half the known",
        [run for run in runs if not run.known.proven],
        lambda r: r.gap <= r.known.gap / 2,
        lambda r: f"{r.gap:.3%} for {r.known.gap:.3%}",
    )


def _latency(runs: Sequence[Run]) -> Iterator[Bar]:
    yield _all(
        "bert24 and bert_l-3 proven within 20 s",
        [run for run in runs if run.known.proven],
        lambda r: r.proven and r.solve_s <= 20,
        lambda r: f"{r.status} in {r.solve_s:.1f} s",
    )
    yield _all(
        "best known matched or beaten",
        runs,
        lambda r: r.matches,
        lambda r: f"{r.checked:.6g} for {r.known.value}",
    )
    named = ("bert24", "bert_l-3", "bert_l-6", "bert_l-12", "gnmt")
    yield _all(
        "bound at least 0.6 of the best value within 120 s",
        [run for run in runs if run.name.partition("/")[2] in named],
        lambda r: r.bound >= 0.6 * min(r.checked, r.known.figure) and r.solve_s <= 120,
        lambda r: f"{r.bound / min(r.checked, r.known.figure):.3f}",
    )
    hard = [run for run in runs if run.name.partition("/")[2] in ("resnet50", "inceptionv3")]
    figures = (
        f"{r.name} {r.bound:.6g} for a path of {r.critical_path:.6g}, {1 - r.gap:.3f} of the value"
        for r in hard
    )
    yield Bar(
        f"bounds of both resnet50 and inceptionv3 at least {CLEARLY:g} times a critical path alone",
        bool(hard) and all(run.bound >= CLEARLY * run.critical_path for run in hard),
        "; ".join(figures) or "not run",
    )


BARS: Mapping[str, Callable[[Sequence[Run]], Iterator[Bar]]] = {
    "throughput": _throughput,
    "free": _free,
    "latency": _latency,
}
"""The bars of each kind of run."""


def _all(
    text: str, runs: Sequence[Run], good: Callable[[Run], bool], figure: Callable[[Run], str]
) -> Bar:
    """A bar for each run; the figures of those that miss it."""
    missed = [f"{run.name} {figure(run)}" for run in runs if not good(run)]
    found = f"{len(runs) - len(missed)} of {len(runs)}"
    return Bar(text, bool(runs) and not missed, "; ".join([found, *missed]))


def _slowest(runs: Sequence[Run], most_s: float) -> Bar:
    slowest = max(runs, key=lambda run: run.solve_s)
    return Bar(
        f"each in at most {most_s:g} s",
        slowest.solve_s <= most_s,
        f"slowest {slowest.name}, {slowest.solve_s:.2f} s",
    )


def _memory(runs: Sequence[Run]) -> Bar:
    largest = max(runs, key=lambda run: run.peak_bytes)
    return Bar(
        "under 1 GB",
        largest.peak_bytes < GIGABYTE,
        f"most {largest.name}, {largest.peak_bytes / GIGABYTE:.2f} GB",
    )
