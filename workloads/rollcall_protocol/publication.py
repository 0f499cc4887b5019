"""One version on its way: waiting for a session, STAGE, COMMIT."""

from dataclasses import dataclass, field
from enum import StrEnum

from rollcall_protocol.ids import MemberId, SessionId, Version
from rollcall_protocol.manifest import Manifest
from rollcall_protocol.messages import Commit, Delta, Stage


class Step(StrEnum):
    """Where a publication stands."""

    QUEUED = "queued"
    STAGING = "staging"
    COMMITTING = "committing"


@dataclass(slots=True)
class Publication:
    """Book-keeping of one version; `waiting` are the members whose ack is still to come.

    `delta` may be sent to a session whose members all serve its base; not after a failure.
    """

    version: Version
    manifest: Manifest
    delta: Delta | None = None
    step: Step = Step.QUEUED
    waiting: set[MemberId] = field(default_factory=set)
    deadline: float | None = None
    failures: int = 0

    @property
    def staging(self) -> bool:
        """Chunks flow."""
        return self.step is Step.STAGING

    @property
    def committing(self) -> bool:
        """Every receiver has staged it whole; no way back."""
        return self.step is Step.COMMITTING

    def stage(
        self, session: SessionId, members: tuple[MemberId, ...], deadline: float,
        *, held: set[Version | None],
    ) -> Stage:  # fmt: skip
        """Begin to send in `session`, whose receivers serve `held`."""
        self.step, self.waiting, self.deadline = Step.STAGING, set(members), deadline
        delta = self.delta if self.delta and held == {self.delta.base} else None
        return Stage(session, self.version, self.manifest, delta)

    def commit(self, session: SessionId, members: tuple[MemberId, ...], deadline: float) -> Commit:
        """Begin to commit; nobody to wait for ends it at once."""
        self.step, self.waiting, self.deadline = Step.COMMITTING, set(members), deadline
        return Commit(session, self.version)

    def acknowledged(self, member: MemberId) -> bool:
        """Note an ack; True when it was the last one."""
        self.waiting.discard(member)
        return not self.waiting

    def failed(self) -> None:
        """A transfer went wrong: from now on the whole version is sent."""
        self.failures += 1
        self.delta = None

    def interrupt(self, seated: tuple[MemberId, ...]) -> None:
        """The session is formed anew, of `seated`: what was being staged is sent again in it, and
        a COMMIT waits for those alone.
        """
        if self.staging:
            self.step, self.waiting, self.deadline = Step.QUEUED, set(), None
        elif self.committing:
            self.waiting &= set(seated)
