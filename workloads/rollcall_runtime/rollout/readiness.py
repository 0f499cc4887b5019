"""What a rollout answers to the readiness probe: whether its weights are current, as it knows."""

from rollcall_protocol.membership.member_machine import MemberMachine
from rollcall_protocol.wire.messages import CatchUp, CoordinatorMessage, SessionReady


class Readiness:
    """Current from the first version that this life of the process serves in a usable session,
    until it is told that it is behind or its stream opens anew.

    The pod's readiness gate is the operator's word on the same. That one outlives a restart of the
    container; this one begins anew with it, so neither alone brings old weights into service. A
    session that is formed without loss of weights changes nothing.
    """

    def __init__(self, machine: MemberMachine) -> None:
        self._machine = machine
        self._seated = False

    def opened(self) -> None:
        """A stream opened: the coordinator decides where this member stands."""
        self._seated = False

    def heard(self, message: CoordinatorMessage) -> None:
        """A message of the coordinator, after the machine has had it."""
        if isinstance(message, CatchUp):
            self._seated = False
        elif isinstance(message, SessionReady) and message.session == self._machine.session:
            self._seated = True

    def problem(self) -> str:
        """Why not; empty when the weights are current."""
        if self._machine.held is None:
            return "not current: serves no version yet"
        return "" if self._seated else "not current: in no usable session"
