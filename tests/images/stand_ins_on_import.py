"""Puts the stand-ins for a GPU in place when the engine `megatron` is imported, and not before.

A `.pth` file imports this in every Python process of the test image, so it must cost nothing. The
thread that imports the engine is the one that computes with it, which matters because the mode of
torch that is among the stand-ins belongs to a thread.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

PACKAGE = "rollcall_plugins.trainers.megatron"
_until_the_process_ends = ExitStack()


class _StandInsFirst(MetaPathFinder):
    """Finds the engine's package as ever, and has the stand-ins entered before its code runs."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            stand_ins = importlib.import_module("cpu_stand_ins")  # it imports torch
            _until_the_process_ends.enter_context(stand_ins.on_cpu())
            execute(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _StandInsFirst())
