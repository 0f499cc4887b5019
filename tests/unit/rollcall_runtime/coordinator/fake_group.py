"""A coordinator with real listeners on loopback, and members that speak to it in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from rollcall_protocol import pod_contract
from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import (
    AlgorithmConfig,
    EngineRef,
    JobConfig,
    MembershipConfig,
    OptimizerConfig,
    WeightSyncConfig,
)
from rollcall_protocol.prompts.ledger_state import LedgerState
from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.prompts.prompt_ledger import PromptLedger
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.ids import MemberId, SessionId, Version
from rollcall_protocol.wire.job_snapshot import JobSnapshot as State
from rollcall_protocol.wire.job_snapshot import SessionReport, SuspicionCause, TimeBound
from rollcall_protocol.wire.json_codec import encode
from rollcall_protocol.wire.messages import (
    COORDINATOR_MESSAGES,
    Completion,
    DigestsWanted,
    Hello,
    MemberMessage,
    PromptLease,
    PromptLeaseRevoked,
    Sample,
    Seat,
    SnapshotPartReady,
    TicketKey,
    VersionAssigned,
    WeightDelta,
    dumps,
    loads,
)
from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind
from rollcall_protocol.wire.roster import EpochCause, Roster, RosterMember
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.coordinator.coordinator import Coordinator
from rollcall_runtime.coordinator.prompt_dispatcher import PromptDispatcher
from rollcall_runtime.coordinator.server import CoordinatorServer
from rollcall_runtime.coordinator.sync_group_driver import Publication
from rollcall_runtime.membership.driver import MemberDriver
from rollcall_runtime.sync.engine import EngineKind, Role, SyncEngine, SyncSession, SyncSettings
from rollcall_runtime.sync.memory.buffers import HostBuffer
from rollcall_runtime.sync.open_engine import OpenEngine
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot
from rollcall_runtime.worker.identity.tls import TlsContext
from tests.networks import own_network
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up
from tests.unit.rollcall_runtime.credentials import ISSUER, bearer, verifier

# The ports are those of every coordinator: each process of tests has an address of its own.
ADDRESS = f"{own_network()}.1"
MANIFEST = WeightManifest(tensors=(), total_bytes=0, bucket_bytes=1, digests=())

CONFIG = JobConfig(
    namespace="default",
    job="job",
    uid="job-uid",
    model="builtin:reverse-tiny",
    data=DataConfig(sources=(DataSource("builtin:reverse"),)),
    reward_function="m:f",
    trainer_replicas=1,
    trainer_engine=EngineRef("fsdp2"),
    checkpoint=None,
    algorithm=AlgorithmConfig(
        name="grpo",
        group_size=2,
        prompts_per_step=4,
        max_steps=10,
        max_staleness=2,
        max_concurrent_rollouts=8,
        partial_rollout=True,
        optimizer=OptimizerConfig("adamw", 0.001),
    ),
    weight_sync=WeightSyncConfig(
        engine="memory",
        enabled=True,
        bucket_bytes=1 << 20,
        trigger_parameter_sync_step=1,
        pause_mode="Keep",
        stage_timeout=5,
        commit_timeout=5,
        join_timeout=5,
    ),
    # Workers here do not ping.
    membership=MembershipConfig(settle=2, ack_timeout=5, min_rollouts=1, suspect_after=60),
)


class MemoryEngine(SyncEngine):
    """Joins and transfers that always work at once; what is tested here is around them."""

    name = "memory"
    kind = EngineKind.GROUP
    devices = frozenset({"cpu"})
    abandoned = 0

    def open(self, *, member: MemberId, address: str, role: Role, settings: SyncSettings) -> bytes:
        return b""

    def open_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> SyncSession:
        return MemorySession(session=session, seats=seats, rank=rank)

    def close(self) -> None:
        pass


class MemorySession(SyncSession):
    def join(self, *, timeout: float) -> None:
        pass

    def publish(self, buffer: Any, manifest: WeightManifest, *, timeout: float) -> None:
        pass

    def receive(self, buffer: Any, manifest: WeightManifest, *, timeout: float) -> None:
        pass

    def abort(self) -> None:
        pass


class Counts:
    """A CoordinatorMetrics that records its calls."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.reward_errors: list[str] = []
        self.sessions: list[SessionReport] = []
        self.suspicions: list[tuple[SuspicionCause, float]] = []
        self.publications: list[Publication] = []
        self.time_outs: list[TimeBound] = []

    def refused(self, what: str) -> None:
        self.refusals.append(what)

    def reward_failed(self, kind: RewardErrorKind) -> None:
        self.reward_errors.append(kind.value)

    def suspected(self, cause: SuspicionCause, seconds: float) -> None:
        self.suspicions.append((cause, seconds))

    def session_formed(self, report: SessionReport) -> None:
        self.sessions.append(report)

    def session_timed_out(self, bound: TimeBound) -> None:
        self.time_outs.append(bound)

    def published(self, publication: Publication) -> None:
        self.publications.append(publication)

    def prompts(self, ledger: PromptLedger) -> None:
        pass


