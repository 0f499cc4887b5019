"""How long a response to a prompt may be; refuses prompts that a model cannot take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollcall_runtime.rollout.inference_engine import GenerationRequest, TokenLimits


def response_bound(request: GenerationRequest, limits: TokenLimits, *, vocabulary: int) -> int:
    """Most tokens of the response, those that it begins with included: what is asked for and fits.

    ValueError for an empty prompt, an unknown token, or no room for a token of the response.
    """
    prompt = request.prompt
    if not prompt:
        raise ValueError("the prompt is empty")
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        unknown = next(token for token in prompt if not 0 <= token < vocabulary)
        raise ValueError(
            f"the prompt has the token {unknown}, outside the vocabulary of {vocabulary}"
        )
    bound = limits.room(len(prompt), asked=request.sampling.max_tokens)
    if bound < 1:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens, and this engine takes {limits.context} of "
            "prompt and response together (the model's positions, or maxModelLen of "
            "engine.config); shorten it"
        )
    return bound
