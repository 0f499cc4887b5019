"""A trainer rank in its process: it computes in one thread, beside an event loop and probes."""

from __future__ import annotations

import asyncio
import logging
import signal
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rollcall_protocol.sample_query import ROUTE as SAMPLES
from rollcall_protocol.sample_query import SampleQuery
from rollcall_protocol.step_history import ROUTE
from rollcall_protocol.wire.roster import DEFAULT_GROUP
from rollcall_runtime.worker.history_file import history_path, samples_path
from rollcall_runtime.worker.metrics_server import MetricsServer
from rollcall_runtime.worker.telemetry import TrainerMetrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from rollcall_runtime.worker.environment import TrainerEnvironment

log = logging.getLogger(__name__)

T = TypeVar("T")
State_co = TypeVar("State_co", covariant=True)


class Rank(Protocol[State_co]):
    """What computes; its methods block and belong to one thread."""

    def start(self) -> State_co:
        """Collective. Build the models, and resume."""

    def close(self) -> None:
        """Free everything; harmless twice."""


R = TypeVar("R", bound=Rank[Any])


@dataclass(frozen=True, slots=True)
class RankProcess:
    """`stop` is set by SIGTERM and SIGINT."""

    environment: TrainerEnvironment
    thread: Executor
    metrics: TrainerMetrics
    stop: asyncio.Event

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """What the function returns in the thread that computes."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)


async def serve_rank(
    environment: TrainerEnvironment,
    make_rank: Callable[[TrainerEnvironment, Callable[[str], None]], R],
    work: Callable[[RankProcess, R, Any], Awaitable[None]],
) -> None:
    """Make and start a rank, then do its `work`, which gets what `start` returned.

    `make_rank` gets what counts, by kind and in any thread, whom the ranks' rendezvous refuses.
    `work` lasts until a signal to stop, also when training is over: the operator ends the pods.
    RuntimeError if it ends by itself.
    """
    job = environment.job
    thread = ThreadPoolExecutor(1, thread_name_prefix="train")
    metrics = TrainerMetrics(namespace=job.namespace, job=job.job, group=DEFAULT_GROUP)
    process = RankProcess(environment, thread, metrics, asyncio.Event())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, process.stop.set)
    started = asyncio.Event()

    def count_refused(what: str) -> None:
        metrics.refused(what=what).inc()

    server = MetricsServer(
        metrics,
        healthy=lambda: "",
        ready=lambda: "" if started.is_set() else "starting",
        files={ROUTE: history_path(environment)} if environment.rank == 0 else {},
        answers={SAMPLES: _samples(samples_path(environment))} if environment.rank == 0 else {},
    )
    rank: R | None = None
    try:
        if environment.local_rank == 0:  # the pod's ranks have one address
            await server.start(environment.pod.address)
        rank = await process.in_thread(make_rank, environment, count_refused)
        state = await process.in_thread(rank.start)
        started.set()
        await work(process, rank, state)
        if not process.stop.is_set():
            raise RuntimeError(f"rank {environment.rank} ended without a signal to stop")
    finally:
        if rank is not None:
            await process.in_thread(rank.close)
        thread.shutdown(wait=False)
        await server.stop()


def _samples(path: Path) -> Callable[[Mapping[str, str]], bytes]:
    """Answers a query from the file of recorded responses."""

    def lines() -> Iterator[bytes]:
        with path.open("rb") as file:
            yield from file

    def answer(query: Mapping[str, str]) -> bytes:
        return b"".join(SampleQuery.of(query).choose(lines))

    return answer
