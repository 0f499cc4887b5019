"""What transformers says of responses: which weights sampled which token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hack.bench.vllm_updates.served_models import Served
    from rollcall_protocol.wire.partial_responses import Response

MIXED = 1e-3  # in natural logarithms: rounding makes 1e-6, other weights 1e-1


@torch.no_grad()
def differences(served: Served, prompt: tuple[int, ...], response: Response) -> list[float]:
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
