# ruff: noqa: INP001 - a folder of PYTHONPATH, no package
"""Python imports this at the start of a container's process: PYTHONPATH has this folder first."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

from rollcall_local.kubelet.host_names import install

install()

# The environment may have a module of this name itself.
_here = str(Path(__file__).parent)
_found = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [folder for folder in sys.path if folder != _here]
)
if _found is not None and _found.loader is not None:
    _found.loader.exec_module(importlib.util.module_from_spec(_found))
