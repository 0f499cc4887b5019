"""Who says that it joined which session, compared with what the trainer's own join shows."""

from collections import deque
from dataclasses import dataclass, field

from rollcall_protocol.wire.ids import MemberId, SessionId

KEPT_JOINS = 8  # sessions; the trainer's word on an aborted join comes within the next one


@dataclass(slots=True)
class _Join:
    session: SessionId
    claimed: set[MemberId] = field(default_factory=set)
    refuted: bool = False

    def false_claims(self) -> set[MemberId]:
        """Those that are known to be false now, once."""
        if not self.refuted:
            return set()
        found, self.claimed = self.claimed, set()
        return found


class JoinClaims:
    """The newest joins of one sync group, those that were given up included.

    A member's join ends well only after the trainer's has, so a trainer rank whose join failed
    before that (`Ack.none_joined`) shows that a member which says it joined did not. The claim and
    the trainer's word come in any order.
    """

    def __init__(self) -> None:
        self._joins: deque[_Join] = deque(maxlen=KEPT_JOINS)

    def begin(self, session: SessionId) -> None:
        """The members of `session` are asked to join."""
        self._joins.append(_Join(session))

    def claim(self, session: SessionId, member: MemberId) -> set[MemberId]:
        """`member` says that it has joined; returns it if that is known to be false."""
        found = self._find(session)
        if found is None:
            return set()
        found.claimed.add(member)
        return found.false_claims()

    def refute(self, session: SessionId) -> set[MemberId]:
        """A trainer rank says that no member has joined; returns those that said otherwise."""
        found = self._find(session)
        if found is None:
            return set()
        found.refuted = True
        return found.false_claims()

    def _find(self, session: SessionId) -> _Join | None:
        return next((join for join in self._joins if join.session == session), None)
