"""Where a trainer pod and `rollcall-train sft` find supervised training."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TextIO

from rollcall_plugins.trainers.supervised.command import add_sft_arguments, run_sft
from rollcall_runtime.train.trainer_plugin import TrainerPlugin

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rollcall_runtime.worker.environment import TrainerEnvironment


class SupervisedTrainer(TrainerPlugin):
    """The trainer of jobs with `spec.supervised`, and the command `rollcall-train sft`."""

    command: ClassVar[str] = "sft"
    summary: ClassVar[str] = "train on the answers in the data (supervised fine-tuning)"

    def run(self, environment: TrainerEnvironment) -> None:
        """`app.run`. ValueError for a job without `spec.supervised`."""
        from rollcall_plugins.trainers.supervised import app  # noqa: PLC0415 - imports torch

        if environment.job.supervised is None:
            raise ValueError("the job has no spec.supervised")
        app.run(environment, environment.job.supervised)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_sft_arguments(parser)

    def run_command(
        self, options: argparse.Namespace, arguments: Sequence[str], output: TextIO
    ) -> int:
        return run_sft(options, arguments, output)
