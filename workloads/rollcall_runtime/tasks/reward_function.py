"""Finding the reward function that a job names, and calling it."""

import asyncio
import inspect
import math
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rollcall_protocol.job_config import RewardPart, RewardStyle
from rollcall_protocol.wire.reward_errors import RewardErrorKind, kind_of_number, printable
from rollcall_runtime.tasks.reward_registry import named_rewards
from rollcall_runtime.tasks.reward_styles import styled
from rollcall_runtime.tasks.reward_text import ResponseText, open_decoder
from rollcall_runtime.tasks.user_code import (
    as_number,
    definition,
    described,
    import_callable,
    shown,
)
from rollcall_runtime.worker.errors import SpecError

REWARD = "spec.reward"
FIELD = f"{REWARD}.function"

_SPARE = 0.8  # of the time of a call; the rest is for what is around the function

_NO_ROW: Mapping[str, Any] = MappingProxyType({})
_TEXT = ResponseText()
_TEXTS = ("prompt_text", "response_text")
_BY_NAME = ("row", *_TEXTS, "environment_reward")


class UnusableRewardError(ValueError):
    """A call gave no usable reward. `value` is printable; `file` is empty if it is not known."""

    def __init__(self, kind: RewardErrorKind, value: str, file: str, line: int) -> None:
        super().__init__(f"{kind}: {value} ({file}:{line})")
        self.kind, self.value, self.file, self.line = kind, printable(value), file, line


class NotApplicableError(UnusableRewardError):
    """The function returned None, as one of TRL's may where it does not apply."""


class RewardFunction:
    """Scores responses: higher is better. It may be a coroutine function (`async def`).

    It is called with prompt and response, both sequences of tokens, and with what it has a
    parameter of that name for: `row`, the prompt's row of the data by column, `prompt_text` and
    `response_text`, the latter as `text` says, and `environment_reward`, the sum of what the
    environment's steps gave (0 in a job without one). SpecError for `field` if it cannot be called
    so, or if the model in `directory` has no tokenizer for the text that it wants. `file` and
    `line` are where it is defined; empty and 0 for one that is not Python. `style` is how it is
    called instead.
    """

    def __init__(
        self,
        function: Callable[..., object],
        name: str,
        *,
        directory: Path | None = None,
        text: ResponseText = _TEXT,
        field: str = FIELD,
        style: RewardStyle = RewardStyle.ROLLCALL,
    ) -> None:
        self._text = text
        self._function = styled(function, style, name, field)
        self._wanted = _wanted(self._function, name, field)
        self._may_be_none = style is RewardStyle.TRL
        texts = self._wanted.intersection(_TEXTS)
        self._decode = open_decoder(directory, field=field) if texts else None
        self.file, self.line = definition(function)
        self._loop: asyncio.Runner | None = None  # for coroutines

    def __call__(
        self,
        prompt: Sequence[int],
        response: Sequence[int],
        row: Mapping[str, Any] = _NO_ROW,
        environment_reward: float = 0.0,
        /,
    ) -> float:
        """A usable reward: a number within MAX_REWARD. UnusableRewardError if there is none."""
        try:
            value = self._call(prompt, response, row, environment_reward)
        except BaseException as error:
            # Also SystemExit: the user's code may raise anything, and nothing is swallowed.
            raise UnusableRewardError(RewardErrorKind.RAISED, *described(error)) from error
        if value is None and self._may_be_none:
            wrong = RewardErrorKind.NOT_A_NUMBER
            raise NotApplicableError(wrong, "None", self.file, self.line)
        number = as_number(value)
        kind = RewardErrorKind.NOT_A_NUMBER if number is None else kind_of_number(number)
        if number is None or kind is not None:
            kind = kind or RewardErrorKind.NOT_A_NUMBER
            raise UnusableRewardError(kind, shown(value), self.file, self.line)
        return number

    def _call(
        self,
        prompt: Sequence[int],
        response: Sequence[int],
        row: Mapping[str, Any],
        environment_reward: float,
    ) -> object:
        named: dict[str, object] = {"row": row, "environment_reward": environment_reward}
        if self._decode is not None:
            named["prompt_text"] = self._decode(prompt, False)
            named["response_text"] = self._text.read(self._decode, response)
        wanted = {name: named[name] for name in self._wanted}
        value = self._function(prompt, response, **wanted)
        if not inspect.isawaitable(value):
            return value
        if self._loop is None:
            self._loop = asyncio.Runner()
            weakref.finalize(self, self._loop.close)
        return self._loop.run(_awaited(value))


