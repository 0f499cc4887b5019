"""Which responses were cut off at a limit of tokens, as far as their tokens tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_protocol.job_config import JobConfig
    from rollcall_protocol.wire.messages import Sample


@dataclass(frozen=True, slots=True)
class ResponseEnds:
    """`tokens` end a response by themselves; `limit` is its most tokens, 0 if that is not known.

    `context`: the most of prompt and response together; None: any number.
    """

    tokens: frozenset[int]
    limit: int = 0
    context: int | None = None

    @classmethod
    def of(cls, job: JobConfig, *, eos: frozenset[int], context: int | None) -> ResponseEnds | None:
        """Those of a job whose model ends responses with `eos`.

        None where the tokens do not tell: environments and agents end responses in their own way,
        rows may have limits of their own, and a string to stop at may be made of any tokens.
        """
        sampling = job.algorithm.sampling
        if job.environment is not None or job.data.from_front or sampling.column:
            return None
        if sampling.stop and not sampling.max_tokens:
            return None
        return cls(eos | frozenset(sampling.stop_token_ids), sampling.max_tokens, context)

    def share_cut_off(self, samples: Sequence[tuple[int, Sample]]) -> float:
        """Of one sample or more, each behind so many tokens of its prompt: those that end neither
        by themselves nor before a limit.
        """
        return sum(self._is_cut_off(*each) for each in samples) / len(samples)

    def _is_cut_off(self, prompt: int, sample: Sample) -> bool:
        length, room = len(sample.tokens), self.limit
        if self.context is not None:
            room = min(room, self.context - prompt)
        return length >= room and sample.tokens[-1] not in self.tokens
