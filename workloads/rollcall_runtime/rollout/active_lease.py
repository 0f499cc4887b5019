"""A prompt lease that a rollout works on, with its responses so far."""

from dataclasses import dataclass, field, replace

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import PromptLease
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED, Response
from rollcall_protocol.wire.reward_errors import RewardError
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.rollout.turns import whole_turns


@dataclass(slots=True)
class ActiveLease:
    """A lease and its responses so far: those that came with it, or newer ones.

    An empty `group` is sampled from the beginning. `since` marks the version that the first token
    sampled here may have. By the number of the sample: what its environment gave in all, the error
    that ended it, and how many seconds it took here.
    """

    lease: PromptLease
    group: list[Response]
    since: int | None = None
    environment_rewards: dict[int, float] = field(default_factory=dict)
    environment_errors: dict[int, RewardError] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, lease: PromptLease, *, keep: bool, in_turns: bool = False) -> "ActiveLease":
        """A lease that has just arrived; with `keep` the responses in it are continued.

        Those of a job whose environment answers `in_turns` from their last whole turn on.
        """
        if lease.partial is None or not keep:
            return cls(replace(lease, partial=None), [])
        responses = lease.partial.responses
        if in_turns:
            responses = tuple(whole_turns(response) for response in responses)
            lease = replace(lease, partial=replace(lease.partial, responses=responses))
        return cls(lease, list(responses))

    @property
    def resumed_tokens(self) -> list[int]:
        """The number of tokens of each response that another rollout sampled."""
        if self.lease.partial is None:
            return [0] * self.lease.group_size
        return [len(response.tokens) for response in self.lease.partial.responses]

    def own_tokens(self) -> list[int]:
        """The number of tokens of each response that were sampled here."""
        return [
            sum(version != NOT_SAMPLED for version in response.versions[resumed:])
            for response, resumed in zip(self.group, self.resumed_tokens, strict=False)
        ]

    def version(self, served: ServedVersions) -> Version | None:
        """The version of the oldest token of all responses; None without a token."""
        numbers = {
            number
            for response, resumed in zip(self.group, self.resumed_tokens, strict=False)
            for number in response.versions[resumed:]
            if number != NOT_SAMPLED
        }
        found = [served.oldest(numbers, since=self.since or 0)] if numbers else []
        if self.lease.partial is not None and any(self.resumed_tokens):
            found.append(self.lease.partial.version)
        return min(found, default=None)
