"""What training engines that are made for accelerators need replaced to run on a CPU.

Each stand-in is a context manager, entered in a process of its own before the engine is imported.
They are for tests: the product refuses these engines where there is no accelerator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

STAND_INS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {}
"""By the name of the engine that needs them."""
