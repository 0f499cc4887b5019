"""Ways of training beside that of a policy: plug-ins that trainer pods and `rollcall-train` run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, TextIO

from rollcall_runtime.worker.engine_registry import Registry

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rollcall_runtime.worker.environment import TrainerEnvironment

SUPERVISED = "supervised"


class TrainerPlugin(ABC):
    """A way of training. Its module imports no torch, so that help and usage errors appear at once.

    `command` is its subcommand of `rollcall-train`, `summary` what that does.
    """

    command: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def run(self, environment: TrainerEnvironment) -> None:
        """Be one rank in a pod, until SIGTERM or SIGINT. Raises what `train.app.run` raises."""

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that `run_command` reads to the command's parser."""

    @abstractmethod
    def run_command(
        self, options: argparse.Namespace, arguments: Sequence[str], output: TextIO
    ) -> int:
        """Train on this machine; results go to `output`. Returns the exit code.

        `arguments` are those of `rollcall-train`, to start it again for other ranks.
        """


trainer_plugins: Registry[TrainerPlugin] = Registry(
    kind="trainer",
    group="rollcall.trainers",
    field="spec.supervised",
    base=TrainerPlugin,  # type: ignore[type-abstract]
    builtins={},
)
