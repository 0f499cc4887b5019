"""The rollout's answer to the readiness probe: whether its weights are current."""

from rollcall_protocol.membership.member_machine import MemberMachine
from rollcall_protocol.wire.messages import CatchUp, CoordinatorMessage, SessionReady


class Readiness:
    """Current from the first version that this process serves in a usable session, until it has to
    catch up or its stream is reopened.

    The pod's readiness gate is the operator's answer to the same question. The gate outlives a
    restart of the container and this answer does not; together they keep stale weights out of
    service. A new session that keeps the weights changes nothing.
    """

    def __init__(self, machine: MemberMachine) -> None:
        self._machine = machine
        self._in_session = False

    def stream_opened(self) -> None:
        """A stream opened: the coordinator decides again whether this member is current."""
        self._in_session = False

    def message_received(self, message: CoordinatorMessage) -> None:
        """A message of the coordinator arrived; the state machine has handled it."""
        if isinstance(message, CatchUp):
            self._in_session = False
        elif isinstance(message, SessionReady) and message.session == self._machine.session:
            self._in_session = True

    def problem(self) -> str:
        """Why the weights are not current; empty if they are."""
        if self._machine.held is None:
            return "not current: serves no version yet"
        return "" if self._in_session else "not current: in no usable session"
