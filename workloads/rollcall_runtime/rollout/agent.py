"""The rollout agent: one member of the sync group that draws samples for the trainer.

It owns the stream, the generator and the sender of completions; all run in one event loop.
"""

import asyncio
from dataclasses import dataclass

from rollcall_protocol import env
from rollcall_protocol.job_config import WeightSyncConfig
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import (
    Completion,
    CoordinatorMessage,
    Hello,
    PromptCredit,
    PromptLease,
    PromptLeaseReturned,
    PromptLeaseRevoked,
    VersionAssigned,
)
from rollcall_runtime.membership.driver import MemberDriver
from rollcall_runtime.membership.stream import MemberStream
from rollcall_runtime.rollout.agent_server import AgentServer
from rollcall_runtime.rollout.completion_sender import CAPACITY, CompletionSender
from rollcall_runtime.rollout.drain import Drain
from rollcall_runtime.rollout.generation_worker import (
    FinishedLease,
    GenerationWorker,
    PartialRollouts,
)
from rollcall_runtime.rollout.inference_engine import InferenceEngine, PauseMode
from rollcall_runtime.rollout.lease_progress import LeaseProgressReporter
from rollcall_runtime.rollout.readiness import Readiness
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.rollout.weight_receiver import WeightReceiver, WeightReceiverSettings
from rollcall_runtime.sync.memory.device_allocators import device_allocator
from rollcall_runtime.sync.open_engine import OpenEngine
from rollcall_runtime.sync.weights.staging import StagingArea
from rollcall_runtime.tasks.reward_function import Reward
from rollcall_runtime.worker.concurrency import first_of
from rollcall_runtime.worker.environment import RolloutEnvironment
from rollcall_runtime.worker.telemetry import MetricsServer, RolloutMetrics

