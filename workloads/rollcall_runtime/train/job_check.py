"""Looks, in a worker's container, at all that a job needs there, without starting the job.

`rollcall check` runs `python -m rollcall_runtime.train.job_check ROLE` in the environment of a
container. It reads the worker's configuration as the worker does, takes prompts as JSON from
standard input, and prints a `ContainerReport` as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import JobConfig, PoolConfig
from rollcall_protocol.wire.reward_errors import RewardError
from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.data.supervised_rows import open_supervised
from rollcall_runtime.models.end_tokens import end_tokens
from rollcall_runtime.models.model_parts import check_parts
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.rollout.inference_engine import inference_engines
from rollcall_runtime.tasks.environments.environment_process import EnvironmentProcess
from rollcall_runtime.tasks.reward_process import RewardProcess
from rollcall_runtime.tasks.reward_text import ResponseText, warn_of_unseen_tags
from rollcall_runtime.train.data_preview import PreviewedRow, preview_prompts, preview_supervised
from rollcall_runtime.train.job_prompts import open_held_out, row_needs, with_steps
from rollcall_runtime.worker.command_output import own_output
from rollcall_runtime.worker.environment import read_config
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rollcall_runtime.models.model_source import ModelSource

ROWS = 3  # of the data, shown and scored
_SHOWN = 300  # characters of a text


@dataclass(slots=True)
class ContainerReport:
    """What was found in one container.

    Attributes:
        wrong: `field: what is wrong; what to do`.
        right: what was looked at and is right.
        warnings: what may be wrong, as a worker logs it.
        prompts: the first ones, for the check of rollouts: `tokens` and `row`.
        parameters: of the job's model; 0 if it cannot be opened.
    """

    wrong: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    parameters: int = 0

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what a part of the check refuses, or warns of; the other parts go on."""
        handler, logger = _Warnings(self), logging.getLogger("rollcall_runtime")
        logger.addHandler(handler)
        try:
            yield
        except SpecError as error:
            self.wrong.append(str(error))
        finally:
            logger.removeHandler(handler)


class _Warnings(logging.Handler):
    """Keeps what is logged in the report's warnings, once."""

    def __init__(self, report: ContainerReport) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        if (text := record.getMessage()) not in self._report.warnings:
            self._report.warnings.append(text)


def check_trainer(job: JobConfig) -> ContainerReport:
    """Models, data, and the first rows as the model will see them; the model alone if the trainer
    is a program of the user's own.
    """
    report = ContainerReport()
    paths = {
        "spec.model.path": job.model,
        "spec.reference.path": job.reference.model,
        "spec.critic.path": job.critic.model,
        "spec.rewardModel.path": job.reward_model.model if job.reward_model else "",
    }
    models = {where: _open(report, where, path) for where, path in paths.items() if path}
    report.right += [_model(where, found) for where, found in models.items() if found is not None]
    model = models["spec.model.path"]
    if model is None:
        return report
    with report.noting():
        built = model.build_empty()
        report.parameters = sum(p.numel() for p in built.parameters())
        if not job.external:
            check_parts(built, head="language-model", vocabulary=model.vocabulary)
    if job.external:
        return report
    known = ModelInput.of(model, rollout_context=job.rollout_context)
    with report.noting():
        _read_rows(report, job, known)
    with report.noting():
        _open_held_out(report, job, known)
    return report


async def check_rollout(
    job: JobConfig, pool: PoolConfig, prompts: Sequence[Mapping[str, Any]]
) -> ContainerReport:
    """The model, the inference engine's name, the environment, and the reward of some answers."""
    report = ContainerReport()
    with report.noting():
        inference_engines.get(pool.engine.name)
        report.right.append(f"spec.rollouts: the inference engine {pool.engine.name} is there")
    model = _open(report, "spec.model.path", job.model)
    if model is None:
        return report
    if job.environment is not None:
        with report.noting():
            await _start_environment(report, job, model.directory)
    if job.external:
        return report
    with report.noting():
        await _score(report, job, model, prompts)
    return report


def _open(report: ContainerReport, where: str, path: str) -> ModelSource | None:
    try:
        return open_model(path)
    except SpecError as error:
        report.wrong.append(f"{where}: {error.problem}")
    except OSError as error:
        report.wrong.append(f"{where}: {path!r} cannot be fetched: {error}; is there a network?")
    return None


def _model(where: str, model: ModelSource) -> str:
    limit = "any number of" if model.positions is None else f"up to {model.positions}"
    kind, numbers = model.architecture, f"below {model.vocabulary}"
    return f"{where}: {model.path} ({kind}) takes {limit} tokens, with numbers {numbers}"


