"""Calling the environment that a job names: `reset` once, then `step` after each turn.

The protocol is Gymnasium's (https://gymnasium.farama.org/api/env/), without what a response in
turns does not need; docs/environments.md describes it.
"""

import asyncio
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall_protocol.wire.reward_errors import RewardErrorKind, kind_of_number
from rollcall_runtime.tasks.reward_text import Decode, open_decoder
from rollcall_runtime.tasks.user_code import as_number, definition, import_callable, shown
from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.environment"

Observation = str | list[int] | list[dict[str, Any]] | None
"""A text, tokens, or messages for the model's chat template; None if there is none."""

_PARAMETERS = {
    "reset": ("row", "prompt", "prompt_text", "seed"),
    "step": ("response", "response_text"),
}
_TEXTS = frozenset({"prompt_text", "response_text"})


class BadAnswerError(ValueError):
    """What a method of the environment returned cannot be used; `problem` says why."""

    def __init__(self, problem: str, kind: RewardErrorKind = RewardErrorKind.BAD_ANSWER) -> None:
        super().__init__(problem)
        self.problem, self.kind = problem, kind


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment answers: an observation, the reward of this turn, whether it ends."""

    observation: Observation
    reward: float = 0.0
    done: bool = False


class UserEnvironment:
    """One sample's environment, made of `made`, an object with the methods `reset` and `step`.

    Each is called with what it has a parameter of that name for, and may be a coroutine function.
    Both raise whatever the user's code raises, and BadAnswerError for what it may not return. The
    text of a turn has special tokens with `keep_special` alone.
    """

    def __init__(self, made: Any, decode: Decode | None, *, keep_special: bool = False) -> None:
        self._made, self._decode, self._keep_special = made, decode, keep_special

    async def reset(self, prompt: Sequence[int], row: Mapping[str, Any], seed: int) -> Step:
        """Begin. The observation follows the prompt."""
        wanted = _wanted(self._made, "reset")
        named: dict[str, object] = {"row": row, "prompt": tuple(prompt), "seed": seed}
        if "prompt_text" in wanted:
            named["prompt_text"] = self._text(prompt, skip=False)
        return Step(checked_observation(await _call(self._made.reset, named, wanted)))

    async def step(self, response: Sequence[int]) -> Step:
        """Answer a turn, `response`."""
        wanted = _wanted(self._made, "step")
        named: dict[str, object] = {"response": tuple(response)}
        if "response_text" in wanted:
            named["response_text"] = self._text(response, skip=not self._keep_special)
        answer = await _call(self._made.step, named, wanted)
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise BadAnswerError(f"step returned {shown(answer)}, not (observation, reward, done)")
        given, reward, done = answer
        number = as_number(reward)
        kind = RewardErrorKind.NOT_A_NUMBER if number is None else kind_of_number(number)
        if number is None or kind is not None:
            raise BadAnswerError(shown(reward), kind or RewardErrorKind.NOT_A_NUMBER)
        observation = checked_observation(given)
        if not done and not observation:
            raise BadAnswerError("step returned no observation, and done is not true")
        return Step(observation, number, bool(done))

    def _text(self, tokens: Sequence[int], *, skip: bool) -> str:
        if self._decode is None:
            raise RuntimeError("the environment was loaded without the model's tokenizer")
        return self._decode(tokens, skip)


@dataclass(frozen=True, slots=True)
class EnvironmentMaker:
    """Makes an environment for each sample; its `step` is defined at `file` and `line`."""

    make: Callable[[], Any]
    decode: Decode | None
    file: str
    line: int
    keep_special: bool = False

    def new(self) -> UserEnvironment:
        """An environment for one sample. Raises whatever the user's code raises."""
        return UserEnvironment(self.make(), self.decode, keep_special=self.keep_special)


def load_environment(
    function: str, config: Mapping[str, Any], *, directory: Path | None
) -> EnvironmentMaker:
    """The environments of `function`, "module:class", which is called with `config` by name.

    `directory` has the model's tokenizer. SpecError names the field of the RLJob if the class
    cannot be imported or called, lacks a method, or wants a text of a model without a tokenizer.
    """
    field = f"{FIELD}.function"
    found = import_callable(function, field)
    try:
        made = found(**config)
    except Exception as error:  # the user's code may raise anything
        problem = f"{function} with this config raised {type(error).__name__}: {error}"
        raise SpecError(f"{FIELD}.config", problem) from error
    for method in _PARAMETERS:
        _check_method(made, function, method)
    texts = _TEXTS & {*_wanted(made, "reset"), *_wanted(made, "step")}
    decode = open_decoder(directory, field=field) if texts else None
    step: Any = made
    return EnvironmentMaker(lambda: found(**config), decode, *definition(step.step))


def _check_method(made: object, function: str, name: str) -> None:
    """SpecError unless the method is there and has no parameter that is not known."""
    method, known = getattr(made, name, None), _PARAMETERS[name]
    if not callable(method):
        raise SpecError(f"{FIELD}.function", f"{function} has no method {name!r}")
    for parameter in inspect.signature(method).parameters.values():
        if parameter.name not in known and parameter.default is inspect.Parameter.empty:
            problem = f"{function}.{name} has a parameter {parameter.name!r}"
            raise SpecError(f"{FIELD}.function", f"{problem}; it may have {', '.join(known)}")


def _wanted(made: Any, method: str) -> frozenset[str]:
    """Which values the method has a parameter for."""
    return frozenset(inspect.signature(getattr(made, method)).parameters) & {*_PARAMETERS[method]}


async def _call(
    method: Callable[..., Any], named: Mapping[str, object], wanted: frozenset[str]
) -> object:
    """Call a coroutine function here, any other in a thread, so that none waits for another."""
    arguments = {name: named[name] for name in wanted}
    if inspect.iscoroutinefunction(method):
        with _one_process():
            return await method(**arguments)
    return await asyncio.to_thread(_in_one_process, method, arguments)


def _in_one_process(method: Callable[..., Any], arguments: Mapping[str, object]) -> object:
    with _one_process():
        return method(**arguments)


@contextmanager
def _one_process() -> Iterator[None]:
    """End the second process, if the user's code forks and goes on in both."""
    own = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != own:
            os._exit(0)


def checked_observation(value: Any) -> Observation:
    """`value` as an observation; BadAnswerError if it is none."""
    if value is None or isinstance(value, str):
        return value
    items = list(value) if isinstance(value, (list, tuple)) else None
    if items is not None and all(type(item) is int for item in items):
        return items
    if items is not None and all(isinstance(item, Mapping) for item in items):
        return [dict(item) for item in items]
    problem = f"the observation {shown(value)} is neither a text, nor tokens, nor messages"
    raise BadAnswerError(problem)
