"""`rollcall-train sft`: supervised fine-tuning on this machine, or as one rank in a pod."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import uuid
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

from rollcall_protocol.data_config import DataConfig, TooLong
from rollcall_protocol.job_config import CONTINUE, CheckpointConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_runtime.train.command_options import (
    add_data_arguments,
    add_engine_arguments,
    add_model_argument,
    at_least,
    data_config,
    engine_ref,
    source,
)
from rollcall_runtime.worker.devices import CPU, worker_device
from rollcall_runtime.worker.logs import configure_logs
from rollcall_runtime.worker.parent_process import end_with_parent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rollcall_plugins.trainers.supervised.run import SupervisedJob
    from rollcall_plugins.trainers.supervised.training import SupervisedStep


def add_sft_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `run_sft` reads."""
    defaults = SupervisedConfig()
    add_model_argument(parser)
    add_data_arguments(parser)
    add_engine_arguments(parser)
    parser.add_argument("--learning-rate", type=float, default=defaults.learning_rate)
    parser.add_argument("--optimizer", default=defaults.optimizer)
    parser.add_argument(
        "--rows-per-step",
        type=at_least(1),
        default=defaults.rows_per_step,
        metavar="N",
        help="of all ranks together (default: %(default)s)",
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "--epochs", type=at_least(1), default=0, metavar="N", help="(default: 1, without --steps)"
    )
    end.add_argument("--steps", type=at_least(0), default=0, metavar="N", help="instead of epochs")
    parser.add_argument(
        "--evaluation",
        type=source,
        action="append",
        default=[],
        metavar="SOURCE",
        help="rows that are not learnt, to measure the loss on; repeatable",
    )
    parser.add_argument(
        "--evaluate-every",
        type=at_least(0),
        default=0,
        metavar="STEPS",
        help="(default: at the end alone)",
    )
    parser.add_argument(
        "--checkpoints", default="", metavar="DIR", help="save there, and resume from there"
    )
    parser.add_argument(
        "--checkpoint-every", type=at_least(1), default=100, metavar="STEPS", help="(default: 100)"
    )
    parser.add_argument(
        "--other-data",
        choices=("Refuse", CONTINUE),
        default="Refuse",
        help="when the data are others than the checkpoint's (default: Refuse)",
    )
    parser.add_argument("--export", default="", metavar="DIR", help="write the model there")
    parser.add_argument(
        "--ranks",
        type=at_least(1),
        default=1,
        metavar="N",
        help="processes on this machine; in a pod RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and "
        "ROLLCALL_RENDEZVOUS_SECRET say which rank this process is",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each step")


def run_sft(options: argparse.Namespace, arguments: Sequence[str], output: TextIO) -> int:
    """Train; steps go to `output`. Returns the exit code."""
    job = _job(options)
    from rollcall_runtime.train import local_processes  # noqa: PLC0415 - imports torch

    if options.ranks > 1 and local_processes.SIZE not in os.environ:
        _check_devices(options.ranks)
        command = [sys.executable, "-m", "rollcall_runtime.train", *arguments]
        return local_processes.run_ranks(command, options.ranks, output=output)
    from rollcall_plugins.trainers.supervised.run import SupervisedRank  # noqa: PLC0415

    if options.ranks > 1:
        end_with_parent()
    configure_logs()
    rendezvous = local_processes.rendezvous_of(os.environ)

    def report(step: SupervisedStep) -> None:
        if rendezvous.rank == 0:
            output.write(_line(step, as_json=options.json) + "\n")
            output.flush()

    rank = SupervisedRank(job, rendezvous, worker_device())
    with _signals_to_stop() as stopped:
        try:
            rank.start()
            result = rank.run(report, lambda: bool(stopped))
        finally:
            rank.close()
    if rendezvous.rank == 0:
        end = "finished" if result.finished else f"stopped after step {result.step}"
        counts = result.counts
        sys.stderr.write(
            f"{end}; of {counts.read} rows {counts.left_out} were left out and "
            f"{counts.truncated} truncated\n"
        )
    return ExitCode.OK if result.finished else ExitCode.FAILED


def _check_devices(ranks: int) -> None:
    """ValueError if there are accelerators, but fewer than ranks."""
    import torch  # noqa: PLC0415

    if worker_device() != CPU and ranks > torch.accelerator.device_count():
        count = torch.accelerator.device_count()
        raise ValueError(f"--ranks {ranks}: this machine has {count} devices, and each needs one")


@contextmanager
def _signals_to_stop() -> Iterator[list[int]]:
    """The signals to stop that have arrived; they end nothing by themselves meanwhile."""
    stopped: list[int] = []
    former = {
        number: signal.signal(number, lambda number, _: stopped.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stopped
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _job(options: argparse.Namespace) -> SupervisedJob:
    """ValueError for settings that are out of their range."""
    data = data_config(options)
    config = SupervisedConfig(
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        rows_per_step=options.rows_per_step,
        epochs=options.epochs,
        max_steps=options.steps,
        evaluation=DataConfig(
            tuple(options.evaluation), max_tokens=data.max_tokens, too_long=TooLong.DROP
        )
        if options.evaluation
        else None,
        evaluate_every=options.evaluate_every,
    )
    from rollcall_plugins.trainers.supervised.run import SupervisedJob  # noqa: PLC0415

    return SupervisedJob(
        model=options.model,
        data=data,
        config=config,
        engine=engine_ref(options),
        checkpoint=CheckpointConfig(
            options.checkpoint_every, options.checkpoints, options.other_data
        )
        if options.checkpoints
        else None,
        trainer=uuid.uuid4().hex,
        export_path=options.export,
    )


def _line(step: SupervisedStep, *, as_json: bool) -> str:
    if as_json:
        # JSON has no NaN, which the loss of a step that was skipped may be.
        values = asdict(step).items()
        return json.dumps({name: _finite_or_none(value) for name, value in values})
    text = (
        f"step {step.step} of {step.steps}: loss {step.loss:.4f}, {step.tokens} tokens, gradient "
        f"norm {step.gradient_norm:.3g}, learning rate {step.learning_rate:.3g}, "
        f"{step.seconds:.2f} s"
    )
    if step.skipped:
        text += f", skipped: {step.skipped}"
    if step.evaluation_loss is not None:
        text += f", evaluation loss {step.evaluation_loss:.4f}"
    return text


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
