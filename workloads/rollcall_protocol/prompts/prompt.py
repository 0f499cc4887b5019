"""A prompt: what a rollout samples responses for, and what its reward function may read."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """`tokens`, and the `row` of the data set that they come from: JSON values by column.

    `truncated`: tokens were cut off, as the row has more than a prompt may have.
    """

    tokens: tuple[int, ...]
    row: dict[str, Any] = field(default_factory=dict)
    truncated: bool = False
