"""What the coordinator measures, as an interface: the trainer implements it with Prometheus."""

from typing import Protocol

from rollcall_protocol.prompts.prompt_ledger import PromptLedger
from rollcall_protocol.wire.job_snapshot import SessionReport, SuspicionCause, TimeBound
from rollcall_protocol.wire.reward_errors import RewardErrorKind
from rollcall_runtime.coordinator.sync_group_driver import Publication


class CoordinatorMetrics(Protocol):
    """Called in the coordinator's event loop; no method may block."""

    def refused(self, what: str) -> None:
        """A request or message of the kind `what` was refused."""

    def reward_failed(self, kind: RewardErrorKind) -> None:
        """A sample has no usable reward."""

    def session_formed(self, report: SessionReport) -> None:
        """A session is usable."""

    def session_timed_out(self, bound: TimeBound) -> None:
        """A session has ended because `bound` passed."""

    def suspected(self, cause: SuspicionCause, seconds: float) -> None:
        """A member was suspected, `seconds` after its last bytes arrived or it was first missed."""

    def published(self, publication: Publication) -> None:
        """All members of the live session serve a version, or were excluded."""

    def prompts(self, ledger: PromptLedger) -> None:
        """The ledger was opened, or has changed."""
