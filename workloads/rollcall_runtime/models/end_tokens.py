"""Which tokens end a response: one set for data, training, rollouts and rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollcall_runtime.models.model_source import ModelSource


def end_tokens(source: ModelSource) -> frozenset[int]:
    """Those that the model's settings name, and the tokenizer's own if there is one beside it.

    The tokenizer is read each time. SpecError if that cannot be done, or if it is another model's.
    """
    if not source.has_tokenizer:
        return source.named_eos
    # Imports transformers, which a model without a tokenizer can do without.
    from rollcall_runtime.models.tokenizer import open_tokenizer  # noqa: PLC0415

    return open_tokenizer(source).eos
