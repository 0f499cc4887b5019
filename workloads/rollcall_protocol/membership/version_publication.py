"""One version on its way: waiting for a session, STAGE, COMMIT."""

from dataclasses import dataclass, field
from enum import StrEnum

from rollcall_protocol.wire.ids import MemberId, SessionId, Version
from rollcall_protocol.wire.messages import Commit, Stage, WeightDelta
from rollcall_protocol.wire.weight_manifest import WeightManifest


class PublicationStep(StrEnum):
    """Where a publication stands."""

    QUEUED = "queued"
    STAGING = "staging"
    COMMITTING = "committing"


@dataclass(slots=True)
class VersionPublication:
    """Book-keeping of one version; `waiting` are the members whose ack is still to come.

    `delta` may be sent to a session whose members all serve its base; not after a failure.
    """

    version: Version
    manifest: WeightManifest
    delta: WeightDelta | None = None
    step: PublicationStep = PublicationStep.QUEUED
    waiting: set[MemberId] = field(default_factory=set)
    deadline: float | None = None
    failures: int = 0

    @property
    def staging(self) -> bool:
        """Chunks flow."""
        return self.step is PublicationStep.STAGING

    @property
    def committing(self) -> bool:
        """Every receiver has staged it whole; no way back."""
        return self.step is PublicationStep.COMMITTING

    def stage(
        self,
        session: SessionId,
        members: tuple[MemberId, ...],
        deadline: float,
        *,
        held: set[Version | None],
    ) -> Stage:
        """Begin to send in `session`, whose receivers serve `held`."""
        self.step, self.waiting, self.deadline = PublicationStep.STAGING, set(members), deadline
        delta = self.delta if self.delta and held == {self.delta.base} else None
        return Stage(session, self.version, self.manifest, delta)

    def commit(self, session: SessionId, members: tuple[MemberId, ...], deadline: float) -> Commit:
        """Begin to commit; nobody to wait for ends it at once."""
        self.step, self.waiting, self.deadline = PublicationStep.COMMITTING, set(members), deadline
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
            self.step, self.waiting, self.deadline = PublicationStep.QUEUED, set(), None
        elif self.committing:
            self.waiting &= set(seated)
