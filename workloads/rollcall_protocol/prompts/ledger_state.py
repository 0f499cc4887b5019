"""The part of a checkpoint that the prompt ledger restores; plain data, saved as JSON.

An age counts versions from the oldest token's to the one as which the checkpoint's weights are
published after a restart.
"""

from dataclasses import dataclass, field

from rollcall_protocol.wire.messages import Completion, PromptLease
from rollcall_protocol.wire.partial_responses import PartialResponses


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """Number of prompts by outcome; `rejected` by reason.

    `skipped` prompts were left out by their source, which cut tokens off `truncated` leased ones.
    """

    dispatched: int = 0
    accepted: int = 0
    requeued: int = 0
    duplicates: int = 0
    resumed_tokens: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class SavedPartial:
    """Partial responses of a prompt that waits."""

    prompt: int
    partial: PartialResponses
    age: int


@dataclass(frozen=True, slots=True)
class SavedSamples:
    """Samples that wait for a batch."""

    lease: PromptLease
    completion: Completion
    age: int


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The data cursor (the next new prompt), the prompts that wait for another lease, partial
    responses of some of them, samples that wait for a batch, and the counters; `trajectories` are
    the names of those that count already.
    """

    cursor: int
    pending: tuple[int, ...]
    partials: tuple[SavedPartial, ...] = ()
    buffer: tuple[SavedSamples, ...] = ()
    counts: LedgerCounts = field(default_factory=LedgerCounts)
    trajectories: tuple[str, ...] = ()
