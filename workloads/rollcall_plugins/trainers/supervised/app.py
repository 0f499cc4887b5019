"""A rank of supervised training in a pod; rank 0 reports the job's progress to the operator."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from rollcall_plugins.trainers.supervised.run import (
    SupervisedJob,
    SupervisedRank,
    SupervisedResult,
    SupervisedStart,
)
from rollcall_plugins.trainers.supervised.training import supervised_figures
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.job_snapshot import JobSnapshot, TrainingProgress, TrainingResult
from rollcall_runtime.coordinator import persistent_state
from rollcall_runtime.coordinator.state_stream import StateStream
from rollcall_runtime.train.gang_member import (
    end_if_broken,
    hold_to_leader,
    make_gang,
    trainer_rendezvous,
)
from rollcall_runtime.train.rank_process import RankProcess, serve_rank
from rollcall_runtime.train.step_figures import as_text
from rollcall_runtime.train.tracking import Tracking
from rollcall_runtime.worker.asyncio_helpers import favour_event_loop
from rollcall_runtime.worker.auth import Authenticator
from rollcall_runtime.worker.bounded_listener import BoundedRunner
from rollcall_runtime.worker.devices import choose_device
from rollcall_runtime.worker.exit import report_stop
from rollcall_runtime.worker.history_file import history_path
from rollcall_runtime.worker.identity.roles import RoleBook

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollcall_plugins.trainers.supervised.training import SupervisedStep
    from rollcall_protocol.supervised_config import SupervisedConfig
    from rollcall_runtime.train.gang_liveness import Gang
    from rollcall_runtime.worker.environment import TrainerEnvironment

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0


def run(environment: TrainerEnvironment, config: SupervisedConfig) -> None:
    """Run until SIGTERM or SIGINT, also when training is over; the process then ends with code 0.

    SpecError when the job asks for what this container cannot do, or its data are wrong,
    FencedError when another trainer has taken over, RuntimeError when another rank was stopped.
    """
    favour_event_loop()
    asyncio.run(_serve(environment, config))


async def _serve(environment: TrainerEnvironment, config: SupervisedConfig) -> None:
    async def work(process: RankProcess, rank: SupervisedRank, start: SupervisedStart) -> None:
        log.info("rank %d starts at step %d", environment.rank, start.step)
        if environment.rank > 0:
            await _follow(process, rank)
        else:
            await _Leader(process, rank, start).run()

    await serve_rank(environment, partial(_make_rank, config=config), work)


def _make_rank(
    environment: TrainerEnvironment, refused: Callable[[str], None], *, config: SupervisedConfig
) -> SupervisedRank:
    job = environment.job
    return SupervisedRank(
        SupervisedJob(
            model=job.model,
            data=job.data,
            config=config,
            engine=job.trainer_engine,
            checkpoint=job.checkpoint,
            trainer=environment.pod.uid,
            health=job.health,
            export_path=job.export_path,
        ),
        trainer_rendezvous(environment, refused),
        device=choose_device(job),
    )


async def _follow(process: RankProcess, rank: SupervisedRank) -> None:
    """Another rank than 0."""
    leaving, stop = asyncio.Event(), process.stop
    hold = hold_to_leader(process.environment, leaving=leaving, stop=stop)
    watch = asyncio.create_task(end_if_broken(hold))
    try:
        await process.in_thread(rank.run, _ignore, stop.is_set)
        await stop.wait()
        leaving.set()
        await watch
    finally:
        watch.cancel()


def _ignore(_: SupervisedStep) -> None:
    """Rank 0 reports."""


class _Leader:
    """Rank 0: watches the others, and streams the job's progress to the operator."""

    def __init__(self, process: RankProcess, rank: SupervisedRank, start: SupervisedStart) -> None:
        self._process, self._rank = process, rank
        self._environment = environment = process.environment
        state = persistent_state.load_and_count_boot(environment.state_dir, environment.pod.uid)
        self._boot = state.boot
        # As it was, so that the operator does not take a restart for a new job's start.
        self._progress = TrainingProgress(start.step, start.steps, 0, None)
        self._finished: TrainingResult | None = None
        self._stream = StateStream(self._snapshot)

    async def run(self) -> None:
        """Until training has ended and the pod is to stop. OSError if the port is taken."""
        environment = self._environment
        gang = make_gang(environment.job, self._refused)
        runner = BoundedRunner(
            self._routes(gang),
            refused=self._refused,
            shutdown_timeout=STOP_SECONDS,
            tls=environment.certificate,
        )
        watch = asyncio.create_task(end_if_broken(gang.watch()))
        try:
            await runner.setup()
            address = environment.pod.address
            await web.TCPSite(runner, address, pod_contract.MEMBERSHIP_PORT).start()
            await self._finish(await self._train())
            gang.leave()
        finally:
            watch.cancel()
            self._stream.close()
            await runner.cleanup()

    async def _train(self) -> SupervisedResult:
        job, first = self._environment.job, self._progress.step + 1
        history = history_path(self._environment)
        tracking = await asyncio.to_thread(Tracking, job, history=history, first_step=first)
        loop = asyncio.get_running_loop()

        def report(step: SupervisedStep) -> None:
            loop.call_soon_threadsafe(self._trained, step, tracking)

        try:
            return await self._process.in_thread(self._rank.run, report, self._process.stop.is_set)
        finally:
            await asyncio.to_thread(tracking.close)

    def _trained(self, step: SupervisedStep, tracking: Tracking) -> None:
        """All ranks have made a step."""
        metrics, figures = self._process.metrics, supervised_figures(step)
        metrics.step.set(step.step)
        metrics.last_step.set_to_current_time()
        metrics.record_figures(figures)
        metrics.train_seconds.observe(step.seconds)
        metrics.skipped_steps.inc(step.skipped == "not-finite")
        tracking.record(step.step, figures)
        log.info(
            "step %d of %d: %s",
            *(step.step, step.steps, as_text(figures)),
            extra={"step": step.step, "figures": figures},
        )
        self._progress = TrainingProgress(step.step, step.steps, 0, None, warning=step.warning)
        self._stream.progressed()

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
        await self._process.stop.wait()  # the operator ends the pods

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
        job = self._environment.job
        book = RoleBook(job.job, job.trainer_replicas)
        authenticator = Authenticator(self._environment.verifier(), book, self._refused)
        app = web.Application()
        for route, handler in (
            (pod_contract.OPERATOR_STREAM_ROUTE, self._stream.serve),
            (pod_contract.GANG_ROUTE, gang.serve),
        ):
            app.router.add_get(route, authenticator.guard(route, handler))
        return app

    def _refused(self, what: str) -> None:
        self._process.metrics.refused(what=what).inc()
