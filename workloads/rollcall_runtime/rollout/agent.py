"""The rollout agent: a member of the sync group that samples responses for the trainer.

It owns the stream, the generation worker and the completion sender; all run in one event loop.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import WeightSyncConfig
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import (
    Completion,
    CoordinatorMessage,
    DigestsWanted,
    Hello,
    PromptCredit,
    PromptLease,
    PromptLeaseReturned,
    PromptLeaseRevoked,
    TicketKey,
    VersionAssigned,
)
from rollcall_runtime.membership.coordinator_connection import MemberStream
from rollcall_runtime.membership.driver import MemberDriver
from rollcall_runtime.rollout.agent_server import AgentServer
from rollcall_runtime.rollout.completion_sender import CAPACITY, CompletionSender
from rollcall_runtime.rollout.conversation import Conversations
from rollcall_runtime.rollout.drain import Drain
from rollcall_runtime.rollout.generation_endpoint import AT_ONCE, GenerationEndpoint
from rollcall_runtime.rollout.generation_worker import (
    FinishedLease,
    GenerationWorker,
    PartialRollouts,
)
from rollcall_runtime.rollout.inference_engine import InferenceEngine, PauseMode
from rollcall_runtime.rollout.lease_progress import LeaseProgressReporter
from rollcall_runtime.rollout.readiness_probe import Readiness
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.rollout.weight_receiver import WeightReceiver, WeightReceiverSettings
from rollcall_runtime.sync.memory.device_allocators import device_allocator
from rollcall_runtime.sync.open_engine import OpenEngine
from rollcall_runtime.sync.weights.staging import StagingArea
from rollcall_runtime.sync.weights.tickets import TicketKeys
from rollcall_runtime.tasks.reward_process import RewardScorer
from rollcall_runtime.worker.asyncio_helpers import first_of
from rollcall_runtime.worker.auth import Authenticator
from rollcall_runtime.worker.environment import RolloutEnvironment
from rollcall_runtime.worker.identity.roles import RoleBook
from rollcall_runtime.worker.metrics_server import MetricsServer
from rollcall_runtime.worker.name_look_ups import NameLookUps
from rollcall_runtime.worker.telemetry import RolloutMetrics

log = logging.getLogger(__name__)

STAGED_COPIES = 2  # of the weights: the version that serves, and the next one
BATCHES_LEASED = 2  # what is being sampled, and as much that waits or is scored
CLOSE_SECONDS = 2.0
LEAST_OF_THE_FRONT = 8  # requests at once, beside leased prompts


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The agent's part of a pool's `engine.config`: how many prompts it samples at once."""

    concurrency: int = 4

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError("concurrency must be at least 1")


@dataclass(frozen=True, slots=True)
class AgentDependencies:
    """What `app` opens for the agent. The agent closes the two engines.

    Responses that come with a lease and are beyond `bounds` are sampled again.
    """

    engine: InferenceEngine
    sync: OpenEngine
    reward: RewardScorer
    settings: AgentSettings
    metrics: RolloutMetrics
    bounds: SampleBounds
    conversations: Conversations | None = None
    log_fields: dict[str, Any] = field(default_factory=dict)  # of all lines; the epoch is kept


def make_stage(sync: WeightSyncConfig, dependencies: AgentDependencies) -> StagingArea:
    """A staging area in the model's device memory, if the job asks and the sync engine can.

    The inference engine, which is not started yet, gets its `staged_copies`. A delta is always
    applied in host memory. That is shared if the engine is a process of its own that reads it.
    """
    device = dependencies.engine.device
    direct = (
        sync.staging == "Device"
        and not sync.delta
        and device in dependencies.sync.engine.buffer_devices
    )
    memory = device_allocator(device) if direct else None
    if memory is not None:
        dependencies.engine.staged_copies = STAGED_COPIES
    return StagingArea(
        memory=memory,
        shared=dependencies.engine.reads_shared_memory,
    )