IN_HAND = 2  # batches: one that is drawn, one that waits
CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The agent's part of a pool's `engine.config`: prompts that the engine takes at once."""

    concurrency: int = 4

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError("concurrency must be at least 1")


@dataclass(frozen=True, slots=True)
class AgentDependencies:
    """What the composition root makes for the agent, which closes the two engines."""

    engine: InferenceEngine
    sync: OpenEngine
    reward: Reward
    settings: AgentSettings
    metrics: RolloutMetrics


def make_stage(sync: WeightSyncConfig, parts: AgentDependencies) -> StagingArea:
    """In memory of the model's device, if the job asks for that and the sync engine can reach it.

    A delta is put together in host memory.
    """
    device = parts.engine.device
    direct = sync.staging == "Device" and not sync.delta and device in parts.sync.engine.memories
    return StagingArea(memory=device_allocator(device) if direct else None)


class Agent:
    """`run` works until stopped. Raises SpecError or CredentialsRefusedError for what is wrong."""

    def __init__(
        self, *, environment: RolloutEnvironment, member: MemberId, parts: AgentDependencies
    ) -> None:
        self._environment, self._member, self._parts = environment, member, parts
        self._metrics, self._stage = parts.metrics, make_stage(environment.job.weight_sync, parts)
        self._asked = 0  # prompts that the coordinator knows we want
        algorithm = environment.job.algorithm
        # Alone, so that what is drawn for a prompt does not depend on who is drawn with it.
        concurrency = 1 if algorithm.deterministic else parts.settings.concurrency
        self._target = IN_HAND * concurrency
        served = ServedVersions()
        self._stream = self._make_stream()
        self._driver = self._make_driver(served)
        self._readiness = Readiness(self._driver.machine)
        self._stopped = asyncio.Event()
        self._reporter = LeaseProgressReporter(self._stream.send)
        self._generator = GenerationWorker(
            engine=parts.engine,
            reward=parts.reward,
            served=served,
            metrics=parts.metrics,
            concurrency=concurrency,
            done=self._done,
            progress=PartialRollouts(
                algorithm.partial_report,
                self._report,
                keep=algorithm.partial_rollout and not algorithm.deterministic,
            ),
        )
        self._sender = CompletionSender(
            url=f"http://{environment.coordinator}:{env.COMPLETIONS_PORT}{env.COMPLETIONS_ROUTE}",
            token=environment.member_token,
            metrics=parts.metrics,
            answered=self._top_up,
        )
        self._drain = Drain(
            timeout=environment.pool.drain_timeout,
            generator=self._generator,
            sender=self._sender,
            reporter=self._reporter,
            send=self._stream.send,
            metrics=parts.metrics,
        )

    def drain(self, reason: str) -> None:
        """Begin to leave, then stay out until `stop`: a process that ended would be restarted in
        its pod, and be a member again.
        """
        self._drain.begin(reason)

    def stop(self, reason: str) -> None:
        """Begin to leave; `run` returns when that is done."""
        self._stopped.set()
        self._drain.begin(reason)

    async def run(self) -> None:
        """Serve until stopped and drained."""
        address = self._environment.pod.address
        metrics = MetricsServer(self._metrics, healthy=self._generator.stuck, ready=self._ready)
        server = AgentServer(
            token=self._environment.member_token,
            held=self._stage.held,
            drain=self.drain,
            refused=lambda what: self._metrics.refused(what=what).inc(),
            shard=self._shard,
            register=self._stream.register,
        )
        try:
            await metrics.start(address)
            await server.start(*{address, self._sync_address})
            await first_of(self._follow(), self._generator.run(), self._sender.run(), self._leave())
        finally:
            # The engine first: a generation that goes on would keep its thread, and the process.
            await asyncio.to_thread(self._parts.engine.close)
            await self._driver.close()
            await asyncio.to_thread(self._parts.sync.engine.close)
            await server.stop()
            await metrics.stop()

    @property
    def _sync_address(self) -> str:
        return self._parts.sync.address or self._environment.pod.address

    @property
    def _shard(self) -> str:
        return self._parts.sync.shard.key if self._parts.sync.shard else ""

    # --- inside --------------------------------------------------------------------------------

    def _make_stream(self) -> MemberStream:
        environment = self._environment
        port, route = env.MEMBERSHIP_PORT, env.MEMBER_STREAM_ROUTE
        return MemberStream(
            url=f"http://{environment.coordinator}:{port}{route}",
            token=environment.member_token,
            hello=self._hello,
            opened=self._opened,
            heard=self._heard,
            bounds=environment.job.membership,
        )

    def _make_driver(self, served: ServedVersions) -> MemberDriver:
        job, pool = self._environment.job, self._environment.pool
        sync = job.weight_sync
        duties = WeightReceiver(
            engine=self._parts.engine,
            stage=self._stage,
            served=served,
            bounds=WeightReceiverSettings(
                PauseMode(sync.pause_mode), sync.stage_timeout, sync.commit_timeout
            ),
            token=self._environment.member_token,
            metrics=self._metrics,
            delta=sync.delta,
            shard=self._parts.sync.shard,
        )
        return MemberDriver(
            member=self._member,
            group=f"{job.uid}/{pool.sync_group}",
            engine=self._parts.sync.engine,
            duties=duties,
            send=self._stream.send,
            join_timeout=sync.join_timeout,
        )

    def _hello(self) -> Hello:
        job, pool, pod = self._environment.job, self._environment.pool, self._environment.pod
        machine = self._driver.machine
        return Hello(
            job_uid=job.uid,
            group=pool.sync_group,
            member=self._member,
            pod=pod.name,
            pool=pool.pool,
            address=self._sync_address,
            descriptor=self._parts.sync.descriptor,
            session=machine.session,
            held=machine.held,
            shard=self._shard,
        )

    def _opened(self) -> None:
        self._metrics.reconnects.inc()
        self._asked = 0
        self._readiness.opened()
        if self._drain.draining:
            self._drain.announce()
        # Whole, and at once: what is not current any more is revoked in answer.
        self._reporter.reset()
        self._report()
        self._top_up()
        self._sender.retry()

    def _heard(self, message: CoordinatorMessage) -> None:
        if isinstance(message, PromptLease):
            self._take(message)
        elif isinstance(message, PromptLeaseRevoked):
            self._generator.revoke(message.lease)
            self._top_up()
        elif not isinstance(message, VersionAssigned):  # that is for senders
            self._driver.handle(message)
            self._readiness.heard(message)
            session = self._driver.machine.session
            if session is not None:
                self._metrics.epoch.set(session.epoch)
                self._metrics.session_attempt.set(session.attempt)

    def _take(self, lease: PromptLease) -> None:
        self._asked = max(0, self._asked - 1)
        if self._drain.draining:
            self._stream.send(PromptLeaseReturned(lease.lease))
        else:
            self._generator.add(lease)

    def _report(self) -> None:
        self._reporter.report(self._generator.lease_progress())

    def _done(self, drawn: FinishedLease) -> None:
        job = self._environment.job
        self._sender.offer(
            Completion(job.uid, self._member, drawn.lease.lease, drawn.version, drawn.samples)
        )
        # After all of a batch: one message instead of one for each of its prompts.
        asyncio.get_running_loop().call_soon(self._top_up)

    def _top_up(self) -> None:
        """Ask for as many prompts as are missing, unless completions pile up."""
        if self._drain.draining or not self._stream.connected:
            return
        hands = self._generator.in_hand + self._asked
        missing = min(self._target - hands, CAPACITY - self._sender.backlog - hands)
        if missing > 0:
            self._asked += missing
            self._stream.send(PromptCredit(missing))

    async def _follow(self) -> None:
        await self._stream.run()
        await self._stopped.wait()

    async def _leave(self) -> None:
        await self._drain.complete()
        self._stream.close()
        await self._stopped.wait()
        await asyncio.sleep(CLOSE_SECONDS)  # `run` ends before, when the stream has

    def _ready(self) -> str:
        if self._drain.draining:
            return "draining"
        if not self._stream.connected:
            return "no stream to the coordinator"
        return self._readiness.problem()
