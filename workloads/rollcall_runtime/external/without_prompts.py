"""In the place of prompts, for a coordinator of members and weights alone."""

from collections.abc import Mapping

from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.reward_errors import RewardFailure
from rollcall_runtime.coordinator.prompts import MembersForPrompts, PromptMessage


class WithoutPrompts:
    """Leases nothing. A rollout asks for prompts, which it never gets."""

    longest_message = 1 << 16
    reward_failure: RewardFailure | None = None

    def open(self, members: MembersForPrompts) -> None:
        """Nothing is sent."""

    def running(self) -> Mapping[str, int]:
        """No member has a lease."""
        return {}

    def published(self, version: Version) -> None:
        """No sample becomes stale."""

    def skip_versions(self, versions: int) -> None:
        """No sample becomes stale."""

    def member_connected(self, member: MemberId) -> None:
        """It gets no lease."""

    def member_message(self, member: MemberId, message: PromptMessage) -> None:
        """It asks for prompts, and there are none."""

    def member_disconnected(self, member: MemberId, *, keep_tokens: bool = True) -> None:
        """It had no lease."""

    def dispatch(self) -> None:
        """Nothing is leased."""

    def close(self) -> None:
        """Nothing is open."""
