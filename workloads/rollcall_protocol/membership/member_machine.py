"""A member's state machine: fencing of sessions, staging and committing of versions.

The driver feeds messages and the outcomes of slow work (join, transfer, apply, fetch) and carries
out the effects; the machine decides which are allowed. The trainer's sender is a member too: its
transfer sends instead of receiving, and it gets no COMMIT.
"""

from dataclasses import dataclass

from rollcall_protocol.membership.stretched_bounds import checked_stretch
from rollcall_protocol.wire.ids import MemberId, SessionId, Version
from rollcall_protocol.wire.messages import (
    Ack,
    AckPhase,
    CatchUp,
    CaughtUp,
    Commit,
    Join,
    MemberMessage,
    Prepare,
    Seat,
    SessionMessage,
    SessionReady,
    SessionRefused,
    Stage,
    WeightDelta,
)
from rollcall_protocol.wire.weight_manifest import WeightManifest


@dataclass(frozen=True, slots=True)
class SendToCoordinator:
    """Send `message` on the stream to the coordinator."""

    message: MemberMessage


@dataclass(frozen=True, slots=True)
class AbortEngine:
    """Drop the open engine session, if there is one, without waiting for it."""


@dataclass(frozen=True, slots=True)
class JoinEngine:
    """Join the communicator; report with `joined`. The first `senders` seats send.

    The engine's own bounds are `stretch` times their settings.
    """

    session: SessionId
    seats: tuple[Seat, ...]
    senders: int
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class TransferVersion:
    """Receive (a rollout) or send (the trainer) `version`; report with `staged`."""

    session: SessionId
    version: Version
    manifest: WeightManifest
    delta: WeightDelta | None = None


@dataclass(frozen=True, slots=True)
class ApplyVersion:
    """Serve the staged `version`; report with `applied`. No session: it was fetched."""

    version: Version
    session: SessionId | None


@dataclass(frozen=True, slots=True)
class FetchVersion:
    """Fetch `version` from the first donor that has it; report with `fetched`.

    `manifest` and `tickets` are those of CatchUp.
    """

    version: Version
    manifest: WeightManifest
    donors: tuple[str, ...]
    tickets: tuple[str, ...] = ()


MemberEffect = (
    SendToCoordinator | AbortEngine | JoinEngine | TransferVersion | ApplyVersion | FetchVersion
)


