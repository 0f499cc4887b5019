"""The prompts of a job, and of its evaluations, with all that the job asks of their rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rollcall_runtime.data.prompt_source import PromptSource, count_prompts, open_prompts
from rollcall_runtime.tasks.reward_registry import named_rewards
from rollcall_runtime.tasks.reward_styles import style_needs
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_protocol.job_config import JobConfig
    from rollcall_runtime.data.model_input import ModelInput
    from rollcall_runtime.tasks.reward_registry import NamedReward
    from rollcall_runtime.tasks.row_needs import RowNeeds


def open_job_prompts(job: JobConfig, model: ModelInput) -> PromptSource:
    """What the job trains on; SpecError as `open_prompts`."""
    sampling = job.algorithm.sampling
    return open_prompts(job.data, model=model, sampling=sampling, needs=row_needs(job))


def open_held_out(job: JobConfig, model: ModelInput, *, field: str) -> PromptSource | None:
    """The prompts of the job's evaluations; None without any. SpecError as `open_prompts`."""
    if job.evaluation is None:
        return None
    data, sampling = job.evaluation.data, job.algorithm.sampling
    return open_prompts(data, model=model, field=field, sampling=sampling, needs=row_needs(job))


def with_steps(job: JobConfig) -> JobConfig:
    """The job with the number of steps that its epochs are, if it has epochs.

    The last step may go on into the next pass. SpecError for data that cannot be opened, and for
    prompts without an end. No row is checked: `open_job_prompts` does that.
    """
    algorithm = job.algorithm
    if not algorithm.epochs:
        return job
    prompts = count_prompts(job.data)
    if prompts is None:
        problem = f"{job.data.sources[0].name!r} has prompts without an end, and no passes"
        raise SpecError("spec.algorithm.epochs", f"{problem}; give maxSteps")
    steps = -(-algorithm.epochs * prompts // algorithm.prompts_per_step)
    return replace(job, algorithm=replace(algorithm, max_steps=steps))


def row_needs(job: JobConfig) -> tuple[RowNeeds, ...]:
    """Those of the job's rewards that have a name; SpecError for settings that cannot be used."""
    scoring = job.reward_scoring
    named = [
        (f"spec.reward.parts[{at}]", part.function, part.config, part.style)
        for at, part in enumerate(scoring.parts)
    ]
    named = named or [("spec.reward", job.reward_function, scoring.config, scoring.style)]
    found = []
    for where, function, config, style in named:
        reward = _known(function)
        if reward is not None:
            found.append(reward.row_needs(config, field=f"{where}.config"))
        else:
            found.append(style_needs(style, f"{where}.style"))
    return tuple(needs for needs in found if needs is not None)


def _known(function: str) -> type[NamedReward] | None:
    """None for a function of the user's own, and for a reward that only the rollouts' image has."""
    if not function or ":" in function:
        return None
    try:
        return named_rewards.get(function)
    except SpecError:
        return None
