"""Finding what the user's code defines, and saying what went wrong in it."""

import importlib
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.exit import user_frame


def import_callable(function: str, field: str) -> Callable[..., object]:
    """What "module:callable" names. SpecError for `field` if it cannot be imported or called."""
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


def described(error: BaseException) -> tuple[str, str, int]:
    """What the user's code raised, in one line, and the file and line where it did."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return (text, *_place(error))


def definition(function: Callable[..., object]) -> tuple[str, int]:
    """File and line of a function, or of an object's; empty and 0 for one that is not Python."""
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


def as_number(value: object) -> float | None:
    """Of an int, float or bool, or of a scalar of NumPy, torch and the like; None of others."""
    if isinstance(value, (str, bytes, bytearray)) or not hasattr(type(value), "__float__"):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError, RuntimeError):  # an array or tensor of several numbers
        return None


def shown(value: object) -> str:
    """Its repr, whatever the user's class does there."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - the user's own class may raise anything
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"
