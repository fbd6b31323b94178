import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from runtime_runners import chain, numbers, runner

from partitioner.errors import BuildError, DeviceError, PartitionerError, StageError
from partitioner.runtime.affinity import allowed_cpus, pin, preserved_affinity
from partitioner.runtime.pipeline import Pipeline

KINDS = ("process", "thread")
WITHIN_S = 30.0


def children():
    """Process ids of this process's children."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def stage_threads():
    names = ("stage-", "pipeline-")
    return [one for one in threading.enumerate() if one.name.startswith(names)]


@pytest.fixture(autouse=True)
def nothing_left():
    before, shm = children(), set(Path("/dev/shm").iterdir())
    mask = os.sched_getaffinity(0)
    yield
    assert children() <= before
    assert not stage_threads()
    assert set(Path("/dev/shm").iterdir()) <= shm
    assert os.sched_getaffinity(0) == mask


def gone(pid):
    """Whether a process has ended, be it waited for or not."""
    return state(pid) in "ZX"


def state(pid):
    """What a process's main thread does: R runs, S waits, Z has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return status.rpartition(")")[2].split()[0]


def eventually(holds):
    until = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_reaches_the_caller_with_stage_and_item(kind):
    pipe = Pipeline(chain(runner("passing"), runner("failing", 13), runner("passing")), kind)
    results = pipe.map(numbers(100))
    got = []
    with pytest.raises(StageError, match=r"stage 1 \(s1\), replica 0, item 13") as caught:
        got.extend(int(result[0]) for result in results)
    assert (caught.value.stage, caught.value.item) == (1, 13)
    assert "ZeroDivisionError: met 13" in str(caught.value)
    assert "runtime_runners.py" in str(caught.value), "the worker's traceback is missing"
    assert got == list(range(len(got)))
    assert kind == "thread" or not children()
    for again in (lambda: pipe(numbers(1)[0]), lambda: pipe.submit(numbers(1)[0])):
        with pytest.raises(StageError, match="shut down"):
            again()


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_reaches_every_future(kind):
    pipe = Pipeline(chain(runner("failing", 3)), kind)
    futures = [pipe.submit(item) for item in numbers(5)]
    for future in futures[3:]:
        with pytest.raises(StageError, match="item 3") as caught:
            future.result(WITHIN_S)
        assert caught.value.item == 3
    assert [int(future.result(0)[0]) for future in futures[:3]] == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_that_are_not_what_was_promised(kind):
    spec = chain(runner("wrong_dtype"), dtype="float32")
    with pytest.raises(StageError, match=r"returned \[float16\[4\]\], needed \[t1: float32\[4\]\]"):
        Pipeline(spec, kind)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies_at_work_is_noticed(number):
    pipe = Pipeline(chain(runner("passing"), runner("hanging", 4)))
    futures = [pipe.submit(item) for item in numbers(6)]
    assert int(futures[3].result(WITHIN_S)[0]) == 3
    eventually(lambda: pipe._engine.crew.at_work(1) == 4)
    start = time.monotonic()
    os.kill(pipe.pids[1], number)
    with pytest.raises(StageError, match=rf"item 4: .*{signal.Signals(number).name}") as caught:
        futures[5].result(WITHIN_S)
    assert (caught.value.stage, caught.value.item) == (1, 4)
    assert time.monotonic() - start < 5.0
    assert all(gone(pid) for pid in pipe.pids)


def test_a_worker_that_dies_idle_is_noticed_by_the_next_item():
    pipe = Pipeline(chain(runner("passing"), runner("passing")))
    pipe(numbers(1)[0])
    os.kill(pipe.pids[0], signal.SIGKILL)
    with pytest.raises(StageError, match="SIGKILL") as caught:
        pipe(numbers(1)[0])
    assert (caught.value.stage, caught.value.item) == (0, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (runner("refusing"), StageError, r"stage 1 \(s1\), replica 0: .* OSError: no such artif"),
        (runner("absent"), BuildError, "'runtime_runners:absent' cannot be loaded"),
        (runner("summing", [1, 2], [4]), StageError, r"returned \[int64\[4\], int64\[4\]\]"),
    ],
)
def test_a_worker_that_cannot_start(kind, bad, error, message):
    with pytest.raises(error, match=message):
        Pipeline(chain(runner("passing"), bad, runner("passing")), kind)


def test_a_worker_that_hangs_at_its_start():
    with pytest.raises(StageError, match="not ready after 2 s"):
        Pipeline(chain(runner("hanging", 0)), start_timeout_s=2.0)


@pytest.mark.skipif(len(allowed_cpus()) < 2, reason="needs two CPUs")
def test_a_thread_outside_the_promised_cpus_is_an_error():
    with pytest.raises(DeviceError, match=r"stage 0 \(s0\).*threads may run outside CPUs"):
        Pipeline(chain(runner("straying", sorted(allowed_cpus()))))


