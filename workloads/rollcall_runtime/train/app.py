"""Puts a trainer rank together from its environment; rank 0 has the coordinator beside it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_runtime.coordinator.coordinator import Coordinator
from rollcall_runtime.coordinator.prometheus_metrics import PrometheusCoordinatorMetrics
from rollcall_runtime.coordinator.prompt_dispatcher import PromptDispatcher
from rollcall_runtime.coordinator.published_manifests import PublishedManifests
from rollcall_runtime.coordinator.reward_check import RewardCheck
from rollcall_runtime.coordinator.server import CoordinatorServer
from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.data.prompt_source import check_prompts
from rollcall_runtime.membership.part_sender import SenderRank
from rollcall_runtime.models.end_tokens import end_tokens
from rollcall_runtime.models.model_source import ModelSource
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.sync.open_engine import STREAMED, close_engines, open_senders
from rollcall_runtime.sync.weights.snapshots import WeightSnapshotDraft
from rollcall_runtime.tasks.reward_processes import RewardProcesses
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer, TrainState
from rollcall_runtime.train.engine_configuration import split_config, split_loop
from rollcall_runtime.train.final_export import FinalExport
from rollcall_runtime.train.gang_liveness import Gang
from rollcall_runtime.train.gang_member import (
    end_if_broken,
    hold_to_leader,
    make_gang,
    trainer_rendezvous,
)
from rollcall_runtime.train.health import TrainingHealth, skipped_steps
from rollcall_runtime.train.job_prompts import (
    open_held_out,
    open_job_prompts,
    row_needs,
    with_steps,
)
from rollcall_runtime.train.learning_judge import LearningJudge
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.rank_process import RankProcess, serve_rank
from rollcall_runtime.train.response_ends import ResponseEnds
from rollcall_runtime.train.roles.build_roles import build_policy_step, check_roles
from rollcall_runtime.train.samples.sampled_step import SampleDescriber
from rollcall_runtime.train.snapshot_placement import (
    has_cheap_checks,
    make_snapshotter,
    sent_dtype,
)
from rollcall_runtime.train.tracking import Tracking
from rollcall_runtime.train.train_engine import EngineSetup, train_engines
from rollcall_runtime.train.trainer_loop import TrainerLoop
from rollcall_runtime.train.trainer_rank import TrainerRank
from rollcall_runtime.train.weight_recovery import ROLLOUTS, RecoveredWeights, WeightRecovery
from rollcall_runtime.worker.asyncio_helpers import favour_event_loop, first_of
from rollcall_runtime.worker.devices import choose_device
from rollcall_runtime.worker.environment import TrainerEnvironment, new_member
from rollcall_runtime.worker.errors import FencedError
from rollcall_runtime.worker.exit import report_stop
from rollcall_runtime.worker.history_file import history_path, read_history, samples_path

log = logging.getLogger(__name__)

HELD_OUT = "spec.evaluation.source.name"


def run(environment: TrainerEnvironment, log_fields: dict[str, Any]) -> None:
    """Run until SIGTERM or SIGINT; the process then ends with exit code 0.

    SpecError when the job asks for what this container cannot do, FencedError when another trainer
    has taken over, RuntimeError when the work ends by itself.
    """
    environment = replace(environment, job=with_steps(environment.job))
    favour_event_loop()
    asyncio.run(_serve(environment, log_fields))


async def _serve(environment: TrainerEnvironment, log_fields: dict[str, Any]) -> None:
    async def work(process: RankProcess, rank: TrainerRank, state: TrainState) -> None:
        log.info("rank %d starts at step %d", environment.rank, state.step)
        if environment.rank > 0:
            await _Follower(process, rank).run(state)
        else:
            metrics = PrometheusCoordinatorMetrics(process.metrics, log_fields)
            await _Leader(process, rank).run(state, metrics)

    await serve_rank(environment, _make_rank, work)


@dataclass(frozen=True, slots=True)
class _Leader:
    """Rank 0: the loop beside the coordinator."""

    process: RankProcess
    rank: TrainerRank

    @property
    def environment(self) -> TrainerEnvironment:
        return self.process.environment

    @property
    def _published(self) -> PublishedManifests:
        """Beside the checkpoints, where a replacement pod finds them too, if there are any."""
        saved, state = self.environment.job.checkpoint, self.environment.state_dir
        return PublishedManifests((Path(saved.path) if saved else state) / "published")

    async def run(self, state: TrainState, metrics: PrometheusCoordinatorMetrics) -> None:
        async with _reward_check(self.environment.job, metrics.refused) as check:
            await self._coordinate(state, metrics, check)

    async def _coordinate(
        self, state: TrainState, metrics: PrometheusCoordinatorMetrics, check: RewardCheck | None
    ) -> None:
        job, pod = self.environment.job, self.environment.pod
        member = new_member(pod)
        engines = await open_senders(self.environment, member)
        model = open_model(job.model)
        known = ModelInput.of(model, rollout_context=job.rollout_context)
        held_out = open_held_out(job, known, field=HELD_OUT)
        prompts = PromptDispatcher(
            config=job,
            source=open_job_prompts(job, known).prompt,
            state=state.ledger,
            metrics=metrics,
            bounds=SampleBounds(
                model.vocabulary, model.positions, given_tokens=job.environment is not None
            ),
            held_out=held_out.prompt if held_out is not None else None,
            counted=check.offer if check else None,
        )
        coordinator = Coordinator(
            config=job.coordinator,
            member=member,
            address=pod.address,
            name=self.environment.coordinator,
            state_dir=self.environment.state_dir,
            engines=engines,
            metrics=metrics,
            senders=_senders(job),
            published=self._published if _recovers_from_rollouts(job) else None,
            prompts=prompts,
        )
        # Reported first, so that the operator does not take a restart for a new job's start.
        coordinator.progress(step=state.step, number=max(0, state.number - 1), reward=None)
        gang = make_gang(job, metrics.refused)
        server = CoordinatorServer(
            coordinator,
            address=pod.address,
            verifier=self.environment.verifier(),
            certificate=self.environment.certificate,
            metrics=metrics,
            gang=gang.serve,
            prompts=prompts,
        )
        beside = [asyncio.create_task(end_if_broken(gang.watch()))]
        if check is not None:
            checking = check.run(coordinator.exclude_for_rewards)
            beside.append(asyncio.create_task(checking))
        try:
            await server.start()
            ends = ResponseEnds.of(job, eos=end_tokens(model), context=known.context)
            await self._train(coordinator, prompts, state, gang, model, ends)
        finally:
            for task in beside:
                task.cancel()
            await coordinator.stop()
            await server.stop()
            await close_engines(engines)

    async def _train(
        self,
        coordinator: Coordinator,
        prompts: PromptDispatcher,
        state: TrainState,
        gang: Gang,
        model: ModelSource,
        ends: ResponseEnds | None,
    ) -> None:
        job = self.environment.job
        history = history_path(self.environment)
        learning = LearningJudge(prompts_differ=job.environment is None and not job.data.from_front)
        learning.restore(await asyncio.to_thread(read_history, history), step=state.step)
        tracking = await asyncio.to_thread(
            Tracking,
            job,
            history=history,
            first_step=state.step + 1,
            samples=samples_path(self.environment),
            describe=SampleDescriber(job, model),
        )
        loop = TrainerLoop(
            config=job,
            rank=self.rank,
            state=state,
            rollouts=coordinator,
            samples=prompts,
            thread=self.process.thread,
            metrics=self.process.metrics,
            tracking=tracking,
            stop=self.process.stop,
            recover_weights=partial(self._recover_weights, coordinator, state),
            learning=learning,
            ends=ends,
        )
        watch = asyncio.create_task(self._step_down(coordinator))
        try:
            if await loop.run():
                log.info("training is done after %d steps", self.rank.step)
                coordinator.finish(step=self.rank.step)
                await self.process.stop.wait()
            elif not coordinator.fenced.is_set():
                self._report_stop()
            gang.leave()
        finally:
            watch.cancel()
            await asyncio.to_thread(tracking.close)
        if coordinator.fenced.is_set():
            raise FencedError("another coordinator has taken over this job")

    async def _recover_weights(
        self, coordinator: Coordinator, state: TrainState, step: int
    ) -> RecoveredWeights | None:
        job = self.environment.job
        if not _recovers_from_rollouts(job):
            return None
        every = job.weight_sync.trigger_parameter_sync_step
        recovery = WeightRecovery(
            tickets=coordinator.tickets.tickets, manifest_of=self._published.load, every=every
        )
        # A replacement pod's coordinator does not know the checkpoint's incarnation.
        incarnations = (
            *coordinator.incarnations,
            *([state.incarnation] if state.incarnation else []),
        )
        return await recovery.recover(coordinator.weight_holders(), incarnations, step=step)

    def _report_stop(self) -> None:
        """Without a message `kubectl` shows "Completed", as if training were done."""
        last = self.environment.job.algorithm.max_steps
        report_stop(
            f"stopped by SIGTERM after step {self.rank.step} of {last}: the pod is deleted, or "
            "it failed its liveness probe"
        )

    async def _step_down(self, coordinator: Coordinator) -> None:
        await coordinator.fenced.wait()
        self.process.stop.set()


@dataclass(frozen=True, slots=True)
class _Follower:
    """Another rank: trains in step with rank 0, and sends what is its own."""

    process: RankProcess
    rank: TrainerRank

    @property
    def environment(self) -> TrainerEnvironment:
        return self.process.environment

    async def run(self, state: TrainState) -> None:
        leaving = asyncio.Event()
        hold = hold_to_leader(self.environment, leaving=leaving, stop=self.process.stop)
        watch = asyncio.create_task(end_if_broken(hold))
        try:
            await self._work(state)
            leaving.set()
            await watch
        finally:
            watch.cancel()

    async def _work(self, state: TrainState) -> None:
        if _senders(self.environment.job) == 1:
            await self._train(state, _ignore)
            return
        one_copy = self.environment.job.weight_sync.staging == STREAMED
        engines = await open_senders(self.environment, new_member(self.environment.pod))
        sender = SenderRank(environment=self.environment, engines=engines)
        loop = asyncio.get_running_loop()

        drafts: asyncio.Queue[WeightSnapshotDraft] = asyncio.Queue()

        def offer(part: WeightSnapshotDraft) -> None:
            loop.call_soon_threadsafe(drafts.put_nowait, part)

        def withdraw() -> None:
            if one_copy:
                asyncio.run_coroutine_threadsafe(_withdraw(sender), loop).result()

        try:
            await first_of(
                sender.run(), _offer_parts(sender, drafts), self._train(state, offer, withdraw)
            )
        finally:
            await close_engines(engines)

    async def _train(
        self,
        state: TrainState,
        offer: Callable[[WeightSnapshotDraft], None],
        withdraw: Callable[[], None] = lambda: None,
    ) -> None:
        follow = partial(self.rank.follow, withdraw=withdraw)
        await self.process.in_thread(follow, offer)
        await self.process.in_thread(self.rank.stop, state)
        await self.process.stop.wait()  # the last version may still be on its way


async def _offer_parts(sender: SenderRank, drafts: asyncio.Queue[WeightSnapshotDraft]) -> None:
    """Finish the parts beside training, in the order in which they were copied."""
    for number in count():
        draft = await drafts.get()
        await sender.offer(number, await asyncio.to_thread(draft.finish))


async def _withdraw(sender: SenderRank) -> None:
    sender.withdraw()  # it belongs to the event loop


def _ignore(_: WeightSnapshotDraft) -> None:
    """Rank 0 sends the whole snapshot."""


@asynccontextmanager
async def _reward_check(
    job: JobConfig, counted: Callable[[str], None]
) -> AsyncIterator[RewardCheck | None]:
    """What scores samples again, if the job asks for it; SpecError if it cannot do so here."""
    share = job.reward_errors.verify_share
    if not share:
        yield None
        return
    model = open_model(job.model)
    scorer = RewardProcesses(
        job, directory=model.directory, ends=end_tokens(model), stop_at_error=True
    )
    try:
        await scorer.start()
        yield RewardCheck(scorer, share=share, counted=counted)
    finally:
        await scorer.close()


def _recovers_from_rollouts(job: JobConfig) -> bool:
    return job.recover_from == ROLLOUTS and job.weight_sync.enabled


def _senders(job: JobConfig) -> int:
    """How many ranks send: without sync there is one snapshot, which rank 0 gathers."""
    sync = job.weight_sync
    return job.trainer_ranks if sync.enabled and sync.every_rank_sends else 1


def _make_rank(environment: TrainerEnvironment, refused: Callable[[str], None]) -> TrainerRank:
    """Collective: waits for the other ranks, after everything that can fail on its own."""
    job = environment.job
    chosen, sync = job.trainer_engine, job.weight_sync
    model = ModelInput.of(open_model(job.model), rollout_context=job.rollout_context)
    counted = check_prompts(
        job.data, model=model, sampling=job.algorithm.sampling, needs=row_needs(job)
    )
    make_engine = train_engines.get(chosen.name)
    loop, rest = split_loop(chosen.config)
    settings, own = split_config(rest)
    check_roles(job)
    device = choose_device(job)
    sent = sent_dtype(job, precision=settings.precision)
    snapshotter = make_snapshotter(
        sync,
        senders=_senders(job),
        device=device,
        dtype=sent,
        cheap=has_cheap_checks(job, device=device),
    )
    with ExitStack() as undo:
        ranks = TrainerProcessGroup(trainer_rendezvous(environment, refused), device=device)
        undo.callback(ranks.close)
        setup = EngineSetup(
            model=job.model,
            ranks=ranks,
            optimizer=job.algorithm.optimizer,
            settings=settings,
            own_settings=own,
            seed=job.data.seed,
            deterministic=job.algorithm.deterministic,
            temperature=job.algorithm.sampling.temperature,
        )
        rank = TrainerRank(
            ranks=ranks,
            policy=build_policy_step(
                job,
                setup,
                make_engine,
                minibatches=loop.minibatches,
                reference_token=environment.reference_token,
                tls=environment.trust.client_context if job.tls else None,
            ),
            health=TrainingHealth(
                job.health, folder=skipped_steps(job.checkpoint), rank=ranks.rank
            ),
            checkpoints=Checkpointer(
                job.checkpoint, ranks=ranks, pod_uid=environment.pod.uid, data=counted
            ),
            snapshotter=snapshotter,
            publish_every=sync.trigger_parameter_sync_step if sync.enabled else 0,
            export=FinalExport(job.export_path, last_step=job.algorithm.max_steps, ranks=ranks),
            every_rank_sends=_senders(job) > 1,
            recording=job.samples,
        )
        undo.pop_all()
    return rank
