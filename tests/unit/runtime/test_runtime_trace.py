import json
import math

import pytest
from runtime_runners import chain, numbers, runner

from partitioner.errors import InputError
from partitioner.runtime.channel import Arena
from partitioner.runtime.measure import measure
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.trace import Log, LogLayout, Records, Trace, stage_times


@pytest.fixture
def log():
    layout = LogLayout(128, 4)
    arena = Arena(128 + layout.nbytes)
    yield Log(layout, arena)
    arena.close_fd()


def write(log, item, begin=0):
    log.finish(item, begin, begin + 1, begin + 11, begin + 13, begin + 16)


def test_log_keeps_the_latest(log):
    assert log.read().shape == (0, 6)
    for item in range(3):
        write(log, item)
    assert log.read()[:, 0].tolist() == [0, 1, 2]
    for item in range(3, 10):
        write(log, item)
    # The oldest of a full ring is left out, since it may be about to be overwritten.
    assert log.read()[:, 0].tolist() == [7, 8, 9]


def test_log_knows_what_is_worked_on(log):
    assert log.current() is None
    log.start(0)
    assert log.current() == 0
    write(log, 0)
    assert log.current() is None


def test_stage_times_are_medians_over_replicas(log):
    for begin in (0, 100, 200):
        write(log, 0, begin * 10**9)
    times = stage_times([Records(0, 0, "a", log.read()), Records(0, 1, "a", log.read())])
    assert (times.wait_s, times.run_s) == (1e-9, 10e-9)
    assert (times.blocked_s, times.send_s) == (2e-9, 3e-9)
    assert times.busy_s == pytest.approx(13e-9)


def test_stage_times_before_the_first_item():
    with Pipeline(chain(runner("passing")), "thread") as pipe:
        assert math.isnan(pipe.stage_busy_s()[0])


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_chrome_trace_of_a_run(kind, tmp_path):
    trace = Trace(items=100)
    path = tmp_path / "run.json"
    with Pipeline(chain(runner("slow", 0.002), runner("passing")), kind, trace=trace) as pipe:
        list(pipe.map(numbers(20)))
        trace.write_chrome(path)
        during = path.read_text()
    trace.write_chrome(path)
    assert path.read_text() == during
    assert list(tmp_path.iterdir()) == [path]
    events = json.loads(during)["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"stage 0: s0", "stage 1: s1", "replica 0"}
    runs = [event for event in events if event["name"] == "run"]
    assert sorted((run["pid"], run["args"]["item"]) for run in runs) == [
        (stage, item) for stage in range(2) for item in range(20)
    ]
    assert all(run["dur"] >= 2000 for run in runs if run["pid"] == 0)
    # Clocks compare across processes: an item leaves a stage before it is run in the next.
    begin = {(run["pid"], run["args"]["item"]): run["ts"] for run in runs}
    end = {(run["pid"], run["args"]["item"]): run["ts"] + run["dur"] for run in runs}
    assert all(end[0, item] <= begin[1, item] for item in range(20))


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path):
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(InputError, match="taken: cannot write"):
        Trace().write_chrome(target)
    assert list(tmp_path.iterdir()) == [target]


def test_measure_counts_what_it_says():
    with Pipeline(chain(runner("slow", 0.005)), "thread", slots=2) as pipe:
        times = measure(pipe, lambda number: numbers(1, start=number)[0], items=30, warmup=2)
        assert times.items == 30
        assert 0.005 <= times.period_s < 0.05
        assert 0.005 <= times.latency_s < 0.05
        assert times.spread >= 0.0
        with pytest.raises(InputError, match="at least 2"):
            measure(pipe, lambda number: number, items=1)
