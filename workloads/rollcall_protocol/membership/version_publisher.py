"""Publishing weight versions, one at a time: STAGE to all seats of a session, then COMMIT."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rollcall_protocol.membership.coordinator_effects import SendMessage
from rollcall_protocol.membership.stretched_bounds import StretchedBound, WaitBounds, is_slow
from rollcall_protocol.wire.ids import MemberId, SessionId, Version
from rollcall_protocol.wire.messages import Commit, Stage, WeightDelta
from rollcall_protocol.wire.weight_manifest import WeightManifest

MAX_STAGE_FAILURES = 3  # in a row, before the members that did not acknowledge are excluded


class PublicationStep(StrEnum):
    """How far a version is published."""

    QUEUED = "queued"
    STAGING = "staging"
    COMMITTING = "committing"


@dataclass(slots=True)
class VersionPublication:
    """One version on its way; `waiting` are the members that have not acknowledged the step.

    `delta` may be sent to a session whose members all serve its base; not after a failure.
    `asked_at`, when the step began, `acknowledged_at`, when a member acknowledged it last, and
    `deadline` are on the machine's clock (seconds); `deadline` is None while nothing is sent.
    """

    version: Version
    manifest: WeightManifest
    delta: WeightDelta | None = None
    step: PublicationStep = PublicationStep.QUEUED
    waiting: set[MemberId] = field(default_factory=set)
    deadline: float | None = None
    asked_at: float = 0.0
    acknowledged_at: float = 0.0
    failures: int = 0


class VersionPublisher:
    """The version that is being published, and the members that have not acknowledged it.

    Which members those are, and what becomes of one that fails, is decided by `CoordinatorMachine`.
    """

    def __init__(self, bounds: WaitBounds) -> None:
        self.publication: VersionPublication | None = None
        self._bounds = bounds

    @property
    def queued(self) -> bool:
        """Whether a version waits for a usable session."""
        return self._at(PublicationStep.QUEUED)

    @property
    def staging(self) -> bool:
        """Whether a version is being sent."""
        return self._at(PublicationStep.STAGING)

    @property
    def committing(self) -> bool:
        """Whether every receiver has staged the version whole; it is not taken back from here."""
        return self._at(PublicationStep.COMMITTING)

    @property
    def deadline(self) -> float | None:
        """When the step has taken too long."""
        return self.publication.deadline if self.publication else None

    @property
    def waiting(self) -> set[MemberId]:
        """Members that have not acknowledged the step."""
        return set(self.publication.waiting) if self.publication else set()

    def queue(self, version: Version, manifest: WeightManifest, delta: WeightDelta | None) -> None:
        """Take a version. RuntimeError while another one is being published."""
        if self.publication is not None:
            raise RuntimeError(f"{self.publication.version} is still being published")
        self.publication = VersionPublication(version, manifest, delta)

    def publishes(self, version: Version | None) -> bool:
        """Whether `version` is the one that is being published."""
        return self.publication is not None and self.publication.version == version

    def stage(
        self,
        session: SessionId,
        members: Sequence[MemberId],
        now: float,
        *,
        held: set[Version | None],
    ) -> list[SendMessage]:
        """Send the version to the members of `session`, whose receivers serve `held`."""
        publication = self._current()
        self._ask(PublicationStep.STAGING, members, now)
        delta = publication.delta
        if delta is not None and held != {delta.base}:
            delta = None
        message = Stage(session, publication.version, publication.manifest, delta)
        return [SendMessage(member, message) for member in members]

    def commit(
        self, session: SessionId, members: Sequence[MemberId], now: float
    ) -> list[SendMessage]:
        """Have these members serve the version; without members it is published at once."""
        if self.staging:
            self._bounds.stage.took(now - self._current().asked_at)
        self._ask(PublicationStep.COMMITTING, members, now)
        message = Commit(session, self._current().version)
        return [SendMessage(member, message) for member in members]

    def acknowledged(self, member: MemberId, now: float) -> bool:
        """Note an acknowledgement of the step; True when it was the last one."""
        publication = self._current()
        publication.waiting.discard(member)
        publication.acknowledged_at = now
        return not publication.waiting

    @property
    def asked_at(self) -> float:
        """When the step began."""
        return self._current().asked_at

    def timed_out(self, *, few_are_late: bool) -> None:
        """The step was not acknowledged within its bound: the next one has longer.

        Where `few_are_late` it is they who are slow, and not the machines: then the bound goes by
        the others, so that members that hang are excluded as soon as on idle machines.
        """
        publication = self._current()
        if few_are_late:
            self._bound.took(publication.acknowledged_at - publication.asked_at)
        else:
            self._bound.passed()

    def transfer_failed(self, now: float, *, few_are_late: bool) -> bool:
        """A member could not send or receive; whether for lack of time: it took a while.

        `few_are_late` as of `timed_out`.
        """
        slow = is_slow(now - self.asked_at)
        if slow:
            self.timed_out(few_are_late=few_are_late)
        return slow

    def stage_failed(self) -> bool:
        """Note that a transfer failed; True with the third in a row: members are excluded.

        From now on the whole version is sent instead of the delta.
        """
        publication = self._current()
        publication.delta = None
        publication.failures += 1
        if publication.failures < MAX_STAGE_FAILURES:
            return False
        publication.failures = 0
        return True

    def interrupt(self, seated: Sequence[MemberId]) -> None:
        """Another session is formed, of `seated`.

        What was being staged is sent again in it, and a COMMIT waits for those members alone.
        """
        publication = self.publication
        if publication is not None and self.staging:
            publication.step = PublicationStep.QUEUED
            publication.waiting, publication.deadline = set(), None
        elif publication is not None and self.committing:
            publication.waiting &= set(seated)

    def take_published(self, now: float) -> Version | None:
        """The version, once no COMMIT is awaited any more; the publisher is free then."""
        publication = self.publication
        if publication is None or not self.committing or publication.waiting:
            return None
        self._bounds.commit.took(now - publication.asked_at)
        self.publication = None
        return publication.version

    @property
    def _bound(self) -> StretchedBound:
        return self._bounds.commit if self.committing else self._bounds.stage

    def _at(self, step: PublicationStep) -> bool:
        return self.publication is not None and self.publication.step is step

    def _current(self) -> VersionPublication:
        if self.publication is None:
            raise RuntimeError("no version is being published")
        return self.publication

    def _ask(self, step: PublicationStep, members: Sequence[MemberId], now: float) -> None:
        publication = self._current()
        publication.step, publication.waiting = step, set(members)
        publication.asked_at = publication.acknowledged_at = now
        publication.deadline = now + self._bound.seconds