class Agent:
    """Runs until stopped. `run` raises SpecError, or CredentialsRefusedError for a wrong token."""

    def __init__(
        self, *, environment: RolloutEnvironment, member: MemberId, dependencies: AgentDependencies
    ) -> None:
        self._environment, self._member, self._dependencies = environment, member, dependencies
        self._metrics, self._stage = (
            dependencies.metrics,
            make_stage(environment.job.weight_sync, dependencies),
        )
        self._credit = 0  # prompts that were asked for and have not come
        algorithm = environment.job.algorithm
        # One at a time, so that the samples of a prompt do not depend on the rest of a batch.
        concurrency = 1 if algorithm.deterministic else dependencies.settings.concurrency
        self._target = BATCHES_LEASED * concurrency if dependencies.engine.generates else 0
        served = ServedVersions()
        self._tickets = TicketKeys()
        self._names = NameLookUps()
        self._stream = self._make_stream()
        self._driver = self._make_driver(served)
        self._readiness = Readiness(self._driver.machine)
        self._stopped = asyncio.Event()
        self._reporter = LeaseProgressReporter(self._stream.send)
        self._generator = GenerationWorker(
            engine=dependencies.engine,
            reward=dependencies.reward,
            served=served,
            metrics=dependencies.metrics,
            concurrency=concurrency,
            sampling=algorithm.sampling,
            done=self._done,
            conversations=dependencies.conversations,
            partial=PartialRollouts(
                algorithm.partial_report,
                self._report,
                keep=algorithm.partial_rollout and not algorithm.deterministic,
            ),
        )
        self._sender = CompletionSender(
            url=environment.coordinator_url(
                pod_contract.COMPLETIONS_PORT, pod_contract.COMPLETIONS_ROUTE
            ),
            token=environment.token,
            metrics=dependencies.metrics,
            answered=self._request_prompts,
            names=self._names,
            tls=environment.trust.client_context,
        )
        # Beside leased prompts the front has no more of the engine than the trainer has.
        of_the_front = max(LEAST_OF_THE_FRONT, concurrency * algorithm.group_size)
        self._endpoint = GenerationEndpoint(
            engine=dependencies.engine,
            served=served,
            bounds=dependencies.bounds,
            tickets=self._tickets,
            metrics=dependencies.metrics,
            draining=lambda: self._drain.draining,
            at_once=lambda: of_the_front if self._generator.leases else AT_ONCE,
        )
        self._port = pod_contract.AGENT_PORT
        self._starting = True
        self._drain = Drain(
            timeout=environment.pool.drain_timeout,
            generator=self._generator,
            endpoint=self._endpoint,
            sender=self._sender,
            reporter=self._reporter,
            send=self._stream.send,
            metrics=dependencies.metrics,
        )

    def drain(self, reason: str) -> None:
        """Begin to leave, then stay until `stop`.

        If the process ended, its container would be restarted and join again.
        """
        self._drain.begin(reason)

    def stop(self, reason: str) -> None:
        """Begin to leave; `run` returns when the rollout is drained."""
        self._stopped.set()
        self._drain.begin(reason)

    async def run(self) -> None:
        """Work until stopped and drained."""
        address = self._environment.pod.address
        metrics = MetricsServer(
            self._metrics,
            healthy=self._health,
            ready=self._ready,
            engines=self._dependencies.engine.metrics,
        )
        server = AgentServer(
            authenticator=self._make_authenticator(),
            tickets=self._tickets,
            held=self._stage.held,
            drain=self.drain,
            refused=self._refused,
            shard=self._shard,
            reconnect=self._stream.reconnect,
            generate=self._endpoint.handle,
        )
        async with AsyncExitStack() as closing:  # the last first, each whatever the others raise
            closing.push_async_callback(metrics.stop)
            closing.push_async_callback(server.stop)
            closing.push_async_callback(asyncio.to_thread, self._dependencies.sync.engine.close)
            closing.push_async_callback(self._driver.close)
            closing.push_async_callback(self._dependencies.engine.close)
            own_port = self._environment.own_port
            await metrics.start(address, own_port(pod_contract.METRICS_PORT))
            # Which may take minutes; a rollout that is stopped meanwhile leaves at once.
            await first_of(self._dependencies.engine.start(), self._stopped.wait())
            self._starting = False
            addresses = {address, self._sync_address}
            self._port = await server.start(*addresses, port=own_port(self._port))
            await first_of(self._follow(), self._generator.run(), self._sender.run(), self._leave())

    @property
    def _sync_address(self) -> str:
        return self._dependencies.sync.address or self._environment.pod.address

    @property
    def _shard(self) -> str:
        return self._dependencies.sync.shard.key if self._dependencies.sync.shard else ""

    # --- inside --------------------------------------------------------------------------------

    def _make_stream(self) -> MemberStream:
        environment = self._environment
        port, route = pod_contract.MEMBERSHIP_PORT, pod_contract.MEMBER_STREAM_ROUTE
        return MemberStream(
            url=environment.coordinator_url(port, route),
            token=environment.token,
            hello=self._hello,
            opened=self._on_open,
            received=self._on_message,
            bounds=environment.job.membership,
            names=self._names,
            tls=environment.trust.client_context,
        )

    def _make_authenticator(self) -> Authenticator:
        job, pod = self._environment.job, self._environment.pod
        book = RoleBook(job.job, job.trainer_replicas, own_pod_uid=pod.uid)
        return Authenticator(self._environment.verifier(), book, self._refused)

    def _refused(self, what: str) -> None:
        self._metrics.refused(what=what).inc()

    def _make_driver(self, served: ServedVersions) -> MemberDriver:
        job, pool = self._environment.job, self._environment.pool
        sync = job.weight_sync
        receiver = WeightReceiver(
            engine=self._dependencies.engine,
            stage=self._stage,
            served=served,
            settings=WeightReceiverSettings(
                PauseMode(sync.pause_mode), sync.stage_timeout, sync.commit_timeout
            ),
            metrics=self._metrics,
            delta=sync.delta,
            shard=self._dependencies.sync.shard,
        )
        return MemberDriver(
            member=self._member,
            group=f"{job.uid}/{pool.sync_group}",
            engine=self._dependencies.sync.engine,
            weight_handler=receiver,
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
            descriptor=self._dependencies.sync.descriptor,
            session=machine.session,
            held=machine.held,
            shard=self._shard,
            generates=self._dependencies.engine.generates,
            weights_port=self._port,
        )

    def _on_open(self) -> None:
        self._metrics.reconnects.inc()
        self._credit = 0
        self._readiness.stream_opened()
        if self._drain.draining:
            self._drain.announce()
        # Report everything at once: leases that are not current any more are revoked in answer.
        self._reporter.reset()
        self._report()
        self._request_prompts()
        self._sender.retry()

    def _on_message(self, message: CoordinatorMessage) -> None:
        if isinstance(message, PromptLease):
            self._take(message)
        elif isinstance(message, PromptLeaseRevoked):
            self._generator.revoke(message.lease_id)
            self._request_prompts()
        elif isinstance(message, TicketKey):
            self._tickets.accept("coordinator", message.key)
        elif not isinstance(message, (VersionAssigned, DigestsWanted)):  # these are for senders
            self._driver.handle(message)
            self._readiness.message_received(message)
            session = self._driver.machine.session
            if session is not None:
                self._dependencies.log_fields["epoch"] = session.epoch
                self._metrics.epoch.set(session.epoch)
                self._metrics.session_attempt.set(session.attempt)

    def _take(self, lease: PromptLease) -> None:
        self._credit = max(0, self._credit - 1)
        if self._drain.draining:
            self._stream.send(PromptLeaseReturned(lease.lease_id))
        else:
            self._generator.add(self._without_bad_partial(lease))

    def _without_bad_partial(self, lease: PromptLease) -> PromptLease:
        """The lease, from the beginning if another rollout's tokens cannot be continued."""
        bounds, partial = self._dependencies.bounds, lease.partial
        bad = bounds.check_partial(partial, lease) if partial is not None else None
        if bad is None:
            return lease
        self._metrics.refused(what=f"bad_partial_{bad.fault.value}").inc()
        log.warning("prompt %d is sampled from the beginning: %s", lease.prompt, bad.problem)
        return replace(lease, partial=None)

    def _report(self) -> None:
        self._reporter.report(self._generator.lease_progress())

    def _done(self, finished: FinishedLease) -> None:
        job = self._environment.job
        self._sender.offer(
            Completion(
                job.uid,
                self._member,
                finished.lease.lease_id,
                finished.version,
                finished.samples,
                finished.reward_errors,
            )
        )
        # Later, so that prompts that end together give one request.
        asyncio.get_running_loop().call_soon(self._request_prompts)

    def _request_prompts(self) -> None:
        """Ask for as many prompts as are missing, fewer while completions wait for delivery."""
        if self._drain.draining or not self._stream.connected:
            return
        leased = self._generator.leases + self._credit
        missing = min(self._target - leased, CAPACITY - self._sender.backlog - leased)
        if missing > 0:
            self._credit += missing
            self._stream.send(PromptCredit(missing))

    async def _follow(self) -> None:
        await self._stream.run()
        await self._stopped.wait()

    async def _leave(self) -> None:
        await self._drain.complete()
        self._stream.close()
        await self._stopped.wait()
        await asyncio.sleep(CLOSE_SECONDS)  # `run` ends earlier if the stream does

    def _health(self) -> str:
        # The startup probe fails meanwhile, so that the operator does not take it for absent.
        return "the inference engine is starting" if self._starting else self._generator.stuck()

    def _ready(self) -> str:
        if self._drain.draining:
            return "draining"
        if not self._stream.connected:
            return "no stream to the coordinator"
        return self._dependencies.engine.failure or self._readiness.problem()
