"""The job that is attacked, and what an attacker of each role has."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from hack.attacks.attack import NotRefusedError
from hack.attacks.clients import Endpoint, web_socket
from rollcall_protocol import pod_contract
from rollcall_protocol.algorithm_settings import preset
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Hello, dumps
from rollcall_protocol.wire.roster import EpochCause, RosterMember
from tests.process.harness import FAST, LocalJob, in_sync
from tests.process.pods import ISSUER, Pod
from tests.unit.rollcall_runtime.jobs import job_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from rollcall_protocol.job_config import JobConfig

POOL = "reverse-cpu"
START_SECONDS = 180.0
POLL_SECONDS = 0.1


def attacked_config() -> JobConfig:
    """A job with every listener: two trainer ranks, a reference pod, rollouts."""
    return job_config(
        algorithm={
            "max_steps": 1_000_000,
            "prompts_per_step": 8,
            "group_size": 8,
            # Without the entropy it stays for a thousand steps where groups of 8 samples are alike.
            "settings": preset("grpo", kl_coefficient=1e-9, entropy_coefficient=0.01),
        },
        membership=FAST,
        weight_sync={"engine": "gloo"},
        trainer_replicas=2,
        tls=True,
    )


@dataclass(frozen=True, slots=True)
class Attacker:
    """A pod that an attacker has: its token, and its name and uid in it."""

    pod: str
    uid: str
    address: str
    token: str

    def hello(self, job: str, /, *, boot: str = "boot", **changes: Any) -> Hello:
        """What the pod says first on its stream."""
        values: dict[str, Any] = {
            "job_uid": job,
            "group": "default",
            "member": MemberId(self.uid, boot),
            "pod": self.pod,
            "pool": POOL,
            "address": self.address,
            "descriptor": "",
        }
        return Hello(**values | changes)


class AttackedJob:
    """The workers of `job`, their endpoints, and attackers. `seed` is that of everything random."""

    def __init__(self, job: LocalJob, *, seed: int) -> None:
        self.job, self.seed = job, seed
        self.random = random.Random(seed)
        self._on_roster: list[RosterMember] = []
        self._given = 100

    @property
    def uid(self) -> str:
        """The uid of the attacked RLJob, which its tokens name."""
        return self.job.config.uid

    @property
    def workers(self) -> list[Pod]:
        """The pods of trainers, rollouts and reference, which do not attack."""
        reference = [self.job.reference] if self.job.reference else []
        return [*self.job.trainers, *self.job.rollouts, *reference]

    @property
    def membership(self) -> Endpoint:
        """The coordinator's endpoint for streams and rosters."""
        return Endpoint(self.job.trainer.address, pod_contract.MEMBERSHIP_PORT, tls=True)

    @property
    def weights(self) -> Endpoint:
        """The coordinator's endpoint for weights."""
        return Endpoint(self.job.trainer.address, pod_contract.weights_port(0))

    @property
    def completions(self) -> Endpoint:
        """The coordinator's endpoint for completions."""
        return Endpoint(self.job.trainer.address, pod_contract.COMPLETIONS_PORT, tls=True)

    @property
    def agent(self) -> Endpoint:
        """The first rollout's own endpoint."""
        return Endpoint(self.job.rollouts[0].address, pod_contract.AGENT_PORT)

    @property
    def ranks_rendezvous(self) -> Endpoint:
        """Where the trainer's ranks meet."""
        return Endpoint(self.job.trainer.address, pod_contract.RENDEZVOUS_PORT)

    @property
    def reference(self) -> Endpoint:
        """The reference pod's endpoint."""
        assert self.job.reference is not None
        return Endpoint(self.job.reference.address, pod_contract.REFERENCE_PORT, tls=True)

    def probes(self, pod: Pod) -> Endpoint:
        """A worker's endpoint for probes and metrics."""
        return Endpoint(pod.address, pod_contract.METRICS_PORT)

    @property
    def http_endpoints(self) -> list[Endpoint]:
        """One listener of each kind that speaks HTTP."""
        endpoints = [self.membership, self.completions, self.weights, self.agent, self.reference]
        return [*endpoints, self.probes(self.job.trainer), self.probes(self.job.rollouts[0])]

    # --- attackers -------------------------------------------------------------------------------

    def registered(self, pod: str = "") -> Attacker:
        """A pod of the namespace with a token for this job, which is on no roster."""
        name, uid = pod or f"outsider-{self.random.randrange(10**6)}", str(uuid.uuid4())
        return Attacker(name, uid, self.job.spare_address, self._token(name, uid))

    def rank(self) -> Attacker:
        """The trainer's second rank, taken over."""
        pod = self.job.trainers[1]
        return Attacker(pod.name, pod.uid, pod.address, pod.token(self.uid))

    def rollout(self, number: int = 0) -> Attacker:
        """What an attacker has who reads an honest rollout's token."""
        pod = self.job.rollouts[number]
        return Attacker(pod.name, pod.uid, pod.address, pod.token(self.uid))

    @contextlib.asynccontextmanager
    async def members(self, count: int = 1) -> AsyncIterator[list[Attacker]]:
        """Pods on the roster that the attacker runs in place of rollouts."""
        attackers = []
        for _ in range(count):
            self._given += 1
            address = self.job.spare_address.rpartition(".")[0] + f".{self._given}"
            name, uid = f"{POOL}-hostile-{self._given}", str(uuid.uuid4())
            attackers.append(Attacker(name, uid, address, self._token(name, uid)))
        self._given = 100 + (self._given - 100) % 120
        seats = [RosterMember(a.uid, a.pod, a.address, POOL) for a in attackers]
        self._on_roster += seats
        await self.push_roster(EpochCause.MEMBERS_JOINED)
        try:
            yield attackers
        finally:
            self._on_roster = [seat for seat in self._on_roster if seat not in seats]
            await self.push_roster(EpochCause.MEMBER_LOST)

    @contextlib.asynccontextmanager
    async def member_stream(
        self, member: Attacker, **changes: Any
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """The open stream of a pod that has sent its Hello."""
        async with self.stream_of(member) as socket:
            await socket.send_str(dumps(member.hello(self.uid, **changes)))
            yield socket

    def stream_of(
        self, member: Attacker, *, compress: int = 0
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """The stream of a pod that has sent nothing yet."""
        route = pod_contract.MEMBER_STREAM_ROUTE
        return web_socket(self.membership, route, token=member.token, compress=compress)

    async def push_roster(self, cause: EpochCause) -> None:
        """Push the honest rollouts and the attackers that are on the roster."""
        honest = [
            RosterMember(pod.uid, pod.name, pod.address, POOL, pod.group)
            for pod in self.job.rollouts
        ]
        await self.job.operator.push((*honest, *self._on_roster), cause)

    def _token(self, pod: str, uid: str) -> str:
        return ISSUER.pod_token(job_uid=self.uid, pod=pod, pod_uid=uid)

    # --- what the job does meanwhile -------------------------------------------------------------

    async def refusals(self) -> dict[str, float]:
        """`rollcall_refused_total` of all workers together, by kind."""
        total: dict[str, float] = {}
        for pod in self.workers:
            for name, value in (await self.metrics(pod)).items():
                if name.startswith("refused_total{") or "_refused_total{" in name:
                    kind = name.partition("{")[2].rstrip("}")
                    total[kind] = total.get(kind, 0.0) + value
        return total

    async def metrics(self, pod: Pod, *, seconds: float = 30.0) -> dict[str, float]:
        """A worker's metrics, as soon as it has time to answer."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                async with asyncio.timeout(seconds):
                    return await pod.metrics()
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                if time.monotonic() > deadline or not pod.running:
                    problem = f"{pod.name} gives no metrics: {type(error).__name__}: {error}"
                    raise NotRefusedError(problem) from error
                await asyncio.sleep(POLL_SECONDS)

    async def eventually(
        self, holds: Callable[[], Awaitable[bool]], what: str, *, seconds: float = 20.0
    ) -> None:
        """Wait until it `holds`; NotRefusedError after `seconds`."""
        deadline = time.monotonic() + seconds
        while not await holds():
            if time.monotonic() > deadline:
                raise NotRefusedError(f"not within {seconds:g} s: {what}")
            await asyncio.sleep(POLL_SECONDS)


@contextlib.asynccontextmanager
async def attacked_job(folder: Path, *, seed: int, rollouts: int = 2) -> AsyncIterator[AttackedJob]:
    """A job of real workers that trains."""
    async with LocalJob(folder, attacked_config(), own_reference=True) as job:
        await job.start(rollouts=rollouts)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        await job.steps(5, seconds=START_SECONDS)
        yield AttackedJob(job, seed=seed)
