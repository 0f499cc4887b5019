"""What the coordinator tells the metrics; `telemetry.py` implements it with Prometheus."""

from dataclasses import dataclass
from typing import Protocol

from rollcall_protocol.prompts.prompt_ledger import PromptLedger
from rollcall_protocol.wire.job_snapshot import SessionReport, SuspicionCause


@dataclass(frozen=True, slots=True)
class Delivery:
    """How version `number` reached the live session; repeated stages count as one.

    `delta`: every group was sent what has changed, and no more.
    """

    number: int
    members: int
    nbytes: int
    stage_seconds: float
    commit_seconds: float
    delta: bool


class CoordinatorMetrics(Protocol):
    """Called from the coordinator's event loop; must not block."""

    def refused(self, what: str) -> None:
        """A request or message was refused, by kind."""

    def session_formed(self, report: SessionReport) -> None:
        """A session is usable."""

    def suspected(self, cause: SuspicionCause, seconds: float) -> None:
        """A member was found out `seconds` after it was last heard, or asked."""

    def published(self, delivery: Delivery) -> None:
        """A version reached the live session."""

    def prompts(self, ledger: PromptLedger) -> None:
        """The ledger changed."""