def load_reward(
    function: str,
    config: Mapping[str, Any] = _NO_ROW,
    *,
    directory: Path | None = None,
    text: ResponseText = _TEXT,
    of: str = REWARD,
    seconds: float = math.inf,
    style: RewardStyle = RewardStyle.ROLLCALL,
) -> RewardFunction:
    """The function "module:callable", or the reward of that name with the settings `config`.

    `directory` has the model's tokenizer, `text` says what of a response its text has, `of` is the
    path in the RLJob. A call may take `seconds`, and has the `style`. SpecError if the name does
    not lead to a callable of the right parameters. The cause is kept as `__cause__`.
    """
    field = f"{of}.function"
    if ":" not in function:
        try:
            found = named_rewards.get(function)
        except SpecError as error:
            raise SpecError(field, error.problem) from error
        reward = found(config, field=f"{of}.config")
        reward.call_seconds = _SPARE * seconds
        return RewardFunction(reward, function, directory=directory, text=text, field=field)
    called = import_callable(function, field)
    return RewardFunction(
        called, function, directory=directory, text=text, field=field, style=style
    )


async def _awaited(value: Awaitable[object]) -> object:
    return await value


def _wanted(function: Callable[..., object], name: str, field: str) -> frozenset[str]:
    """Which of _BY_NAME are parameters of the function."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # a builtin without a signature
        return frozenset()
    named = [each for each in _BY_NAME if each in signature.parameters]
    try:
        signature.bind((), (), **dict.fromkeys(named))
    except TypeError as error:
        called = f"({', '.join(('prompt', 'response', *(f'{each}=...' for each in named)))})"
        raise SpecError(field, f"{name}{signature} cannot be called as {called}: {error}") from None
    return frozenset(named)


class WeightedSum:
    """Adds the numbers of its parts, each times its weight.

    `numbers` are those of the last call by the parts' names, without the weights.
    """

    def __init__(self, parts: Sequence[tuple[RewardPart, RewardFunction]]) -> None:
        self._parts = tuple(parts)
        self.file, self.line = "", 0
        self.numbers: dict[str, float] = {}

    def __call__(
        self,
        prompt: Sequence[int],
        response: Sequence[int],
        row: Mapping[str, Any],
        environment_reward: float = 0.0,
        /,
    ) -> float:
        """The sum; UnusableRewardError names the part that has no usable number.

        A part that does not apply adds nothing, unless none does.
        """
        self.numbers, total, none = {}, 0.0, None
        applied = len(self._parts)
        for part, function in self._parts:
            try:
                self.numbers[part.name] = function(prompt, response, row, environment_reward)
                total += part.weight * self.numbers[part.name]
            except NotApplicableError as error:
                self.numbers[part.name], none = 0.0, none or error
                applied -= 1
            except UnusableRewardError as error:
                text = f"part {part.name}: {error.value}"
                raise UnusableRewardError(error.kind, text, error.file, error.line) from error
        if none is not None and not applied:
            raise none
        kind = kind_of_number(total)
        if kind is not None:
            raise UnusableRewardError(kind, f"a sum of {total:g}", "", 0)
        return total


def load_sum(
    parts: Sequence[RewardPart],
    *,
    directory: Path | None,
    text: ResponseText = _TEXT,
    seconds: float = math.inf,
) -> WeightedSum:
    """The sum of `parts`, of which a call may take `seconds`; SpecError names the part that cannot
    be loaded.
    """
    each = seconds / len(parts)
    fields = (f"spec.reward.parts[{index}]" for index in range(len(parts)))

    def load(part: RewardPart, field: str) -> RewardFunction:
        return load_reward(
            part.function,
            part.config,
            directory=directory,
            text=text,
            of=field,
            seconds=each,
            style=RewardStyle(part.style),
        )

    return WeightedSum([(p, load(p, field)) for p, field in zip(parts, fields, strict=True)])