@pytest.mark.skipif(len(allowed_cpus()) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("kind", KINDS)
def test_the_callers_own_affinity_is_not_the_workers(kind):
    callers, workers = sorted(allowed_cpus())[:2]
    with preserved_affinity():
        pin([callers])
        with Pipeline(chain(runner("affinity_now"), cpus=(workers,)), kind) as pipe:
            assert pipe(numbers(1)[0]).tolist() == [workers] * 4
        assert os.sched_getaffinity(0) == {callers}


@pytest.mark.parametrize("kind", KINDS)
def test_cpus_that_do_not_exist(kind):
    with pytest.raises(DeviceError, match=r"\[100000\], but this process may use"):
        Pipeline(chain(runner("passing"), cpus=(100_000,)), kind)


HERE = str(Path(__file__).parent)
SCRIPT = f"""
import sys, time
sys.path.insert(0, {HERE!r})
from runtime_runners import chain, numbers, runner
from partitioner.runtime.pipeline import Pipeline
pipe = Pipeline(chain(runner("passing"), runner("hanging", 2)))
print(*pipe.pids, flush=True)
"""


def script(rest):
    """Start a caller in its own process; no main guard, as in a user's first script."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2, process.communicate()
    return process, pids


def test_a_killed_caller_leaves_no_workers():
    process, pids = script("list(pipe.map(numbers(9)))")
    assert not any(gone(pid) for pid in pids)
    process.kill()
    process.communicate(timeout=WITHIN_S)
    eventually(lambda: all(gone(pid) for pid in pids))


def test_a_caller_that_just_ends_leaves_no_workers():
    process, pids = script("pipe(numbers(1)[0]); results = pipe.map(numbers(9)); next(results)")
    _, complaints = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0
    assert not complaints
    assert all(gone(pid) for pid in pids)


def test_ctrl_c_ends_a_call_and_everything_else():
    process, pids = script(
        "try:\n"
        "    for y in pipe.map(numbers(9)): print(int(y[0]), flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    from pathlib import Path\n"
        "    left = [pid for pid in pipe.pids if Path(f'/proc/{pid}').exists()]\n"
        "    print('interrupted', left, flush=True)\n"
    )
    assert [process.stdout.readline().strip() for _ in range(2)] == ["0", "1"]
    eventually(lambda: state(process.pid) == "S")  # It waits in `map`, not in its own loop.
    # As a terminal does: the whole group is told.
    for pid in (*pids, process.pid):
        os.kill(pid, signal.SIGINT)
    out, complaints = process.communicate(timeout=WITHIN_S)
    assert out.strip() == "interrupted []"
    assert not complaints
    assert all(gone(pid) for pid in pids)


def test_a_fork_of_the_caller_does_not_close_the_pipeline():
    with Pipeline(chain(runner("passing"))) as pipe:
        pid = os.fork()
        if pid == 0:
            pipe.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert int(pipe(numbers(1, start=8)[0])[0]) == 8


def test_a_pipeline_outlives_the_thread_that_opened_it():
    opened = []
    thread = threading.Thread(target=lambda: opened.append(Pipeline(chain(runner("passing")))))
    thread.start()
    thread.join(WITHIN_S)
    with opened[0] as pipe:
        assert int(pipe(numbers(1, start=8)[0])[0]) == 8


def test_closing_while_others_wait():
    pipe = Pipeline(chain(runner("hanging", 1)))
    told = []

    def work():
        try:
            list(pipe.map(numbers(5)))
        except PartitionerError as error:
            told.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: pipe._engine.in_flight >= 3)
    pipe.close()
    for thread in threads:
        thread.join(WITHIN_S)
    assert len(told) == 3
    assert all("closed" in text for text in told)


@pytest.mark.parametrize("repeat", range(1, 7))
def test_closing_in_the_middle_of_traffic_tells_everybody(repeat):
    pipe = Pipeline(chain(runner("passing"), runner("passing")), "thread", slots=1 + repeat % 3)
    futures, wrong = [], []

    def submit():
        try:
            for item in numbers(100_000):
                futures.append(pipe.submit(item))
        except PartitionerError as error:
            if "closed" not in str(error):
                wrong.append(error)

    def ask():
        try:
            for number, result in enumerate(pipe.map(numbers(100_000))):
                if int(result[0]) != number:
                    wrong.append(number)
        except PartitionerError as error:
            if "closed" not in str(error):
                wrong.append(error)

    threads = [threading.Thread(target=work) for work in (submit, ask, submit)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(futures) > 20 * repeat)
    pipe.close()
    for thread in threads:
        thread.join(WITHIN_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    eventually(lambda: all(future.done() for future in futures))
    failed = [future.exception() is not None for future in futures]
    assert sum(failed) < len(failed), "nothing came through"
