"""Finding the reward function that a job names."""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.reward.function"

_NO_ROW: Mapping[str, Any] = MappingProxyType({})


class Reward(Protocol):
    """Scores a response: higher is better, always finite."""

    def __call__(
        self, prompt: Sequence[int], response: Sequence[int], row: Mapping[str, Any] = _NO_ROW, /
    ) -> float:
        """Both sequences are tokens; `row` is the prompt's row of the data, by column."""


def load_reward(function: str) -> Reward:
    """The function that `function` names as "module:callable".

    It is called with prompt and response, and with `row` by name if it has such a parameter.
    SpecError if the name does not lead to a callable, and later, from the function returned, if a
    call raises or gives anything but a finite number. The cause is kept as `__cause__`.
    """
    module_name, colon, attribute = function.partition(":")
    if not (colon and module_name and attribute):
        raise SpecError(FIELD, f"{function!r} is not of the form module:callable")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's code may raise anything; nothing is swallowed
        problem = f"cannot import {module_name!r}: {type(error).__name__}: {error}"
        advice = "is it in the image, or mounted in a folder of PYTHONPATH?"
        raise SpecError(FIELD, f"{problem}; {advice}") from error
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise SpecError(FIELD, f"module {module_name!r} has no {attribute!r}") from error
    if not callable(found):
        raise SpecError(FIELD, f"{function!r} is a {type(found).__name__}, not a function")
    return _checked(found, function)


def _checked(reward: Callable[..., object], name: str) -> Reward:
    wants_row = _has_parameter(reward, "row")

    def checked(
        prompt: Sequence[int], response: Sequence[int], row: Mapping[str, Any] = _NO_ROW, /
    ) -> float:
        try:
            value = reward(prompt, response, **({"row": row} if wants_row else {}))
        except Exception as error:  # likewise
            raise SpecError(FIELD, f"{name} raised {type(error).__name__}: {error}") from error
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise SpecError(FIELD, f"{name} returned {value!r}, not a finite number")
        return float(value)

    return checked


def _has_parameter(function: Callable[..., object], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except ValueError:  # a builtin without a signature
        return False
