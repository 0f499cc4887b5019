"""A lease in a rollout's hands, and what there is of its samples."""

from dataclasses import dataclass, replace

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import PromptLease
from rollcall_runtime.rollout.inference_engine import Generation
from rollcall_runtime.rollout.served_versions import ServedVersions


@dataclass(slots=True)
class ActiveLease:
    """A lease and the generations that there are: those that came with it, or newer ones.

    Empty: to be drawn from the beginning. `since` marks the version that the first token drawn here
    may be of, `attempts` counts calls of the engine that did not finish it.
    """

    lease: PromptLease
    group: list[Generation]
    since: int | None = None
    attempts: int = 0

    @classmethod
    def of(cls, lease: PromptLease, *, keep: bool) -> "ActiveLease":
        """A lease that has just arrived; with `keep` it goes on from what came with it."""
        if lease.begun is None or not keep:
            return cls(replace(lease, begun=None), [])
        responses = lease.begun.responses
        group = [Generation(r.tokens, r.logprobs, r.versions, r.finished) for r in responses]
        return cls(lease, group)

    @property
    def moved(self) -> list[int]:
        """How many tokens of each response were drawn elsewhere."""
        if self.lease.begun is None:
            return [0] * self.lease.group_size
        return [len(response.tokens) for response in self.lease.begun.responses]

    def own_tokens(self) -> list[int]:
        """How many tokens of each response were drawn here."""
        return [
            len(generation.tokens) - moved
            for generation, moved in zip(self.group, self.moved, strict=False)
        ]

    def version(self, served: ServedVersions) -> Version | None:
        """The oldest token's, here or elsewhere; None without a token."""
        numbers = {
            number
            for generation, moved in zip(self.group, self.moved, strict=False)
            for number in generation.versions[moved:]
        }
        found = [served.oldest(numbers, since=self.since or 0)] if numbers else []
        if self.lease.begun is not None and any(self.moved):
            found.append(self.lease.begun.version)
        return min(found, default=None)
