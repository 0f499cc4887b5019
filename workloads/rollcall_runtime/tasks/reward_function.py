"""Finding the reward function that a job names."""

import importlib
import math
from collections.abc import Callable, Sequence

from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.reward.function"

Reward = Callable[[Sequence[int], Sequence[int]], float]
"""`reward(prompt tokens, response tokens)`: higher is better, always finite."""


def load_reward(function: str) -> Reward:
    """The function that `function` names as "module:callable".

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
    def checked(prompt: Sequence[int], response: Sequence[int]) -> float:
        try:
            value = reward(prompt, response)
        except Exception as error:  # likewise
            raise SpecError(FIELD, f"{name} raised {type(error).__name__}: {error}") from error
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise SpecError(FIELD, f"{name} returned {value!r}, not a finite number")
        return float(value)

    return checked
