"""A trainer rank other than 0 that sends its own part of the weights.

The rank is a member of every sync group, like a rollout, with a stream to the coordinator for each.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import DeltaConfig
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import (
    CoordinatorMessage,
    DigestsWanted,
    Hello,
    PartDigests,
    PromptLease,
    PromptLeaseRevoked,
    SnapshotPartReady,
    TicketKey,
    VersionAssigned,
    WeightDelta,
)
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.membership.coordinator_connection import MemberStream
from rollcall_runtime.membership.driver import MemberDriver
from rollcall_runtime.membership.weight_sender import WeightSender
from rollcall_runtime.sync.engine import SyncSession
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.open_engine import OpenEngine
from rollcall_runtime.sync.weights.catch_up import weights_handler
from rollcall_runtime.sync.weights.delta import DeltaEncoder, EncodedDelta
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot, digests_of
from rollcall_runtime.sync.weights.tickets import TicketKeys
from rollcall_runtime.worker.asyncio_helpers import first_of
from rollcall_runtime.worker.bounded_listener import BoundedRunner
from rollcall_runtime.worker.environment import TrainerEnvironment, new_member
from rollcall_runtime.worker.log_rate import REPEATED

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
KEPT = 2  # snapshots: the one that new members may fetch, and the one that is being sent


@dataclass(slots=True)
class _Part:
    """A part of a snapshot, and its delta from the part before if that is short."""

    weights: WeightSnapshot
    delta: EncodedDelta | None

    def ready_message(self, number: int) -> SnapshotPartReady:
        """The message that reports this part to the coordinator."""
        return SnapshotPartReady(
            number, self.weights.manifest, self.delta.manifest if self.delta else None
        )


class SnapshotPartSender(WeightSender):
    """Owns this rank's parts of the newest snapshots, and sends the part of a version."""

    def __init__(
        self, *, rank: int, stage_timeout: float, delta: DeltaConfig | None = None
    ) -> None:
        super().__init__(stage_timeout=stage_timeout)
        self._rank = rank
        self._encoder = DeltaEncoder(delta) if delta else None
        self._parts: dict[int, _Part] = {}
        self._versions: dict[Version, int] = {}

    @property
    def parts(self) -> list[SnapshotPartReady]:
        """The messages that report the held parts to the coordinator."""
        return [part.ready_message(number) for number, part in self._parts.items()]

    async def offer(self, number: int, weights: WeightSnapshot) -> SnapshotPartReady:
        """Take ownership of the part of the `number`-th snapshot; returns the message about it."""
        before = self._parts.get(number - 1)
        delta = None
        if self._encoder is not None and before is not None:
            delta = await self._encoder.encode(before.weights, weights)
        self._parts[number] = _Part(weights, delta)
        return self._parts[number].ready_message(number)

    def held(self, version: Version) -> WeightSnapshot | None:
        """The part of `version` for a member that fetches it, if it is held."""
        part = self._parts.get(self._versions.get(version, -1))
        return part.weights if part else None

    async def digests(self, version: Version) -> PartDigests:
        """The answer to DigestsWanted."""
        held = self.held(version)
        if held is None:
            return PartDigests(version, None)
        return PartDigests(version, await asyncio.to_thread(digests_of, held.share()))

    def assign_version(self, message: VersionAssigned) -> None:
        """The coordinator assigned a version to a snapshot."""
        self._versions[message.version] = message.number
        self._release(message.number)

    def close(self) -> None:
        """Release the snapshots of all parts that are held."""
        while self._parts:
            self._parts.popitem()[1].weights.release()

    async def transfer(
        self,
        session: SyncSession,
        version: Version,
        manifest: WeightManifest,
        delta: WeightDelta | None,
    ) -> None:
        """Send this rank's part of `manifest` or `delta`; SyncError if it is not held."""
        buffer = self._find(manifest, delta, session.buffer_devices)
        if buffer is None:
            raise SyncError(f"rank {self._rank} does not hold its part of {version}")
        await self.publish(session, buffer, manifest, delta)

    def _find(
        self, manifest: WeightManifest, delta: WeightDelta | None, buffer_devices: frozenset[str]
    ) -> Buffer | None:
        part = manifest.part(self._rank)
        for held in self._parts.values():
            if _same(held.weights.manifest, part):
                if delta is None:
                    return held.weights.buffer_in(buffer_devices)
                changes = delta.manifest.part(self._rank)
                if held.delta is not None and _same(held.delta.manifest, changes):
                    return held.delta.buffer
        return None

    def _release(self, number: int) -> None:
        for older in [n for n in self._parts if n <= number - KEPT]:
            self._parts.pop(older).weights.release()
        for part in [part for n, part in self._parts.items() if n < number]:
            part.delta = None  # it has been delivered, as a delta or whole
        self._versions = {v: n for v, n in self._versions.items() if n in self._parts}


