"""A transport for the tests of its plug-in."""

import sys
from importlib.metadata import entry_points
from typing import Any

import pytest


def transport(name: str) -> Any:
    """The module of the engine that is registered as `name`.

    Skips the calling test or module where the engine's library is missing.
    """
    (entry,) = entry_points(group="rollcall.sync_engines", name=name)
    engine = entry.load()
    try:
        engine.require_library()
    except ImportError as error:
        pytest.skip(str(error), allow_module_level=True)
    return sys.modules[engine.__module__]
