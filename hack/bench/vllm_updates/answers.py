"""Answers of a server, by which it is compared with itself and with another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hack.bench.vllm_updates.load import PROMPT
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.rollout.inference_engine import GenerationRequest

if TYPE_CHECKING:
    from hack.bench.vllm_updates.served_models import Served

PROMPTS = ((5, 9, 11, 40, 7, 33), PROMPT, (1, 2, 3))
CHECKED_TOKENS = 12

Answers = list[tuple[tuple[int, ...], tuple[float, ...]]]


async def answers(found: Served) -> Answers:
    """Tokens and log-probabilities, of most likely tokens and of sampled ones."""
    given = []
    for top_k in (1, 0):
        sampling = SamplingConfig(max_tokens=CHECKED_TOKENS, top_k=top_k)
        for prompt in PROMPTS:
            response = await found.respond(GenerationRequest(prompt, sampling, seed=11))
            given.append((response.tokens, response.logprobs))
    return given
