"""A smaller reward for responses that come near to the longest that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def overlong_penalty(tokens: Tensor, *, limit: int, buffer: int) -> Tensor:
    """What is added to the reward of responses of so many `tokens`: 0 to -1, float32, same shape.

    0 up to `limit` - `buffer` tokens, -1 from `limit` on, a straight line between. A sample that
    was cut off is punished by less than one that went on, where a sudden penalty would punish sound
    reasoning at random. Source: soft overlong punishment, DAPO (Yu et al. 2025, equation 13).
    """
    beyond = tokens.float() - (limit - buffer)
    return -(beyond / buffer).clamp(0.0, 1.0)
