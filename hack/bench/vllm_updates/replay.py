"""What transformers says of responses: which weights sampled which token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedModel

    from hack.bench.vllm_updates.load import Sampled
    from rollcall_protocol.wire.partial_responses import Response

MIXED = 1e-3  # in natural logarithms: rounding makes 1e-6, other weights 1e-1


class Models(Protocol):
    """The weights of each version."""

    def model(self, version: int) -> PreTrainedModel: ...


@torch.no_grad()
def differences(served: Models, prompt: tuple[int, ...], response: Response) -> list[float]:
    """Of each token: its log-probability, less that of the weights of the version that it names.

    Keys and values of earlier tokens stay those of the weights that made them, as in vLLM.
    """
    cache, found = None, []
    inputs = list(prompt)
    for token, logprob, version in zip(
        response.tokens, response.logprobs, response.versions, strict=True
    ):
        output = served.model(version)(
            torch.tensor([inputs]), past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        found.append(abs(float(output.logits[0, -1].log_softmax(-1)[token]) - logprob))
        inputs = [token]
    return found


def mixed_tokens(served: Models, responses: Iterable[Sampled]) -> int:
    """Tokens that the weights of their version did not sample."""
    return sum(
        difference > MIXED
        for one in responses
        for difference in differences(served, one.prompt, one.response)
    )
