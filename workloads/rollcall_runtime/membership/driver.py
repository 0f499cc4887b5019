"""Executes the effects of a member's state machine, for rollouts and for trainer ranks alike."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Protocol

from rollcall_protocol.membership.member_machine import (
    AbortEngine,
    ApplyVersion,
    FetchVersion,
    JoinEngine,
    MemberEffect,
    MemberMachine,
    SendToCoordinator,
    TransferVersion,
)
from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.messages import MemberMessage, SessionMessage, WeightDelta
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import SyncEngine, SyncSession
from rollcall_runtime.sync.errors import (
    CatchUpError,
    DigestMismatchError,
    SyncError,
    UnexpectedError,
)
from rollcall_runtime.sync.multi_sender import open_session
from rollcall_runtime.worker.asyncio_helpers import cancel_all

log = logging.getLogger(__name__)


class WeightHandler(Protocol):
    """What a member does with weights: a rollout receives, a trainer rank sends.

    Every method raises SyncError.
    """

    async def transfer(
        self,
        session: SyncSession,
        version: Version,
        manifest: WeightManifest,
        delta: WeightDelta | None,
    ) -> None:
        """Receive `version` into the staging area and verify it, or send it; or its `delta`."""

    async def apply(self, version: Version) -> None:
        """Serve the staged version. After an error the old weights are served, unchanged."""

    async def fetch(
        self,
        version: Version,
        manifest: WeightManifest,
        *,
        donors: tuple[str, ...],
        tickets: tuple[str, ...],
    ) -> tuple[str, ...]:
        """Stage `version` from the first of `donors` (host:port) that serves it for its ticket.

        Returns the donors whose weights are not what `manifest` describes, as CatchUpError does.
        """


class MemberDriver:
    """One member's state machine, its engine session and the tasks that do slow work for it.

    Belongs to one event loop. `handle` never blocks. The machine drops a result that arrives after
    its session has ended.
    """

    def __init__(
        self,
        *,
        member: MemberId,
        group: str,
        engine: SyncEngine,
        weight_handler: WeightHandler,
        send: Callable[[MemberMessage], None],
        join_timeout: float,
    ) -> None:
        self.machine = MemberMachine()
        self._member, self._group, self._engine = member, group, engine
        self._weights, self._send, self._join_timeout = weight_handler, send, join_timeout
        self._session: SyncSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, message: SessionMessage) -> None:
        """Handle a message of the coordinator."""
        self._perform(self.machine.receive(message))

    async def close(self) -> None:
        """Abort the engine session and wait for the tasks to end."""
        self._abort()
        await cancel_all(self._tasks)

    def _perform(self, effects: list[MemberEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendToCoordinator):
                self._send(effect.message)
            elif isinstance(effect, AbortEngine):
                self._abort()
            else:
                self._spawn(self._work(effect))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(
        self, effect: JoinEngine | TransferVersion | ApplyVersion | FetchVersion
    ) -> None:
        if isinstance(effect, JoinEngine):
            self._perform(await self._join(effect))
        elif isinstance(effect, TransferVersion):
            self._perform(await self._transfer(effect))
        elif isinstance(effect, ApplyVersion):
            error = await _error_of(self._weights.apply(effect.version))
            message = str(error) if error else ""
            self._perform(self.machine.applied(effect.version, effect.session, error=message))
        else:
            self._perform(await self._fetch(effect))

    async def _join(self, effect: JoinEngine) -> list[MemberEffect]:
        members = [seat.member for seat in effect.seats]
        if self._member not in members:
            return self.machine.joined(effect.session, error="is not a member of this session")
        opened: SyncSession | None = None

        async def join() -> None:
            nonlocal opened
            self._engine.stretch = effect.stretch
            opened = self._session = open_session(
                self._engine,
                group=self._group,
                session=effect.session,
                seats=effect.seats,
                rank=members.index(self._member),
                senders=effect.senders,
            )
            seconds = effect.stretch * self._join_timeout
            await asyncio.to_thread(opened.join, timeout=seconds)

        error = await _error_of(join())
        none_joined = error is not None and opened is not None and opened.give_up_join()
        message = str(error) if error else ""
        return self.machine.joined(effect.session, error=message, none_joined=none_joined)

    async def _transfer(self, effect: TransferVersion) -> list[MemberEffect]:
        session = self._session
        if session is None:
            return self.machine.staged(effect.session, effect.version, error="has not joined")
        error = await _error_of(
            self._weights.transfer(session, effect.version, effect.manifest, effect.delta)
        )
        return self.machine.staged(
            effect.session,
            effect.version,
            error=str(error) if error else "",
            own_fault=error is not None and error.own_fault,
            source=error.peer if isinstance(error, DigestMismatchError) else None,
        )

    async def _fetch(self, effect: FetchVersion) -> list[MemberEffect]:
        wrong: tuple[str, ...] = ()

        async def fetch() -> None:
            nonlocal wrong
            wrong = await self._weights.fetch(
                effect.version, effect.manifest, donors=effect.donors, tickets=effect.tickets
            )

        error = await _error_of(fetch())
        if isinstance(error, CatchUpError):
            wrong = error.wrong_donors
        message = str(error) if error else ""
        return self.machine.fetched(effect.version, error=message, wrong_donors=wrong)

    def _abort(self) -> None:
        if self._session is not None:
            self._session.abort()
            self._session = None


async def _error_of(work: Coroutine[None, None, None]) -> SyncError | None:
    try:
        await work
    except SyncError as error:
        log.warning("%s: %s", type(error).__name__, error)
        return error
    except Exception as error:  # without an answer the coordinator would wait for its time limit
        log.exception("a weight-sync engine raised an undeclared error")
        return UnexpectedError(f"{type(error).__name__}: {error}")
    return None
