"""Which groups of responses are recorded."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_protocol.job_config import SampleRecordingConfig

_BITS = 64


def chosen_groups(
    recording: SampleRecordingConfig, *, step: int, prompts: Sequence[int]
) -> list[bool]:
    """Of the groups of these prompts, by number, those of which `step` is recorded.

    Every rank chooses the same: the choice follows from step and prompt.
    """
    if recording.all_every_steps and step % recording.all_every_steps == 0:
        return [True] * len(prompts)
    limit = recording.share * 2**_BITS
    return [_number(f"{step}:{prompt}") < limit for prompt in prompts]


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=_BITS // 8).digest())
