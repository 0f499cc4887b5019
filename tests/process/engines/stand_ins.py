"""Finds what an engine that is made for accelerators needs replaced to run on a CPU.

A stand-in is the context manager `on_cpu` of `tests.plugins.trainers.<name>.cpu_stand_ins`. Each
rank enters it before the engine is imported.
"""

import importlib
from contextlib import AbstractContextManager
from importlib.util import find_spec


def has_stand_in(name: str) -> bool:
    """Whether the tests of the plug-in `name` have a stand-in."""
    try:
        return name.isidentifier() and find_spec(_module(name)) is not None
    except ModuleNotFoundError:  # there are no tests of such a plug-in
        return False


def stand_in(name: str) -> AbstractContextManager[object]:
    """The stand-in of the plug-in `name`; ImportError without one."""
    found: AbstractContextManager[object] = importlib.import_module(_module(name)).on_cpu()
    return found


def _module(name: str) -> str:
    return f"tests.plugins.trainers.{name}.cpu_stand_ins"
