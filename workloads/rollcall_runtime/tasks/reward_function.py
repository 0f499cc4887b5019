"""Finding the reward function that a job names, and calling it."""

import asyncio
import importlib
import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rollcall_protocol.wire.reward_errors import RewardErrorKind, kind_of_number, printable
from rollcall_runtime.tasks.named_reward import named_rewards
from rollcall_runtime.tasks.reward_text import open_decoder
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.exit import user_frame

REWARD = "spec.reward"
FIELD = f"{REWARD}.function"

_NO_ROW: Mapping[str, Any] = MappingProxyType({})
_TEXTS = ("prompt_text", "response_text")
_BY_NAME = ("row", *_TEXTS)


class UnusableRewardError(ValueError):
    """A call gave no usable reward. `value` is printable; `file` is empty if it is not known."""

    def __init__(self, kind: RewardErrorKind, value: str, file: str, line: int) -> None:
        super().__init__(f"{kind}: {value} ({file}:{line})")
        self.kind, self.value, self.file, self.line = kind, printable(value), file, line


class RewardFunction:
    """Scores responses: higher is better. It may be a coroutine function (`async def`).

    It is called with prompt and response, both sequences of tokens, and with what it has a
    parameter of that name for: `row`, the prompt's row of the data by column, and `prompt_text` and
    `response_text`, the latter without special tokens. SpecError for `field` if it cannot be called
    so, or if the model in `directory` has no tokenizer for the text that it wants. `file` and
    `line` are where it is defined; empty and 0 for one that is not Python.
    """

    def __init__(
        self,
        function: Callable[..., object],
        name: str,
        *,
        directory: Path | None = None,
        field: str = FIELD,
    ) -> None:
        self._function, self._wanted = function, _wanted(function, name, field)
        texts = self._wanted.intersection(_TEXTS)
        self._decode = open_decoder(directory, field=field) if texts else None
        self.file, self.line = _definition(function)
        self._loop: asyncio.Runner | None = None  # for coroutines

    def __call__(
        self, prompt: Sequence[int], response: Sequence[int], row: Mapping[str, Any] = _NO_ROW, /
    ) -> float:
        """A usable reward: a number within MAX_REWARD. UnusableRewardError if there is none."""
        try:
            value = self._call(prompt, response, row)
        except BaseException as error:
            # Also SystemExit: the user's code may raise anything, and nothing is swallowed.
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            file, line = _place(error)
            raise UnusableRewardError(RewardErrorKind.RAISED, text, file, line) from error
        number = _as_number(value)
        kind = RewardErrorKind.NOT_A_NUMBER if number is None else kind_of_number(number)
        if number is None or kind is not None:
            kind = kind or RewardErrorKind.NOT_A_NUMBER
            raise UnusableRewardError(kind, _shown(value), self.file, self.line)
        return number

    def _call(
        self, prompt: Sequence[int], response: Sequence[int], row: Mapping[str, Any]
    ) -> object:
        named: dict[str, object] = {"row": row}
        if self._decode is not None:
            named["prompt_text"] = self._decode(prompt, False)
            named["response_text"] = self._decode(response, True)
        wanted = {name: named[name] for name in self._wanted}
        value = self._function(prompt, response, **wanted)
        if not inspect.isawaitable(value):
            return value
        if self._loop is None:
            self._loop = asyncio.Runner()
        return self._loop.run(_awaited(value))


def load_reward(
    function: str,
    config: Mapping[str, Any] = _NO_ROW,
    *,
    directory: Path | None = None,
    of: str = REWARD,
) -> RewardFunction:
    """The function "module:callable", or the reward of that name with the settings `config`.

    `directory` has the model's tokenizer, `of` is the path in the RLJob. SpecError if the name does
    not lead to a callable of the right parameters. The cause is kept as `__cause__`.
    """
    field = f"{of}.function"
    if ":" not in function:
        try:
            found = named_rewards.get(function)
        except SpecError as error:
            raise SpecError(field, error.problem) from error
        reward = found(config, field=f"{of}.config")
        return RewardFunction(reward, function, directory=directory, field=field)
    called = _import(function, field)
    return RewardFunction(called, function, directory=directory, field=field)


def _import(function: str, field: str) -> Callable[..., object]:
    module_name, _, attribute = function.partition(":")
    if not (module_name and attribute):
        raise SpecError(field, f"{function!r} is not of the form module:callable")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        problem = f"cannot import {module_name!r}: {type(error).__name__}: {error}"
        advice = "is it in the image, or mounted in a folder of PYTHONPATH?"
        raise SpecError(field, f"{problem}; {advice}") from error
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise SpecError(field, f"module {module_name!r} has no {attribute!r}") from error
    if not callable(found):
        raise SpecError(field, f"{function!r} is a {type(found).__name__}, not a function")
    called: Callable[..., object] = found
    return called


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


def _definition(function: Callable[..., object]) -> tuple[str, int]:
    found: Any = inspect.unwrap(function)
    if not hasattr(found, "__code__"):  # an object that can be called
        found = type(found).__call__
    code = getattr(found, "__code__", None)
    return (Path(code.co_filename).name, code.co_firstlineno) if code is not None else ("", 0)


def _place(error: BaseException) -> tuple[str, int]:
    """Where the user's code raised; the last frame if none is the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = user_frame(error) or (frames[-1] if frames else None)
    return (Path(frame.filename).name, frame.lineno or 0) if frame is not None else ("", 0)


def _as_number(value: object) -> float | None:
    """Of an int, float or bool, or of a scalar of NumPy, torch and the like; None of others."""
    if isinstance(value, (str, bytes, bytearray)) or not hasattr(type(value), "__float__"):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError, RuntimeError):  # an array or tensor of several numbers
        return None


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - the user's own class may raise anything
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"
