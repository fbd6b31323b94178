"""What plans could make of an RK3399, by published times of whole networks, in simulated time.

Two big cores and four little ones. For each network: the faster of the two clusters as published
(profiles/rk3399/published.toml says by whom and how), the stages without replicas that the
partitioner finds, and its best plan. Op times are guesses that add up to the published ones.

Published times are of one cluster while the other rests; `--contention` says what a stage takes
while all others are busy, over that.

    python examples/rk3399.py [--networks squeezenet ...] [--contention 1.2] [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partitioner import Machine, Partition, auto_partition, import_model
from partitioner.files import write_json
from partitioner.plan import Plan
from partitioner.plan_table import format_seconds, table
from partitioner.runtime.build import origin_of
from partitioner.simulation import Line, simulate
from partitioner.simulation.published import PublishedTimes

FOLDER = Path(__file__).parents[1] / "profiles" / "rk3399"
JITTER, LOAD, ITEMS = 0.1, 0.8, 1500
HEADERS = ("network", "plan", "stages", "period", "rate / published", "latency p50", "p99")


def main(argv: Sequence[str] | None = None) -> int:
    published = PublishedTimes.load(FOLDER / "published.toml")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = tuple(published.network_s)
    parser.add_argument("--networks", nargs="+", default=known, choices=known)
    parser.add_argument("--contention", type=float, default=1.0)
    parser.add_argument("--json", metavar="FILE", type=Path)
    arguments = parser.parse_args(argv)
    board = Machine.load(FOLDER / "machine.toml")
    rows: list[dict[str, Any]] = []
    for network in arguments.networks:
        grouped = import_model(f"zoo:{network}")
        times = published.profile(network, grouped.graph, board, origin_of(board))
        options = {"profile": times, "allow_foreign_profile": True, "progress": quiet}
        alone = min(published.network_s[network].items(), key=lambda pair: pair[1])
        stages = auto_partition(grouped, board, strategy="pipeline", replicas=1, **options)
        best = auto_partition(grouped, board, **options)
        (device, cores), alone_s = alone
        rows.append(
            {
                "network": network,
                "plan": "published",
                "stages": f"{cores} {device}",
                "period_s": alone_s,
                "rate": 1.0,
                "p50_s": alone_s,
                "p99_s": None,
            }
        )
        rows += [simulated(network, "stages", stages, alone_s, arguments.contention)]
        rows += [simulated(network, "best", best, alone_s, arguments.contention)]
    print(table(HEADERS, [cells(row) for row in rows]))
    print(
        f"published: {published.conditions}; {published.source}\n"
        f"the rest simulated: times spread by {JITTER:.0%}, {arguments.contention:g} times as long "
        f"while all other cores are busy, latencies at {LOAD:.0%} of the rate"
    )
    if arguments.json:
        write_json(arguments.json, {"source": published.source, "rows": rows})
    return 0


def simulated(
    network: str, name: str, part: Partition, alone_s: float, contention: float
) -> dict[str, Any]:
    line = Line.priced(part.plan, part.graph, part.machine, part.profile)
    full = simulate(line, items=ITEMS, jitter=JITTER, contention=contention)
    at_load = simulate(
        line,
        items=ITEMS,
        jitter=JITTER,
        contention=contention,
        arrivals=full.period_s / LOAD,
    )
    return {
        "network": network,
        "plan": name,
        "stages": in_words(part.plan),
        "period_s": full.period_s,
        "rate": alone_s / full.period_s,
        "p50_s": at_load.latency.p50_s,
        "p99_s": at_load.latency.p99_s,
    }


def in_words(plan: Plan) -> str:
    """Stages as ``2 big | 4 little``, replicas as ``2 big + 4 little``."""
    return " | ".join(
        " + ".join(f"{len(place.cpus)} {place.device}" for place in stage.placements)
        for stage in plan.stages
    )


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["network"],
        row["plan"],
        row["stages"],
        format_seconds(row["period_s"]),
        f"{row['rate']:.2f}",
        format_seconds(row["p50_s"]),
        format_seconds(row["p99_s"]),
    )


def quiet(what: str, part: float) -> None:
    """Guessing takes no time worth showing."""


if __name__ == "__main__":
    sys.exit(main())
