from __future__ import annotations

from pathlib import Path

import pytest

from partitioner.cost import build_problem, options_of
from partitioner.errors import ProfileError
from partitioner.graph import OpGraph
from partitioner.machine import Machine
from partitioner.planning import choose, make_plan
from partitioner.profiling.table import OpKey, Origin
from partitioner.simulation import Line, simulate
from partitioner.simulation.published import PublishedTimes

FOLDER = Path(__file__).parents[2] / "profiles" / "rk3399"


@pytest.fixture(scope="module")
def published() -> PublishedTimes:
    return PublishedTimes.load(FOLDER / "published.toml")


@pytest.fixture(scope="module")
def board() -> Machine:
    return Machine.load(FOLDER / "machine.toml")


def test_the_file_says_where_its_times_are_from(published: PublishedTimes, board: Machine) -> None:
    assert published.machine == board.name
    assert "Tencent/ncnn" in published.source
    assert "ncnn" in published.conditions
    assert set(published.network_s) == {"squeezenet", "shufflenet", "inception_v1", "resnet50"}


def test_published_numbers_of_cores_are_exact_and_others_between(published: PublishedTimes) -> None:
    assert published.time_s("squeezenet", "big", 2) == pytest.approx(0.05306)
    assert published.time_s("squeezenet", "little", 4) == pytest.approx(0.06035)
    # Twice the cores between 167.61 ms on one and 60.35 ms on four: the geometric mean.
    two = published.time_s("squeezenet", "little", 2)
    assert two == pytest.approx((0.16761 * 0.06035) ** 0.5)
    assert 0.06035 < published.time_s("squeezenet", "little", 3) < two


@pytest.mark.parametrize(
    ("network", "device", "cores"),
    [("squeezenet", "big", 3), ("squeezenet", "gpu", 1), ("lenet", "big", 1)],
)
def test_what_is_not_published(
    published: PublishedTimes, network: str, device: str, cores: int
) -> None:
    with pytest.raises(ProfileError, match=rf"no time of '{network}' on {cores} cores"):
        published.time_s(network, device, cores)


def test_ops_add_up_to_what_is_published(
    published: PublishedTimes, board: Machine, graph: OpGraph, origin: Origin
) -> None:
    table = published.profile("resnet50", graph, board, origin)
    assert table.estimated
    assert "published" in table.notes[-1]
    for option in options_of(board):
        keys = [OpKey(op.signature, option.name, option.threads) for op in graph.ops]
        whole_s = published.time_s("resnet50", option.name, option.threads)
        assert sum(table.time_s(key) for key in keys) == pytest.approx(whole_s)
        assert {table.ops[key].runs for key in keys} == {0}


def test_a_board_is_simulated_on_published_times(
    published: PublishedTimes, board: Machine, graph: OpGraph, origin: Origin
) -> None:
    table = published.profile("squeezenet", graph, board, origin)
    problem = build_problem(graph, table, board)
    plan = make_plan(graph, board, table, problem, choose(problem, time_limit_s=5.0))
    assert plan.predicted is not None
    assert plan.predicted.estimated
    shown = simulate(Line.priced(plan, graph, board, table), items=2000)
    assert shown.period_s == pytest.approx(plan.predicted.period_s, rel=0.01)
    # Better than the best published single cluster.
    assert shown.period_s < 0.05306


@pytest.mark.parametrize(
    "text",
    [
        "machine = [",
        "machine = 'x'",
        "machine = 'x'\nsource = 's'\nconditions = 'c'\n[network.a]\nbig = { one = 3.0 }",
        "machine = 'x'\nsource = 's'\nconditions = 'c'\n[network.a]\nbig = { 1 = -3.0 }",
        "machine = 'x'\nsource = 's'\nconditions = 'c'\nnetwork = 3",
    ],
)
def test_files_that_are_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "published.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError, match="not published times"):
        PublishedTimes.load(path)
    with pytest.raises(ProfileError, match="cannot read published times"):
        PublishedTimes.load(tmp_path / "absent.toml")
