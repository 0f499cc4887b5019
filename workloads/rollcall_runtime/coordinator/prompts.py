"""What a coordinator may do beside members and weights: give out prompts, and take samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.messages import (
    CoordinatorMessage,
    GenerationProgress,
    PromptCredit,
    PromptLeaseReturned,
)
from rollcall_protocol.wire.reward_errors import RewardFailure

PromptMessage = PromptCredit | GenerationProgress | PromptLeaseReturned


@dataclass(frozen=True, slots=True)
class MembersForPrompts:
    """What prompts need of the coordinator.

    `eligible` returns the members that may get prompts now; `send` sends a message to one;
    `suspicious` is called with the sender of a bad message and the problem. `failure_changed`: the
    reward error that users should see is another one.
    """

    eligible: Callable[[], Sequence[MemberId]]
    send: Callable[[MemberId, CoordinatorMessage], None]
    suspicious: Callable[[MemberId, str], None]
    failure_changed: Callable[[], None]


class Prompts(Protocol):
    """Belongs to the coordinator's event loop."""

    def open(self, members: MembersForPrompts) -> None:
        """Work with the members of a coordinator; called first, and once."""

    @property
    def longest_message(self) -> int:
        """Bytes of the longest message about prompts to a member."""

    @property
    def reward_failure(self) -> RewardFailure | None:
        """The reward error that users should see."""

    def running(self) -> Mapping[str, int]:
        """The number of leased prompts by pod uid."""

    def published(self, version: Version) -> None:
        """Rollouts serve `version`."""

    def skip_versions(self, versions: int) -> None:
        """Training begins with weights `versions` newer than the checkpoint's."""

    def member_connected(self, member: MemberId) -> None:
        """A stream opened."""

    def member_message(self, member: MemberId, message: PromptMessage) -> None:
        """A message of `member` about prompts arrived."""

    def member_disconnected(self, member: MemberId, *, keep_tokens: bool = True) -> None:
        """A stream ended; what the member reported is used unless not `keep_tokens`."""

    def dispatch(self) -> None:
        """Members or sessions have changed."""

    def close(self) -> None:
        """The coordinator ends."""
