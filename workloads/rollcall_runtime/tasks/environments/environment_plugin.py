"""Environments that are made of something else than a class of the user's: plug-ins."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from rollcall_runtime.tasks.environments.user_environment import FIELD, EnvironmentMaker
from rollcall_runtime.worker.engine_registry import Registry

TOOLS = "tools"


class EnvironmentPlugin(ABC):
    """Makes environments of functions, each "module:name"."""

    @abstractmethod
    def load(self, functions: Sequence[str], *, directory: Path | None) -> EnvironmentMaker:
        """Environments of `functions`; `directory` has the model's tokenizer.

        SpecError names the field of one that cannot be used.
        """


environment_plugins: Registry[EnvironmentPlugin] = Registry(
    kind="environment",
    group="rollcall.environments",
    field=f"{FIELD}.{TOOLS}",
    base=EnvironmentPlugin,  # type: ignore[type-abstract]
    builtins={},
)