def _same(held: WeightManifest, part: WeightManifest) -> bool:
    return (held.total_bytes, held.digests) == (part.total_bytes, part.digests)


def _log_refusal(what: str) -> None:
    log.warning("refused a request: %s", what, extra=REPEATED)


class SenderRank:
    """Streams, engine sessions and the weights route of one rank. Belongs to one event loop."""

    def __init__(self, *, environment: TrainerEnvironment, engines: Sequence[OpenEngine]) -> None:
        self._environment = environment
        sync = environment.job.weight_sync
        self._parts = SnapshotPartSender(
            rank=environment.rank, stage_timeout=sync.stage_timeout, delta=sync.delta
        )
        self._tickets = TicketKeys()
        self._members = [
            _GroupMember(environment, opened, self._parts, self._tickets) for opened in engines
        ]
        app = web.Application()
        handler = weights_handler(self._parts.held)
        app.router.add_get(pod_contract.WEIGHTS_ROUTE, self._tickets.guard(handler, _log_refusal))
        self._port = pod_contract.weights_port(environment.local_rank)
        self._runner = BoundedRunner(app, refused=_log_refusal, shutdown_timeout=STOP_SECONDS)

    async def run(self) -> None:
        """Listen and send this rank's parts until cancelled; then release everything."""
        try:
            await self._runner.setup()
            for address in {member.address for member in self._members}:
                await web.TCPSite(self._runner, address, self._port).start()
            await first_of(*(member.run() for member in self._members))
        finally:
            for member in self._members:
                await member.driver.close()
            await self._runner.cleanup()
            self._parts.close()

    def withdraw(self) -> None:
        """Release all parts: the last version has been delivered and its buffer is needed again."""
        self._parts.close()

    async def offer(self, number: int, part: WeightSnapshot) -> None:
        """Take ownership of this rank's part of the `number`-th snapshot, and report it."""
        self._members[0].stream.send(await self._parts.offer(number, part))


class _GroupMember:
    """The rank's membership in one group: an identity, a stream and a driver."""

    def __init__(
        self,
        environment: TrainerEnvironment,
        opened: OpenEngine,
        parts: SnapshotPartSender,
        tickets: TicketKeys,
    ) -> None:
        self._environment, self._opened, self._parts = environment, opened, parts
        self._tickets = tickets
        self._member = new_member(environment.pod)
        self._wanted: asyncio.Queue[Version] = asyncio.Queue()
        job = environment.job
        self.address = opened.address or environment.pod.address
        self.stream = MemberStream(
            url=environment.coordinator_url(
                pod_contract.MEMBERSHIP_PORT, pod_contract.MEMBER_STREAM_ROUTE
            ),
            token=environment.token,
            hello=self._hello,
            opened=self._report_parts,
            received=self._on_message,
            bounds=job.membership,
            tls=environment.trust.client_context,
        )
        self.driver = MemberDriver(
            member=self._member,
            group=f"{job.uid}/{opened.name}",
            engine=opened.engine,
            weight_handler=parts,
            send=self.stream.send,
            join_timeout=job.weight_sync.join_timeout,
        )

    async def run(self) -> None:
        """Follow the coordinator, and answer it, until cancelled."""
        await first_of(self.stream.run(), self._answer())

    async def _answer(self) -> None:
        while True:
            self.stream.send(await self._parts.digests(await self._wanted.get()))

    def _hello(self) -> Hello:
        environment, pod = self._environment, self._environment.pod
        return Hello(
            job_uid=environment.job.uid,
            group=self._opened.name,
            member=self._member,
            pod=pod.name,
            pool="",
            address=self.address,
            descriptor=self._opened.descriptor,
            session=self.driver.machine.session,
            sender=environment.rank,
            weights_port=pod_contract.weights_port(environment.local_rank),
        )

    def _report_parts(self) -> None:
        for part in self._parts.parts:
            self.stream.send(part)

    def _on_message(self, message: CoordinatorMessage) -> None:
        if isinstance(message, VersionAssigned):
            self._parts.assign_version(message)
        elif isinstance(message, DigestsWanted):
            self._wanted.put_nowait(message.version)
        elif isinstance(message, TicketKey):
            self._tickets.accept(self._opened.name, message.key)
        elif not isinstance(message, (PromptLease, PromptLeaseRevoked)):
            self.driver.handle(message)
