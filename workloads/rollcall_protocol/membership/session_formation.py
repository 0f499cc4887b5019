"""The forming of a session: PREPARE, JOIN, stable."""

from dataclasses import dataclass, field
from enum import StrEnum

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.job_snapshot import SessionCause, SessionReport
from rollcall_protocol.wire.messages import AckPhase

MAX_ENGINE_FAILURES = 3  # in a row, before the members that did not acknowledge are left out


class FormationPhase(StrEnum):
    """Where the session stands; the middle two are the phases that are acknowledged."""

    NONE = "none"
    PREPARE = AckPhase.PREPARE.value
    JOIN = AckPhase.JOIN.value
    STABLE = "stable"


@dataclass(slots=True)
class SessionFormation:
    """Book-keeping; `waiting` are the members that have not acknowledged the phase.

    `due` is when gathered joins form a session. Times are on the machine's clock.
    """

    phase: FormationPhase = FormationPhase.NONE
    waiting: set[MemberId] = field(default_factory=set)
    deadline: float | None = None
    due: float | None = None
    failures: int = 0
    _began: tuple[float, SessionCause, str] | None = None

    @property
    def busy(self) -> bool:
        """Whether acknowledgements are waited for."""
        return self.phase in {FormationPhase.PREPARE, FormationPhase.JOIN}

    def begin(self, cause: SessionCause, detail: str, now: float) -> None:
        """An attempt begins. The first one's time and cause count until one succeeds."""
        self.phase, self.due, self.deadline = FormationPhase.NONE, None, None
        self._began = self._began or (now, cause, detail)

    def ask(self, phase: FormationPhase, members: set[MemberId], deadline: float) -> None:
        """Wait for the acknowledgements of a phase."""
        self.phase, self.waiting, self.deadline = phase, members, deadline

    def awaits(self, member: MemberId, phase: AckPhase) -> bool:
        """Whether this acknowledgement counts."""
        return self.busy and phase.value == self.phase.value and member in self.waiting

    def acknowledged(self, member: MemberId) -> bool:
        """Note an ack; True when it was the last one."""
        self.waiting.discard(member)
        return not self.waiting

    def failed(self) -> bool:
        """Note a failure of the engine; True when somebody has to be accused of it."""
        self.failures += 1
        if self.failures < MAX_ENGINE_FAILURES:
            return False
        self.failures = 0
        return True

    def succeeded(self, session: SessionId, size: int, now: float) -> SessionReport:
        """All have joined."""
        self.phase, self.deadline, self.failures = FormationPhase.STABLE, None, 0
        since, cause, detail = self._began or (now, SessionCause.NEW_ROSTER, "")
        self._began = None
        return SessionReport(session, cause, size, now - since, detail)
