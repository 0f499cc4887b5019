"""A prompt ledger for tests, and messages of rollouts to it."""

from typing import Any

from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.prompts.prompt_ledger import CompletedPrompt, PromptLedger
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, PromptLease
from rollcall_protocol.wire.partial_responses import PartialReport, Response

LINEAGE = Lineage(1, 1)
FIRST = 10  # number of the first version
A, B = MemberId("uid-a", "b1"), MemberId("uid-b", "b1")


def ledger(*, first: Version | None = None, **changes: Any) -> PromptLedger:
    """Batches of 4, at most 6 at once, leases of 60 s; the first version is published."""
    values: dict[str, Any] = {
        "source": lambda number: Prompt((number,)),
        "group_size": 2,
        "batch": 4,
        "max_concurrent": 6,
        "max_staleness": 1,
        "lease_seconds": 60,
    }
    made = PromptLedger(**values | changes)
    made.published(first or Version(LINEAGE, FIRST))
    return made


def at(version: int, lineage: Lineage = LINEAGE) -> Version:
    """A version by its distance from the first."""
    return Version(lineage, FIRST + version)


def done(
    member: MemberId, lease: PromptLease, *, version: int = 0, lineage: Lineage = LINEAGE
) -> Completion:
    return Completion("job", member, lease.lease_id, at(version, lineage), ())


def response(*tokens: int, version: int = FIRST, finished: bool = False) -> Response:
    count = len(tokens)
    return Response(tokens, tuple(-t / 8 for t in tokens), (version,) * count, finished)


def progress_of(
    lease: PromptLease, *responses: Response, since: int = 0, version: Version | None = None
) -> PartialReport:
    """A report of two responses, each from token `since` on."""
    return PartialReport(lease.lease_id, version or at(0), (since,) * len(responses), responses)


def leases(
    prompts: PromptLedger, member: MemberId, count: int, now: float = 0
) -> list[PromptLease]:
    """Leases that `member` gets with a credit of `count`."""
    prompts.add_credit(member, count)
    given = [lease for _, lease in prompts.dispatch([member], now)]
    prompts.reset_credit(member)
    return given


def taken(prompts: PromptLedger, version: int) -> list[CompletedPrompt]:
    """The batch for a version by its distance from the first."""
    batch = prompts.take_batch(FIRST + version)
    assert batch is not None
    return batch


def balanced(prompts: PromptLedger) -> bool:
    outcomes = prompts.accepted + prompts.rejected.total() + prompts.requeued
    return prompts.dispatched == outcomes + prompts.in_flight
