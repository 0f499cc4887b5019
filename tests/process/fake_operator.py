"""Stands in for the operator: pushes rosters to the coordinator and follows its stream."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.json_codec import encode
from rollcall_protocol.wire.messages import loads
from rollcall_protocol.wire.roster import EpochCause, Roster, RosterMember
from rollcall_runtime.worker.identity.tls import client_context
from tests.certificates import authority, certificate_of

CONNECT_SECONDS = 180.0  # importing torch on a machine that does ten other things


@dataclass(frozen=True, slots=True)
class ReceivedSnapshot:
    """A snapshot and when it arrived (seconds of time.monotonic)."""

    at: float
    snapshot: JobSnapshot


class FakeOperator:
    """Follows one coordinator from `start` to `stop`; reconnects, as the operator does."""

    def __init__(
        self,
        *,
        job_uid: str,
        coordinator_uid: str,
        address: str,
        token: str,
        ended: Callable[[], str],
        tls: bool = False,
    ) -> None:
        self.epoch = 0
        self.history: list[ReceivedSnapshot] = []
        self.members: tuple[RosterMember, ...] = ()
        self.token = token
        self._ended = ended  # why the coordinator's process is gone, if it is
        self._job_uid, self._coordinator_uid = job_uid, coordinator_uid
        scheme = "https" if tls else "http"
        self._base = f"{scheme}://{address}:{pod_contract.MEMBERSHIP_PORT}"
        self._ssl = client_context(certificate_of(authority()))
        self._received = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def last(self) -> JobSnapshot:
        """The newest state."""
        return self.history[-1].snapshot

    async def push(self, members: tuple[RosterMember, ...], cause: EpochCause) -> None:
        """Open the next epoch; waits for a coordinator that only starts."""
        self.epoch, self.members = self.epoch + 1, members
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                status, body = await self.put(self.roster(cause))
            except aiohttp.ClientConnectorError:
                assert not self._ended(), self._ended()
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
            else:
                assert status == 200, body
                return

    def roster(self, cause: EpochCause, *, epoch: int | None = None) -> Roster:
        """The roster as it is, of another epoch if wanted."""
        return Roster(
            self._job_uid,
            "default",
            epoch or self.epoch,
            self._coordinator_uid,
            cause,
            self.members,
        )

    async def put(self, roster: Roster, *, token: str | None = None) -> tuple[int, Any]:
        """Push a roster with any token; status and body of the answer."""
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        body = json.dumps(encode(roster))
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.put(self._base + pod_contract.ROSTER_ROUTE, data=body, ssl=self._ssl) as answer,
        ):
            return answer.status, await answer.json()

    async def until(
        self, what: Callable[[JobSnapshot], bool], *, seconds: float
    ) -> ReceivedSnapshot:
        """The first state, from the newest on, of which `what` holds."""
        start = max(0, len(self.history) - 1)
        try:
            async with asyncio.timeout(seconds), self._received:
                while True:
                    for seen in self.history[start:]:
                        if what(seen.snapshot):
                            return seen
                    start = len(self.history)
                    await self._received.wait()
        except TimeoutError as error:
            state = self.last if self.history else None
            raise AssertionError(f"not within {seconds} s; last state: {state}") from error

    async def _follow(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            while True:
                try:
                    async with session.get(
                        self._base + pod_contract.OPERATOR_STREAM_ROUTE, ssl=self._ssl
                    ) as answer:
                        answer.raise_for_status()
                        async for line in answer.content:
                            await self._take(line)
                except (aiohttp.ClientError, OSError):
                    pass  # it starts, or was killed by a test
                await asyncio.sleep(0.05)

    async def _take(self, line: bytes) -> None:
        if line.strip():
            seen = ReceivedSnapshot(time.monotonic(), loads(line, JobSnapshot))
            async with self._received:
                self.history.append(seen)
                self._received.notify_all()
