"""The place of the liar among the rollouts: one after the other, each replaced once it is out."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import aiohttp

from hack.liar import lying_worker
from hack.liar.lying_worker import OF_DONORS, LieKind
from hack.liar.verdict import LiarLife
from rollcall_protocol.wire.job_snapshot import MemberState
from rollcall_protocol.wire.roster import EpochCause
from tests.process.harness import in_sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from rollcall_protocol.wire.job_snapshot import JobSnapshot
    from tests.process.harness import LocalJob
    from tests.process.pods import Pod

REPLACE_SECONDS = 5.0  # after the exclusion; the operator's default is 60
JOIN_SECONDS = 60.0
LIFE_SECONDS = 60.0  # from when it serves until it is out
PUSH_SECONDS = 60.0
ASK_SECONDS = 7.0  # a donor lies only if a newcomer asks it
LIARS_ADDRESS = 100  # the last number


class SharedRoster:
    """Roster changes of the liar's place and of the faults, one at a time.

    `trainer_down` are the times (seconds since the epoch) from a kill of the trainer until its
    successor spoke.
    """

    def __init__(self, job: LocalJob) -> None:
        self.job, self.lock = job, asyncio.Lock()
        self.trainer_down: list[tuple[float, float]] = []

    async def push(self, cause: EpochCause) -> None:
        """Push the rollouts that there are, again and again while the trainer is away."""
        deadline = time.monotonic() + PUSH_SECONDS
        while True:
            try:
                async with self.lock:
                    await self.job.push_roster(cause)
            except aiohttp.ClientError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
            else:
                return

    def down_between(self, begin: float, end: float) -> float:
        """For how many of these seconds the trainer was down."""
        return sum(max(0.0, min(end, to) - max(begin, at)) for at, to in self.trainer_down)


class LiarSlot:
    """Runs liars until cancelled; `lives` are those that are over. `ask` makes a newcomer."""

    def __init__(self, roster: SharedRoster, *, seed: int, ask: Callable[[], None]) -> None:
        self._roster, self._job, self._ask = roster, roster.job, ask
        self._random = random.Random(seed)
        self.lives: list[LiarLife] = []

    async def run(self) -> None:
        """One liar after the other."""
        for kind in self._kinds():
            async with self._pod(kind) as (pod, life):
                await self._until_out(pod, life)
                self.lives.append(life)
                await asyncio.sleep(REPLACE_SECONDS)

    def _kinds(self) -> Iterator[LieKind]:
        while True:
            kinds = list(LieKind)
            self._random.shuffle(kinds)
            yield from kinds

    @asynccontextmanager
    async def _pod(self, kind: LieKind) -> AsyncIterator[tuple[Pod, LiarLife]]:
        job = self._job
        record = job.folder / f"liar-{len(self.lives)}.jsonl"
        record.touch()
        # Newcomers ask donors in the order of their addresses as text: 100 is before 11 and 2.
        given, job._given = job._given, LIARS_ADDRESS - 1
        pod = await job.launch(
            imports=lying_worker.__name__,
            **{
                lying_worker.LIE: kind,
                lying_worker.SEED: str(self._random.randrange(2**31)),
                lying_worker.RECORD: str(record),
            },
        )
        job._given = given
        life = LiarLife(kind)
        try:
            await self._roster.push(EpochCause.MEMBERS_JOINED)
            yield pod, life
        finally:
            life.read(record.read_text(encoding="utf-8").splitlines())
            if life.lied is not None and life.out is not None:
                life.paused = self._roster.down_between(life.lied, life.out)
            job.rollouts.remove(pod)
            if pod.running:
                pod.send(signal.SIGKILL)
            await self._roster.push(EpochCause.MEMBER_LOST)
            await pod.close()

    async def _until_out(self, pod: Pod, life: LiarLife) -> None:
        def is_out(snapshot: JobSnapshot) -> bool:
            for member in snapshot.members:
                if member.pod_uid == pod.uid and member.state is MemberState.SUSPECT:
                    life.cause = str(member.cause)
                    return True
            return False

        with suppress(AssertionError):  # the verdict says so
            await self._job.operator.until(lambda s: in_sync(s, pod), seconds=JOIN_SECONDS)
            asking = asyncio.create_task(self._ask_often(life.kind))
            try:
                seen = await self._job.operator.until(is_out, seconds=LIFE_SECONDS)
                life.out = seen.at + time.time() - time.monotonic()
            finally:
                asking.cancel()

    async def _ask_often(self, kind: LieKind) -> None:
        while kind in OF_DONORS:
            await asyncio.sleep(ASK_SECONDS)
            self._ask()