class NothingToLoad:
    """The rest of a WeightHandler, for a test that is about `transfer`."""

    async def apply(self, version: Version) -> None:
        pass

    async def fetch(
        self,
        version: Version,
        manifest: WeightManifest,
        *,
        donors: tuple[str, ...],
        tickets: tuple[str, ...],
    ) -> tuple[str, ...]:
        return ()


@dataclass
class Worker(NothingToLoad):
    """A member: its stream, its machine, and the leases it was given."""

    member: MemberId
    socket: aiohttp.ClientWebSocketResponse
    leases: "asyncio.Queue[PromptLease]" = field(default_factory=asyncio.Queue)
    revoked: list[str] = field(default_factory=list)
    staged: list[WeightManifest] = field(default_factory=list)
    named: list[VersionAssigned] = field(default_factory=list)
    wanted: list[DigestsWanted] = field(default_factory=list)
    fetched: list[WeightManifest] = field(default_factory=list)
    keys: list[TicketKey] = field(default_factory=list)
    pod: str = ""
    deltas: list[WeightDelta | None] = field(default_factory=list)

    async def transfer(
        self,
        session: SyncSession,
        version: Version,
        manifest: WeightManifest,
        delta: WeightDelta | None,
    ) -> None:
        self.staged.append(manifest)
        self.deltas.append(delta)

    async def fetch(
        self,
        version: Version,
        manifest: WeightManifest,
        *,
        donors: tuple[str, ...],
        tickets: tuple[str, ...],
    ) -> tuple[str, ...]:
        self.fetched.append(manifest)
        return ()

    async def run(self) -> None:
        outbox: asyncio.Queue[MemberMessage] = asyncio.Queue()
        driver = MemberDriver(
            member=self.member,
            group="g",
            engine=MemoryEngine(),
            weight_handler=self,
            send=outbox.put_nowait,
            join_timeout=5,
        )
        self.driver = driver
        writer = asyncio.create_task(self._write(outbox))
        try:
            async for frame in self.socket:
                message = loads(frame.data, COORDINATOR_MESSAGES)
                if isinstance(message, PromptLease):
                    self.leases.put_nowait(message)
                elif isinstance(message, PromptLeaseRevoked):
                    self.revoked.append(message.lease_id)
                elif isinstance(message, VersionAssigned):
                    self.named.append(message)
                elif isinstance(message, DigestsWanted):
                    self.wanted.append(message)
                elif isinstance(message, TicketKey):
                    self.keys.append(message)
                else:
                    driver.handle(message)
        finally:
            writer.cancel()
            await driver.close()

    async def _write(self, outbox: "asyncio.Queue[MemberMessage]") -> None:
        while True:
            await self.socket.send_str(dumps(await outbox.get()))

    async def say(self, message: MemberMessage) -> None:
        await self.socket.send_str(dumps(message))


