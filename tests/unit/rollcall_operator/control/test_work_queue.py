"""The work queue: many notices, one run; failures wait; the end is bounded."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from rollcall_operator.control.backoff import BackoffPolicy
from rollcall_operator.control.work_queue import QueueSettings, RetryError, WorkQueue

pytestmark = pytest.mark.asyncio(loop_factories=["skips_waits"])

Run = Callable[[str], Awaitable[float | None]]

FAST = QueueSettings(
    workers=3,
    min_interval=0.0,
    backoff=BackoffPolicy(first=0.02, longest=0.1),
    event_delay=0.02,
    run_timeout=0.3,
)


class Results:
    """Counts what the queue reports."""

    def __init__(self) -> None:
        self.results: list[str] = []
        self.depths: list[int] = []

    def queue_depth(self, waiting: int) -> None:
        self.depths.append(waiting)

    def reconciled(self, *, seconds: float, result: str) -> None:
        self.results.append(result)


def make_queue(run: Run, settings: QueueSettings, metrics: Results | None = None) -> WorkQueue[str]:
    clock = asyncio.get_running_loop().time
    return WorkQueue(run, settings=settings, metrics=metrics, clock=clock)


@asynccontextmanager
async def queue_of(
    run: Run, *, settings: QueueSettings = FAST, metrics: Results | None = None
) -> AsyncIterator[WorkQueue[str]]:
    queue = make_queue(run, settings, metrics)
    queue.start()
    try:
        yield queue
    finally:
        await queue.close(seconds=1.0)


async def eventually(check: Callable[[], bool], *, seconds: float = 2.0) -> None:
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.005)


async def test_many_notices_before_a_run_are_one_run() -> None:
    runs: list[str] = []

    async def run(key: str) -> None:
        runs.append(key)

    async with queue_of(run) as queue:
        for _ in range(1000):
            queue.add("a")
        await eventually(lambda: runs == ["a"])
        await asyncio.sleep(0.02)
    assert runs == ["a"]


async def test_notices_during_a_run_are_one_more_run_and_never_two_at_once() -> None:
    running, most, runs = 0, 0, 0
    release = asyncio.Event()

    async def run(_key: str) -> None:
        nonlocal running, most, runs
        running += 1
        most = max(most, running)
        runs += 1
        await release.wait()
        running -= 1

    async with queue_of(run) as queue:
        queue.add("a")
        await eventually(lambda: runs == 1)
        for _ in range(10):
            queue.add("a")
        await asyncio.sleep(0.02)
        release.set()
        await eventually(lambda: runs == 2)
        await asyncio.sleep(0.02)
    assert (runs, most) == (2, 1)


async def test_keys_run_side_by_side_up_to_the_number_of_workers() -> None:
    running = 0
    release = asyncio.Event()

    async def run(_key: str) -> None:
        nonlocal running
        running += 1
        await release.wait()

    async with queue_of(run) as queue:
        for key in "abcde":
            queue.add(key)
        await eventually(lambda: running == 3)
        await asyncio.sleep(0.02)
        assert running == 3
        release.set()
        await eventually(lambda: running == 5)


async def test_a_rest_between_runs_coalesces_a_burst() -> None:
    runs = 0

    async def run(_key: str) -> float:
        nonlocal runs
        runs += 1
        return 60.0

    settings = QueueSettings(workers=3, min_interval=0.1)
    async with queue_of(run, settings=settings) as queue:
        for _ in range(30):
            queue.add("a")
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.12)
    assert 2 <= runs <= 4


async def test_runs_in_a_row_rest_longer_and_longer_up_to_a_bound() -> None:
    runs: list[float] = []
    loop = asyncio.get_running_loop()

    async def run(_key: str) -> float:
        runs.append(loop.time())
        return 60.0

    settings = QueueSettings(workers=3, min_interval=0.01, longest_interval=0.08)
    async with queue_of(run, settings=settings) as queue:
        until = loop.time() + 0.8
        while loop.time() < until:
            queue.add("a")
            await asyncio.sleep(0.002)
        assert len(runs) <= 14, "without the doubling it would be 60 and more"
        await asyncio.sleep(0.2)
        calm, before = len(runs), loop.time()
        queue.add("a")
        await eventually(lambda: len(runs) > calm)
    assert runs[-1] - before < 0.05, "after a calm an event is acted on at once"


async def test_a_key_that_asks_to_go_on_at_once_rests_the_least_however_often_it_ran() -> None:
    runs: list[float] = []
    loop = asyncio.get_running_loop()

    async def run(_key: str) -> float:
        runs.append(loop.time())
        return 0.0 if len(runs) < 8 else 60.0

    settings = QueueSettings(workers=3, min_interval=0.01, longest_interval=1.0)
    async with queue_of(run, settings=settings) as queue:
        queue.add("a")
        await eventually(lambda: len(runs) == 8)
    assert runs[-1] - runs[0] < 0.5, "doubled pauses would take 1.2 s"


async def test_between_two_runs_that_wait_for_nothing_others_get_the_event_loop() -> None:
    runs: list[int] = []

    async def run(_key: str) -> float:
        runs.append(1)
        return 60.0

    async with queue_of(run) as queue:
        for number in range(1000):
            queue.add(str(number))
        turns = 0
        while len(runs) < 1000:
            await asyncio.sleep(0)
            turns += 1
    assert turns >= 300, "three workers run a key each, then it is another task's turn"


async def test_a_key_that_fails_waits_longer_each_time_and_keeps_others_going() -> None:
    times: list[float] = []
    good = 0
    loop = asyncio.get_running_loop()

    async def run(key: str) -> float | None:
        nonlocal good
        if key == "good":
            good += 1
            return None
        times.append(loop.time())
        raise ValueError("broken")

    results = Results()
    async with queue_of(run, metrics=results) as queue:
        queue.add("bad")
        queue.add("good")
        await eventually(lambda: len(times) == 5)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps[2] > gaps[0]
    assert max(gaps) < 0.1 + 0.05  # the cap
    assert good == 1
    assert results.results.count("error") >= 4


async def test_news_of_a_failed_key_does_not_make_it_spin() -> None:
    runs = 0

    async def run(_key: str) -> float | None:
        nonlocal runs
        runs += 1
        raise RetryError("conflict")

    settings = QueueSettings(
        workers=1, backoff=BackoffPolicy(first=10.0, longest=60.0), event_delay=0.5
    )
    async with queue_of(run, settings=settings) as queue:
        queue.add("a")
        await eventually(lambda: runs == 1)
        for _ in range(20):
            queue.add("a")
            await asyncio.sleep(0.002)
        assert runs == 1
        await eventually(lambda: runs == 2)


async def test_success_resets_the_back_off() -> None:
    outcomes = iter([True, True, True, False, True])
    times: list[float] = []

    async def run(_key: str) -> float | None:
        times.append(asyncio.get_running_loop().time())
        if next(outcomes, False):
            raise RetryError("again")
        return 0.0 if len(times) == 4 else None

    async with queue_of(run) as queue:
        queue.add("a")
        await eventually(lambda: len(times) == 6)
    assert times[5] - times[4] < 0.04  # as after a first failure, not a fourth


async def test_a_requested_delay_is_kept_and_news_come_earlier() -> None:
    runs = 0

    async def run(_key: str) -> float | None:
        nonlocal runs
        runs += 1
        return 30.0

    async with queue_of(run) as queue:
        queue.add("a")
        await eventually(lambda: runs == 1)
        queue.add("a", delay=0.05)
        queue.add("a", delay=20.0)  # the earlier appointment stays
        await eventually(lambda: runs == 2)
        queue.add("a")
        await eventually(lambda: runs == 3)


async def test_a_run_that_hangs_is_cut_off_and_tried_again() -> None:
    results = Results()
    runs = 0

    async def run(_key: str) -> float | None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await asyncio.sleep(60)
        return None

    async with queue_of(run, metrics=results) as queue:
        queue.add("a")
        await eventually(lambda: runs == 2)
        await eventually(lambda: results.results == ["timeout", "ok"])
        assert queue.problem() == ""


async def test_close_lets_a_run_end_and_takes_no_more() -> None:
    ended: list[str] = []

    async def run(key: str) -> None:
        await asyncio.sleep(0.05)
        ended.append(key)

    queue = make_queue(run, FAST)
    queue.start()
    queue.add("a")
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(queue.close(seconds=1.0))
    await asyncio.sleep(0)
    queue.add("b")
    await closing
    assert ended == ["a"]


async def test_close_is_bounded_when_a_run_does_not_end() -> None:
    started = asyncio.Event()

    async def run(_key: str) -> None:
        started.set()
        await asyncio.sleep(60)

    queue = make_queue(run, QueueSettings(workers=1))
    queue.start()
    queue.add("a")
    await started.wait()
    async with asyncio.timeout(1.0):
        await queue.close(seconds=0.05)


async def test_a_worker_that_ended_is_a_problem() -> None:
    async def run(_key: str) -> None:
        return None

    queue = make_queue(run, QueueSettings(workers=1))
    queue.start()
    assert queue.problem() == ""
    queue._workers[0].cancel()
    await asyncio.sleep(0.01)
    assert "queue worker 0" in queue.problem()
    await queue.close(seconds=0.1)
