"""What the coordinator tells the metrics; `telemetry.py` implements it with Prometheus."""

from typing import Protocol

from rollcall_protocol.messages import SessionReport
from rollcall_protocol.prompts import PromptLedger


class Observer(Protocol):
    """Called from the coordinator's event loop; must not block."""

    def refused(self, what: str) -> None:
        """A request or message was refused, by kind."""

    def session_formed(self, report: SessionReport) -> None:
        """A session is usable."""

    def published(self, number: int, members: int, seconds: float, nbytes: int) -> None:
        """A version reached the live session `seconds` after it was handed over."""

    def prompts(self, ledger: PromptLedger) -> None:
        """The ledger changed."""