def _read_rows(report: ContainerReport, job: JobConfig, model: ModelInput) -> None:
    if job.supervised is not None:
        rows = preview_supervised(job.data, model, count=ROWS)
    elif job.data.from_front:
        report.right.append("spec.data: prompts come from agents, none is there yet")
        return
    else:
        rows = preview_prompts(
            job.data,
            model,
            count=ROWS,
            sampling=job.algorithm.sampling,
            needs=row_needs(job),
        )
        report.prompts = [
            {"tokens": row.tokens, "row": row.row} for row in rows if row.outcome != "left out"
        ]
    report.right += [f"spec.data: {_described(row)}" for row in rows]
    if job.algorithm.epochs:
        steps = with_steps(job).algorithm.max_steps
        report.right.append(f"spec.algorithm.epochs: {job.algorithm.epochs} are {steps} steps")


def _described(row: PreviewedRow) -> str:
    """One line, in which nothing of the data can write to a terminal."""
    text = repr(row.text) if row.text is not None else f"tokens {list(row.tokens)}"
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
    learnt = ""
    if row.learnt is not None:
        runs = row.learnt if row.text is None else map(repr, row.learnt)
        learnt = f"; learnt: {', '.join(runs)}"
    words = f"{row.place!r}: {row.outcome}, {len(row.tokens)} tokens"
    return f"{words}: {text}{learnt[:_SHOWN]}" if row.tokens else words


def _open_held_out(report: ContainerReport, job: JobConfig, model: ModelInput) -> None:
    if job.supervised is not None and job.supervised.evaluation is not None:
        where = "spec.supervised.evaluation.source"
        open_supervised(job.supervised.evaluation, model=model, field=where).close()
    else:
        where = "spec.evaluation.data"
        held_out = open_held_out(job, model, field=where)
        if held_out is None:
            return
        held_out.close()
    report.right.append(f"{where}: can be read")


async def _start_environment(
    report: ContainerReport, job: JobConfig, directory: Path | None
) -> None:
    if job.environment is None:
        return
    process = EnvironmentProcess(job.environment, directory=directory)
    try:
        await process.start()
    finally:
        await process.close()
    report.right.append("spec.environment: can be loaded")


async def _score(
    report: ContainerReport,
    job: JobConfig,
    model: ModelSource,
    prompts: Sequence[Mapping[str, Any]],
) -> None:
    """Rewards of two answers that a model gives before it has learnt anything."""
    scoring, ends = job.reward_scoring, end_tokens(model)
    process = RewardProcess(
        job.reward_function,
        timeout=job.reward_errors.timeout,
        stop_at_error=False,
        config=scoring.config,
        style=scoring.style,
        parts=scoring.parts,
        directory=model.directory,
        text=ResponseText.of(job, ends=ends),
    )
    warn_of_unseen_tags(job, model.directory)
    name = job.reward_function or "the sum of its parts"
    try:
        await process.start()
        report.right.append(f"spec.reward: {name} can be loaded")
        for prompt in prompts:
            tokens = prompt["tokens"]
            answers = {"its prompt again": tokens, "nothing but the end": sorted(ends)[:1]}
            scores = await process.score(tokens, list(answers.values()), prompt["row"])
            for answer, score in zip(answers, scores, strict=True):
                if isinstance(score, RewardError):
                    report.wrong.append(_reward_problem(score, answer))
                    return
            said = ", ".join(
                f"{score:g} for {answer}" for answer, score in zip(answers, scores, strict=True)
            )
            report.right.append(f"spec.reward: an answer gets {said}")
    finally:
        await process.close()


def _reward_problem(error: RewardError, answer: str) -> str:
    where = f" ({error.file}:{error.line})" if error.file else ""
    return (
        f"spec.reward: {error.kind}: {error.value}{where}, for an answer that is {answer}; every "
        "answer must get a number, so correct the function"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what the role that is named needs; returns the exit code."""
    options = argparse.ArgumentParser(description="Checks a container of an RLJob.")
    options.add_argument("role", choices=("trainer", "rollout"))
    role = options.parse_args(arguments).role
    with own_output() as output:
        try:
            job = read_config(JobConfig, os.environ, pod_contract.CONFIG)
            if role == "trainer":
                report = check_trainer(job)
            else:
                pool = read_config(PoolConfig, os.environ, pod_contract.POOL_CONFIG)
                report = asyncio.run(check_rollout(job, pool, json.load(sys.stdin)))
        except SpecError as error:
            report = ContainerReport(wrong=[str(error)])
        json.dump(asdict(report), output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
