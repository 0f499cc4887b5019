"""A rank of supervised training in a pod; rank 0 reports the job's progress to the operator."""

from __future__ import annotations

import asyncio
import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.job_snapshot import JobSnapshot, TrainingProgress, TrainingResult
from rollcall_runtime.coordinator import persistent_state
from rollcall_runtime.coordinator.operator_stream import OperatorStream
from rollcall_runtime.train.gang_liveness import Gang
from rollcall_runtime.train.gang_member import end_if_broken, hold_to_leader, trainer_rendezvous
from rollcall_runtime.train.supervised_run import SupervisedJob, SupervisedRank, SupervisedResult
from rollcall_runtime.worker.asyncio_helpers import favour_event_loop
from rollcall_runtime.worker.auth import guard
from rollcall_runtime.worker.devices import choose_device
from rollcall_runtime.worker.exit import report_stop
from rollcall_runtime.worker.telemetry import MetricsServer, TrainerMetrics

if TYPE_CHECKING:
    from rollcall_protocol.supervised_config import SupervisedConfig
    from rollcall_runtime.train.supervised_training import SupervisedStep
    from rollcall_runtime.worker.environment import TrainerEnvironment

log = logging.getLogger(__name__)

GROUP = "default"
STOP_SECONDS = 2.0


def run(environment: TrainerEnvironment, config: SupervisedConfig) -> None:
    """Run until SIGTERM or SIGINT, also when training is over; the process then ends with code 0.

    SpecError when the job asks for what this container cannot do, or its data are wrong,
    FencedError when another trainer has taken over, RuntimeError when another rank was stopped.
    """
    favour_event_loop()
    asyncio.run(_serve(environment, config))


async def _serve(environment: TrainerEnvironment, config: SupervisedConfig) -> None:
    loop = asyncio.get_running_loop()
    stop, started = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = TrainerMetrics(
        namespace=environment.job.namespace, job=environment.job.job, group=GROUP
    )
    probes = MetricsServer(
        metrics, healthy=lambda: "", ready=lambda: "" if started.is_set() else "starting"
    )
    rank = _make_rank(environment, config)
    leader = _Leader(environment, stop) if environment.rank == 0 else None

    def trained(step: SupervisedStep) -> None:
        started.set()
        metrics.step.set(step.step)
        metrics.train_seconds.observe(step.seconds)
        if leader is not None:
            leader.trained(step)

    def report(step: SupervisedStep) -> None:
        loop.call_soon_threadsafe(trained, step)

    thread = ThreadPoolExecutor(1, thread_name_prefix="train")
    try:
        if environment.local_rank == 0:  # the pod's ranks have one address
            await probes.start(environment.pod.address)
        work = asyncio.ensure_future(loop.run_in_executor(thread, rank.run, report, stop.is_set))
        # Before its first step a restarted trainer would report the progress of a new one.
        await _first_of(work, started)
        await (_follow(environment, work, stop) if leader is None else leader.run(work))
        if not stop.is_set():
            raise RuntimeError(f"rank {environment.rank} ended without a signal to stop")
    finally:
        await loop.run_in_executor(thread, rank.close)
        thread.shutdown(wait=False)
        await probes.stop()


def _make_rank(environment: TrainerEnvironment, config: SupervisedConfig) -> SupervisedRank:
    job = environment.job
    return SupervisedRank(
        SupervisedJob(
            model=job.model,
            data=job.data,
            config=config,
            engine=job.trainer_engine,
            checkpoint=job.checkpoint,
            trainer=environment.pod.uid,
        ),
        trainer_rendezvous(environment),
        device=choose_device(job),
    )


async def _first_of(work: asyncio.Future[SupervisedResult], started: asyncio.Event) -> None:
    """Until the first step, or until all is over without one."""
    step = asyncio.ensure_future(started.wait())
    waits: list[asyncio.Future[Any]] = [work, step]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        step.cancel()


async def _follow(
    environment: TrainerEnvironment, work: asyncio.Future[SupervisedResult], stop: asyncio.Event
) -> None:
    """Another rank than 0."""
    leaving = asyncio.Event()
    watch = asyncio.create_task(
        end_if_broken(hold_to_leader(environment, leaving=leaving, stop=stop))
    )
    try:
        await work
        await stop.wait()
        leaving.set()
        await watch
    finally:
        watch.cancel()


class _Leader:
    """Rank 0: watches the others, and streams the job's progress to the operator."""

    def __init__(self, environment: TrainerEnvironment, stop: asyncio.Event) -> None:
        self._environment, self._stop = environment, stop
        state = persistent_state.load_and_count_boot(environment.state_dir, environment.pod.uid)
        self._boot = state.boot
        self._progress = TrainingProgress(0, 0, 0, None)
        self._finished: TrainingResult | None = None
        self._stream = OperatorStream(self._snapshot)

    def trained(self, step: SupervisedStep) -> None:
        """All ranks have made a step."""
        log.info(
            "step %d of %d: loss %.4f over %d tokens",
            *(step.step, step.steps, step.loss, step.tokens),
            extra={"step": step.step, "loss": step.loss, "evaluation_loss": step.evaluation_loss},
        )
        self._progress = TrainingProgress(step.step, step.steps, 0, None)
        self._stream.progressed()

    async def run(self, work: asyncio.Future[SupervisedResult]) -> None:
        """Until `work` has ended and the pod is to stop. OSError if the port is taken."""
        environment, bounds = self._environment, self._environment.job.membership
        gang = Gang(
            environment.job.trainer_ranks,
            heartbeat=bounds.heartbeat,
            suspect_after=bounds.suspect_after,
        )
        runner = web.AppRunner(self._routes(gang), access_log=None, shutdown_timeout=STOP_SECONDS)
        watch = asyncio.create_task(end_if_broken(gang.watch()))
        try:
            await runner.setup()
            address = environment.pod.address
            await web.TCPSite(runner, address, pod_contract.MEMBERSHIP_PORT).start()
            await self._finish(await work)
            gang.leave()
        finally:
            watch.cancel()
            self._stream.close()
            await runner.cleanup()

    async def _finish(self, result: SupervisedResult) -> None:
        if not result.finished:
            report_stop(
                f"stopped by SIGTERM after step {result.step}: a pod is deleted, or it failed its "
                "liveness probe"
            )
            return
        log.info("training is done after %d steps", result.step)
        self._finished = TrainingResult(result.step)
        self._stream.changed()
        await self._stop.wait()  # the operator ends the pods

    def _snapshot(self) -> JobSnapshot:
        """No rollouts, so no roster, members or sync groups."""
        return JobSnapshot(
            pod_uid=self._environment.pod.uid,
            boot=self._boot,
            roster_epoch=0,
            roster_digest="",
            members=(),
            progress=self._progress,
            finished=self._finished,
        )

    def _routes(self, gang: Gang) -> web.Application:
        def refused(what: str) -> None:
            log.warning("refused a request: %s", what)

        app, environment = web.Application(), self._environment
        for route, token, handler in (
            (pod_contract.OPERATOR_STREAM_ROUTE, environment.operator_token, self._stream.serve),
            (pod_contract.GANG_ROUTE, environment.member_token, gang.serve),
        ):
            app.router.add_get(route, guard(token, handler, refused))
        return app
