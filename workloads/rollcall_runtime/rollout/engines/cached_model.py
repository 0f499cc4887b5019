"""What a batch decoder needs of a language model: the next token's logits, with a cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class CachedModel(ABC):
    """A language model, and keys and values of the tokens that one decoder gave it.

    `vocabulary`: tokens are below it. `positions`: tokens that a sequence may have, None if nothing
    bounds them. `device`: where it takes and gives tensors.
    """

    vocabulary: int
    positions: int | None
    device: torch.device

    @abstractmethod
    def restart(self) -> None:
        """Forget all tokens, as the weights have changed or nothing has been decoded yet."""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Go on with these rows, by their numbers, each as often as it is named."""

    @abstractmethod
    def logits(self, tokens: Tensor, *, first: int, padding: Tensor) -> Tensor:
        """Logits [rows, vocabulary] after the last of `tokens` [rows, columns].

        These are in the columns from `first` on and follow those that came before. The first
        `padding` [rows] columns of each row mean nothing, and no other column sees them.
        """
