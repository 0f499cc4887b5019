"""Imports of a part of a package, without the rest that its `__init__` imports."""

import sys
from importlib.util import find_spec, module_from_spec
from typing import Any


def run_init_lazily(package: str) -> None:
    """Let `__init__` of `package` run when a name of it is first asked for, not before its parts.

    Does nothing if it has been imported already. Raises ModuleNotFoundError.
    """
    if package in sys.modules:
        return
    spec = find_spec(package)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    loader, module = spec.loader, module_from_spec(spec)

    def run_init(name: str) -> Any:
        del module.__dict__["__getattr__"]
        loader.exec_module(module)
        return getattr(module, name)

    module.__dict__["__getattr__"] = run_init  # PEP 562
    sys.modules[package] = module
    parent, _, name = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)  # as the import system does
