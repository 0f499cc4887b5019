"""Alternates what the model samples with what the environment of a sample answers."""

import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from rollcall_protocol.job_config import EnvironmentConfig
from rollcall_protocol.wire.messages import PromptLease
from rollcall_protocol.wire.partial_responses import Response
from rollcall_protocol.wire.reward_errors import RewardErrorKind
from rollcall_runtime.rollout.inference_engine import GenerationRequest, TokenLimits
from rollcall_runtime.rollout.observation_tokens import ObservationTokens
from rollcall_runtime.rollout.turns import Turn, turns_of, with_given
from rollcall_runtime.tasks.environments.environment_process import (
    EnvironmentFailedError,
    EnvironmentLostError,
    EnvironmentProcess,
)
from rollcall_runtime.tasks.environments.user_environment import Step
from rollcall_runtime.worker.log_rate import REPEATED

log = logging.getLogger(__name__)

ATTEMPTS = 3  # to make an environment again whose process ended
_PROMPT_SEEDS, _SAMPLE_SEEDS, _TURN_SEEDS = 1_000_003, 7919, 0xD1B54A32D192ED03
_SEEDS = 2**63


class Conversations:
    """The conversations of a rollout's samples."""

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        process: EnvironmentProcess,
        observations: ObservationTokens,
        limits: TokenLimits | None,
    ) -> None:
        self.process, self.observations = process, observations
        self.max_turns, self.limits = config.max_turns, limits
        self._numbers = itertools.count()

    def new(self, lease: PromptLease, sample: int) -> "Conversation":
        """That of one sample of a lease."""
        return Conversation(self, next(self._numbers), lease, sample)


class Conversation:
    """One sample's. Its environment is made again from the turns so far when its process ends.

    An environment has to answer alike when it is made again with the same row and seed and gets the
    same turns: it is compared. `reward` is the sum of what its steps gave.
    """

    def __init__(
        self, conversations: Conversations, number: int, lease: PromptLease, sample: int
    ) -> None:
        self._of, self._number, self._lease = conversations, number, lease
        # The same on each rollout that works on the prompt.
        self._seed = (lease.prompt * _PROMPT_SEEDS + sample * _SAMPLE_SEEDS) % _SEEDS
        self._made = False
        self.reward = 0.0

    async def begin(self, response: Response) -> Response:
        """Make the environment for the response so far, which it may begin with tokens of its own.

        EnvironmentFailedError if a call fails, or answers otherwise than before; see
        `ObservationTokens.tokens`.
        """
        return await self._outlast(lambda: self._begin(response))

    async def answer(self, response: Response) -> Response:
        """The response with the answer to its last turn, or finished. Raises as `begin`."""
        return await self._outlast(lambda: self._answer(response))

    def request(self, of: GenerationRequest, response: Response) -> GenerationRequest:
        """For the next turn: `of` is that for the first one, without the tokens so far."""
        _, turns = turns_of(response)
        prompt, limits, sampling = (*of.prompt, *response.tokens), self._of.limits, of.sampling
        if limits is not None and limits.context is not None:
            room = limits.room(len(prompt), asked=sampling.max_tokens)
            sampling = replace(sampling, max_tokens=room)
        seed = (of.seed + len(turns) * _TURN_SEEDS) % _SEEDS
        return GenerationRequest(prompt, sampling, seed)

    def close(self) -> None:
        """Have the environment's process forget this conversation."""
        self._of.process.ended(self._number)

    # --- inside --------------------------------------------------------------------------------

    async def _outlast(self, call: Callable[[], Awaitable[Response]]) -> Response:
        """Try again while processes end, which other samples may do."""
        last = ""
        for _ in range(ATTEMPTS):
            try:
                return await call()
            except EnvironmentLostError as error:
                self._made, last = False, str(error)
                log.info("an environment is made again: %s", error, extra=REPEATED)
        raise EnvironmentFailedError(RewardErrorKind.PROCESS_DIED, last)

    async def _begin(self, response: Response) -> Response:
        if not response.tokens and not response.finished:
            given = await self._reset()
            begun = self._followed(response, given)
            if begun.finished:
                problem = f"the first observation has {len(given)} tokens, and behind the prompt's "
                problem += f"{len(self._lease.tokens)} the context has no room for a response"
                raise EnvironmentFailedError(RewardErrorKind.BAD_ANSWER, problem)
            return begun
        first, turns = turns_of(response)
        await self._replay(first, turns)
        # Another rollout may have taken more tokens than this one does.
        return response if response.finished else self._followed(response, ())

    async def _answer(self, response: Response) -> Response:
        first, turns = turns_of(response)
        if not turns or turns[-1].given:  # there was no room for a token
            return replace(response, finished=True)
        if not self._made:
            await self._replay(first, turns[:-1])
        step = await self._step(turns[-1])
        if step.done or len(turns) >= self._of.max_turns:
            return replace(response, finished=True)
        given = await self._tokens(step, turns[-1].sampled)
        if not given:
            problem = "the observation of a step has no token, and done is not true"
            raise EnvironmentFailedError(RewardErrorKind.BAD_ANSWER, problem)
        return self._followed(response, given)

    async def _replay(self, first: tuple[int, ...], turns: Sequence[Turn]) -> None:
        """Make the environment again, and repeat the turns."""
        _expect(first, await self._reset())
        for turn in turns:
            step = await self._step(turn)
            if turn.given:
                _expect(turn.given, await self._tokens(step, turn.sampled))

    async def _reset(self) -> list[int]:
        """Make the environment; what it gives before the first turn."""
        lease = self._lease
        step = await self._of.process.reset(
            self._number, prompt=lease.tokens, row=lease.row, seed=self._seed
        )
        self.reward, self._made = 0.0, True
        return await self._tokens(step, lease.tokens)

    async def _step(self, turn: Turn) -> Step:
        step = await self._of.process.step(self._number, turn.sampled)
        self.reward += step.reward
        return step

    async def _tokens(self, step: Step, after: Sequence[int]) -> list[int]:
        return await self._of.observations.tokens(step.observation, after=after)

    def _followed(self, response: Response, given: Sequence[int]) -> Response:
        """Finished, if no token would fit behind what was given."""
        limits = self._of.limits
        length = len(self._lease.tokens) + len(response.tokens) + len(given)
        if limits is not None and limits.context is not None and length >= limits.context:
            return replace(response, finished=True)
        return with_given(response, given)


def _expect(before: Sequence[int], now: Sequence[int]) -> None:
    """EnvironmentFailedError unless the environment answers what it answered before."""
    if tuple(before) != tuple(now):
        problem = "it answered otherwise when it was made again for the same row, seed and turns"
        raise EnvironmentFailedError(RewardErrorKind.BAD_ANSWER, problem)
