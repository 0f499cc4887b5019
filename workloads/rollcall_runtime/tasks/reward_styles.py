"""Reward functions as TRL and verl call them, called for one sample."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rollcall_protocol.job_config import RewardStyle
from rollcall_runtime.tasks.builtin_rewards.answer_column import value_at
from rollcall_runtime.tasks.row_needs import RowNeeds
from rollcall_runtime.worker.errors import SpecError

_CHATS = ("prompt", "messages")  # columns of a prompt that may be a chat
_NOT_COLUMNS = frozenset({"prompt", "completion", "completion_ids"})  # as TRL has it
_ABSENT = ("trainer_state", "environments")  # what TRL's trainer has and a rollout has not


def styled(
    function: Callable[..., Any], style: RewardStyle, name: str, field: str
) -> Callable[..., object]:
    """`function`, to be called as RewardFunction does; SpecError if it is not of that style."""
    match style:
        case RewardStyle.TRL:
            return TrlFunction(function, name, field)
        case RewardStyle.VERL:
            return VerlFunction(function, name, field)
        case RewardStyle.ROLLCALL:
            return function


def style_needs(style: RewardStyle, field: str) -> RowNeeds | None:
    """What a function of that style reads of each row; `field` is that of the style."""
    match style:
        case RewardStyle.TRL:
            return RowNeeds(_CHATS, lambda _: None, field)
        case RewardStyle.VERL:
            return RowNeeds(("reward_model", "data_source"), _verl_row, field)
        case RewardStyle.ROLLCALL:
            return None


class TrlFunction:
    """`reward(completions, **columns) -> list`: a list of one sample at a time.

    What it has a parameter for it gets by name, or all with `**kwargs`: `prompts`, `completions`,
    `completion_ids`, the columns of the row, `log_extra` and `log_metric`, which do nothing. Where
    the prompt is a chat, completions are too. None: it does not apply to the sample.
    """

    def __init__(self, function: Callable[..., Any], name: str, field: str) -> None:
        self._function, self._name = function, name
        parameters = inspect.signature(function).parameters
        shown = f"{name}{inspect.signature(function)}"
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        by_name = [
            p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
        self._known = frozenset(p.name for p in by_name)
        self._required = frozenset(p.name for p in by_name if p.default is p.empty)
        if any(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in parameters.values()):
            raise SpecError(field, f"{shown} must take its arguments by name, as TRL gives them")
        if "completions" not in self._known and not self._takes_all:
            raise SpecError(
                field, f"{shown} has no parameter `completions`, which style: trl gives"
            )
        for absent in _ABSENT:
            if absent in self._required:
                problem = f"{shown} wants {absent}, which a rollout does not have"
                raise SpecError(field, f"{problem}; give that parameter a default")

    def __call__(
        self,
        prompt: Sequence[int],  # noqa: ARG002 - the interface
        response: Sequence[int],
        *,
        row: Mapping[str, Any],
        prompt_text: str,
        response_text: str,
    ) -> object:
        chat = next((row[name] for name in _CHATS if isinstance(row.get(name), list)), None)
        asked = row.get("prompt", prompt_text) if chat is None else chat
        said = response_text if chat is None else [{"role": "assistant", "content": response_text}]
        given: dict[str, Any] = {name: [row[name]] for name in row if name not in _NOT_COLUMNS}
        given |= {"prompts": [asked], "completions": [said], "completion_ids": [list(response)]}
        given |= {"log_extra": _ignore, "log_metric": _ignore}
        lacking = self._required - given.keys()
        if lacking:
            problem = f"{self._name} wants {', '.join(sorted(lacking))}"
            raise ValueError(f"{problem}; the row has the columns {', '.join(row) or 'none'}")
        if not self._takes_all:
            given = {name: value for name, value in given.items() if name in self._known}
        result = self._function(**given)
        return self._awaited(result) if inspect.isawaitable(result) else self._one(result)

    async def _awaited(self, result: Awaitable[Any]) -> object:
        return self._one(await result)

    def _one(self, result: Any) -> object:
        rewards = list(result)
        if len(rewards) != 1:
            raise ValueError(f"{self._name} returned {len(rewards)} rewards for one completion")
        return rewards[0]


class VerlFunction:
    """`compute_score(data_source, solution_str, ground_truth, extra_info)`.

    It returns a number, or an object whose `score` is one.
    """

    def __init__(self, function: Callable[..., Any], name: str, field: str) -> None:
        self._function = function
        signature = inspect.signature(function)
        try:
            signature.bind(data_source="", solution_str="", ground_truth="", extra_info={})
        except TypeError as error:
            called = "(data_source=, solution_str=, ground_truth=, extra_info=)"
            problem = f"{name}{signature} cannot be called as {called}, as style: verl does"
            raise SpecError(field, f"{problem}: {error}") from None

    def __call__(
        self,
        prompt: Sequence[int],  # noqa: ARG002 - the interface
        response: Sequence[int],  # noqa: ARG002
        *,
        row: Mapping[str, Any],
        response_text: str,
    ) -> object:
        _verl_row(row)
        result = self._function(
            data_source=row["data_source"],
            solution_str=response_text,
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info=row.get("extra_info") or {},
        )
        return _awaited_score(result) if inspect.isawaitable(result) else _score(result)


async def _awaited_score(result: Awaitable[Any]) -> object:
    return _score(await result)


def _score(result: Any) -> object:
    return result["score"] if isinstance(result, dict) else result


def _verl_row(row: Mapping[str, Any]) -> None:
    """ValueError unless the row has what verl's reward managers read."""
    for path in ("data_source", "reward_model.ground_truth"):
        if value_at(row, path) is None:
            raise ValueError(f"{path!r} holds null")


def _ignore(*_: object, **__: object) -> None:
    """In the place of what TRL's trainer logs."""