class MemberMachine:
    """State of one member: the highest session, the staged version, the served version.

    There is one stage, which a transfer or a fetch fills and an Apply empties, and one Apply at a
    time: two that overlap could end in the wrong order.
    """

    def __init__(self) -> None:
        self.session: SessionId | None = None
        self.ready = False
        self.held: Version | None = None
        self._seats: tuple[Seat, ...] = ()
        self._senders = 1
        self._staged: Version | None = None
        self._wrong_donors: tuple[str, ...] = ()  # of the last fetch
        self._applying: ApplyVersion | None = None
        self._next: list[ApplyVersion] = []

    def receive(self, message: SessionMessage) -> list[MemberEffect]:
        """React to a message of the coordinator; older sessions are refused, without effect."""
        if isinstance(message, CatchUp):
            return self._catch_up(message)
        if self.session is not None and message.session < self.session:
            return [SendToCoordinator(SessionRefused(session=message.session, held=self.session))]
        if isinstance(message, Prepare):
            return self._prepare(message)
        if message.session != self.session:
            return [self._never_prepared(message)]
        if isinstance(message, Join):
            stretch = checked_stretch(message.stretch)
            return [JoinEngine(message.session, self._seats, self._senders, stretch)]
        if isinstance(message, SessionReady):
            self.ready = True
            return []
        if isinstance(message, Stage):
            return self._stage(message)
        return self._commit(message)

    def joined(
        self, session: SessionId, *, error: str = "", none_joined: bool = False
    ) -> list[MemberEffect]:
        """The engine's join ended, well unless there is an `error`.

        Acknowledged only if that session is still the current one, or the error shows that no
        member has joined it (`none_joined`), which refutes those that said so.
        """
        if session != self.session and not none_joined:
            return []
        ack = Ack(session, AckPhase.JOIN, error=error, none_joined=none_joined)
        return [SendToCoordinator(ack)]

    def staged(
        self,
        session: SessionId,
        version: Version,
        *,
        error: str = "",
        own_fault: bool = False,
        source: MemberId | None = None,
    ) -> list[MemberEffect]:
        """The transfer of `version` ended, whole and verified unless there is an `error`.

        `source` is the member that wrong weights came from.
        """
        if session != self.session:
            return []
        self._staged = None if error else version
        ack = Ack(session, AckPhase.STAGE, version, error, own_fault, source)
        return [SendToCoordinator(ack)]

    def applied(
        self, version: Version, session: SessionId | None, *, error: str = ""
    ) -> list[MemberEffect]:
        """`version` is served from now on; with an `error` the former one still is."""
        self._applying = None
        if not error:
            self.held = version
        replies: list[MemberEffect] = [self._outcome(version, session, error)]
        while self._next and self._applying is None:
            replies += self._apply(self._next.pop(0))
        return replies

    def fetched(
        self, version: Version, *, error: str = "", wrong_donors: tuple[str, ...] = ()
    ) -> list[MemberEffect]:
        """The fetch of a catch-up ended, whole and verified unless there is an `error`."""
        self._wrong_donors = wrong_donors
        if error:
            return [self._outcome(version, None, error)]
        self._staged = version
        return self._apply(ApplyVersion(version, None))

    def _apply(self, effect: ApplyVersion) -> list[MemberEffect]:
        """Apply it now, or after the version that is being applied; versions never go back."""
        version, session = effect.version, effect.session
        if self.held is not None and version <= self.held:
            return [self._already(version, session)]
        if self._applying is not None:
            self._next.append(effect)
            return []
        if self._staged != version:
            error = f"has not staged it; staged is {self._staged}"
            return [self._outcome(version, session, error)]
        self._staged, self._applying = None, effect
        return [effect]

    def _already(self, version: Version, session: SessionId | None) -> MemberEffect:
        held = self.held or version
        if session is None:
            return SendToCoordinator(CaughtUp(held))
        error = "" if version == held else f"holds {held}, which is newer"
        return self._outcome(version, session, error)

    def _outcome(self, version: Version, session: SessionId | None, error: str) -> MemberEffect:
        if session is None:
            return SendToCoordinator(CaughtUp(version, error, self._wrong_donors))
        return SendToCoordinator(
            Ack(session, AckPhase.COMMIT, version, error, own_fault=bool(error))
        )

    def _prepare(self, message: Prepare) -> list[MemberEffect]:
        ack = SendToCoordinator(Ack(message.session, AckPhase.PREPARE))
        if message.session == self.session:
            return [ack]
        self.session = message.session
        self.ready = False
        self._seats, self._senders = message.seats, message.senders
        self._staged = None
        return [AbortEngine(), ack]

    def _stage(self, message: Stage) -> list[MemberEffect]:
        if self.held is not None and message.version < self.held:
            error = f"holds {self.held}, which is newer"
            ack = Ack(message.session, AckPhase.STAGE, message.version, error, own_fault=True)
            return [SendToCoordinator(ack)]
        # A member that has this version already takes part all the same: the send is collective.
        self._staged = None
        return [TransferVersion(message.session, message.version, message.manifest, message.delta)]

    def _commit(self, message: Commit) -> list[MemberEffect]:
        return self._apply(ApplyVersion(message.version, message.session))

    def _catch_up(self, message: CatchUp) -> list[MemberEffect]:
        if self.held is not None and message.version <= self.held:
            return [SendToCoordinator(CaughtUp(self.held))]
        return [FetchVersion(message.version, message.manifest, message.donors, message.tickets)]

    @staticmethod
    def _never_prepared(message: Join | SessionReady | Stage | Commit) -> MemberEffect:
        phases = {Join: AckPhase.JOIN, SessionReady: AckPhase.JOIN, Stage: AckPhase.STAGE}
        phase = phases.get(type(message), AckPhase.COMMIT)
        version = message.version if isinstance(message, (Stage, Commit)) else None
        return SendToCoordinator(
            Ack(message.session, phase, version, "session was not prepared here", True)
        )