class Group:
    """Coordinator, its listeners, and a client of each kind."""

    def __init__(
        self,
        folder: Path,
        *,
        config: JobConfig = CONFIG,
        engines: Sequence[OpenEngine] = (),
        senders: int = 1,
        trainers: int = 0,  # pods of the trainer; 0: one for each sender
        address: str = ADDRESS,
        name: str = "",
        ledger_state: LedgerState | None = None,
        certificate: TlsContext | None = None,
    ) -> None:
        self.counts = Counts()
        self.address = address
        self.config = config = replace(config, trainer_replicas=trainers or senders)
        self.prompts = PromptDispatcher(
            config=config,
            source=lambda index: Prompt((index,)),
            state=ledger_state,
            metrics=self.counts,
            bounds=SampleBounds(vocabulary=64),
        )
        self.coordinator = Coordinator(
            config=config.coordinator,
            member=MemberId("trainer-uid", "b1"),
            address=address,
            name=name or address,
            state_dir=folder,
            engines=engines or [OpenEngine("default", MemoryEngine(), "")],
            metrics=self.counts,
            senders=senders,
            prompts=self.prompts,
        )
        self.server = CoordinatorServer(
            self.coordinator,
            address=address,
            verifier=verifier(config.uid, namespace=config.namespace),
            metrics=self.counts,
            certificate=certificate,
            prompts=self.prompts,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: list[Worker] = []

    async def __aenter__(self) -> "Group":
        await self.server.start()
        self.http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.coordinator.stop()
        for worker in self._workers:
            await worker.socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.http.close()
        await self.server.stop()

    def url(self, route: str, port: int = pod_contract.MEMBERSHIP_PORT) -> str:
        return f"http://{self.address}:{port}{route}"

    def token(self, pod: str) -> str:
        """The token of a pod of the job's namespace."""
        job, namespace = self.config.uid, self.config.namespace
        return ISSUER.pod_token(job_uid=job, pod=pod, pod_uid=f"uid-{pod}", namespace=namespace)

    def operator_token(self) -> str:
        return ISSUER.operator_token(job_uid=self.config.uid)

    async def push(self, epoch: int, *pods: str, token: str = "") -> tuple[int, Any]:
        """Members are pods of the default group, or "pod@group"."""
        members = tuple(
            RosterMember(f"uid-{pod}", pod, ADDRESS, "pool", group or "default")
            for pod, _, group in (name.partition("@") for name in pods)
        )
        roster = Roster("job-uid", "default", epoch, "trainer-uid", EpochCause.JOB_STARTED, members)
        return await self.put(roster, token=token)

    async def put(self, roster: Any, *, token: str = "") -> tuple[int, Any]:
        headers = bearer(token or self.operator_token())
        async with self.http.put(
            self.url(pod_contract.ROSTER_ROUTE), json=encode(roster), headers=headers
        ) as answer:
            return answer.status, await answer.json()

    async def join(
        self,
        pod: str,
        *,
        boot: str = "b1",
        group: str = "default",
        sender: int | None = None,
        generates: bool = True,
    ) -> Worker:
        member = MemberId(f"uid-{pod}", boot)
        socket = await self.http.ws_connect(
            self.url(pod_contract.MEMBER_STREAM_ROUTE),
            headers=bearer(self.token(pod)),
        )
        worker = Worker(member, socket, pod=pod)
        pool = "pool" if sender is None else ""  # as a trainer rank says
        hello = Hello(
            "job-uid", group, member, pod, pool, ADDRESS, "", sender=sender, generates=generates
        )
        await worker.say(hello)
        self._workers.append(worker)
        self._tasks.append(asyncio.create_task(worker.run()))
        return worker

    async def complete(
        self,
        worker: Worker,
        lease: PromptLease,
        *,
        number: int = 0,
        token: str = "",
        job_uid: str = "job-uid",
        sample: Sample | None = None,
        errors: tuple[RewardError, ...] = (),
    ) -> int:
        lineage = self.coordinator.lineage
        assert lineage is not None
        samples = (sample or Sample((3,), (-1.0,), (number,), 0.5),) * lease.group_size
        version = Version(lineage, number)
        body = Completion(job_uid, worker.member, lease.lease_id, version, samples, errors)
        async with self.http.post(
            self.url(pod_contract.COMPLETIONS_ROUTE, pod_contract.COMPLETIONS_PORT),
            data=dumps(body),
            headers=bearer(token or self.token(worker.pod)),
        ) as answer:
            return answer.status

    async def publish(self, number: int, manifest: WeightManifest = MANIFEST) -> None:
        lineage = self.coordinator.lineage
        assert lineage is not None
        snapshot = WeightSnapshot(manifest, HostBuffer(manifest.total_bytes).hold())
        async with asyncio.timeout(5):
            await self.coordinator.publish(Version(lineage, number), snapshot)

    async def publish_with(self, sender: Worker, part: WeightManifest) -> None:
        """Publish the next version, of which another trainer rank sends `part`."""
        number = self.coordinator.parts.awaited
        await sender.say(SnapshotPartReady(number, part))
        await self.publish(number, WeightManifest((), 200, part.bucket_bytes, made_up(5)))

    @contextlib.asynccontextmanager
    async def follow(self) -> AsyncIterator["asyncio.Queue[State]"]:
        """The operator's stream, as a queue of snapshots."""
        seen: asyncio.Queue[State] = asyncio.Queue()

        async def read() -> None:
            headers = {pod_contract.OPERATOR_TOKEN_HEADER: self.operator_token()}
            async with self.http.get(
                self.url(pod_contract.OPERATOR_STREAM_ROUTE), headers=headers
            ) as stream:
                async for line in stream.content:
                    if line.strip():
                        seen.put_nowait(loads(line, State))

        task = asyncio.create_task(read())
        yield seen
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def eventually(condition: Any, seconds: float = 30) -> None:
    """Wait until `condition()` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def with_bounds(**changes: Any) -> JobConfig:
    """CONFIG with other membership bounds."""
    return replace(CONFIG, membership=replace(CONFIG.membership, **changes))
