"""Refuses prompts that a model cannot take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_prompt(
    prompt: Sequence[int], *, vocabulary: int, positions: int | None, max_tokens: int
) -> None:
    """ValueError for an empty prompt, an unknown token, or too few positions for the response."""
    if not prompt:
        raise ValueError("the prompt is empty")
    unknown = next((token for token in prompt if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise ValueError(
            f"the prompt has the token {unknown}, outside the vocabulary of {vocabulary}"
        )
    # The last sampled token is not processed.
    if positions is not None and len(prompt) + max_tokens - 1 > positions:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens; with a response of {max_tokens} that is more "
            f"than the model's {positions} positions"
        )
