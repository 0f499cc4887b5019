"""Tokens of what an environment answers: tokens, a text, or messages by the chat template."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rollcall_protocol.wire.reward_errors import RewardErrorKind
from rollcall_runtime.tasks.environments.environment_process import EnvironmentFailedError
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_runtime.data.model_input import ModelInput
    from rollcall_runtime.models.tokenizer import ModelTokenizer
    from rollcall_runtime.tasks.environments.user_environment import Observation

_QUESTION, _ANSWER = "question", "the answer of rollcall"


class ObservationTokens:
    """Of one model. What the model sampled is never tokenized again.

    Messages are rendered behind an assistant's message that stands for the turn before them, and
    what the template writes after that message's text follows the turn. A template that writes
    nothing else for earlier messages when later ones come gives the model what it was trained on.
    """

    def __init__(self, model: ModelInput) -> None:
        self._model = model

    async def tokens(self, observation: Observation, *, after: Sequence[int]) -> list[int]:
        """Tokens that follow the turn `after`. EnvironmentFailedError if the model has none of it.

        SpecError for a text or messages if the model has no tokenizer, or no chat template.
        """
        if not observation:
            return []
        try:
            if isinstance(observation, str):
                return (await self._text()).encode(observation)
            if isinstance(observation[0], dict):
                messages: Any = observation
                return await self._rendered(messages, after)
        except SpecError:
            raise
        except ValueError as error:
            raise EnvironmentFailedError(RewardErrorKind.BAD_ANSWER, str(error)) from error
        tokens: Any = observation
        known = self._model.vocabulary
        unknown = next((token for token in tokens if not 0 <= token < known), None)
        if unknown is not None:
            problem = f"the observation has token {unknown}, and the model knows 0 to {known - 1}"
            raise EnvironmentFailedError(RewardErrorKind.BAD_ANSWER, problem)
        return list(tokens)

    async def _text(self) -> ModelTokenizer:
        return await asyncio.to_thread(lambda: self._model.tokenizer)  # opened at the first call

    async def _rendered(self, messages: list[dict[str, Any]], after: Sequence[int]) -> list[int]:
        tokenizer = await self._text()
        tokenizer.need_chat_template()
        before = [
            {"role": "user", "content": _QUESTION},
            {"role": "assistant", "content": _ANSWER},
        ]
        text = tokenizer.chat_text([*before, *messages])
        _, found, behind = text.partition(_ANSWER)
        if not found:
            problem = "the chat template leaves out the message before an observation"
            raise EnvironmentFailedError(RewardErrorKind.BAD_ANSWER, problem)
        tokens = tokenizer.encode(behind)
        # A turn that ended with the end-of-sequence token has what the template ends it with.
        ended = bool(after) and after[-1] in tokenizer.eos
        return tokens[1:] if ended and tokens[:1] == [after[-1]] else tokens
