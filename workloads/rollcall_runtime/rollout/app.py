"""Starts a rollout worker: opens its engines from the environment and runs the agent."""

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from rollcall_protocol.adapter_config import sent_adapter
from rollcall_protocol.job_config import AGENT_SETTINGS, GroupConfig, JobConfig
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.settings_reader import SettingError
from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.models.end_tokens import end_tokens
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.rollout.agent import Agent, AgentDependencies, AgentSettings
from rollcall_runtime.rollout.conversation import Conversations
from rollcall_runtime.rollout.inference_engine import (
    FIELD,
    InferenceEngine,
    PauseMode,
    inference_engines,
)
from rollcall_runtime.rollout.observation_tokens import ObservationTokens
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.open_engine import open_engine
from rollcall_runtime.tasks.environments.environment_process import EnvironmentProcess
from rollcall_runtime.tasks.reward_process import RewardScorer, Score
from rollcall_runtime.tasks.reward_processes import RewardProcesses
from rollcall_runtime.tasks.reward_text import warn_of_unseen_tags
from rollcall_runtime.worker.asyncio_helpers import favour_event_loop
from rollcall_runtime.worker.devices import check_seen
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.environment import RolloutEnvironment, new_member
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.telemetry import RolloutMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UsersCode:
    """What calls the user's functions, each in processes of its own."""

    reward: RewardScorer
    conversations: Conversations | None


class NoRewards:
    """The RewardScorer of a job whose trainer is a program of the user's own.

    That has the rewards; rollouts of the job lease no prompts.
    """

    async def score(
        self,
        prompt: Sequence[int],  # noqa: ARG002
        responses: Sequence[Sequence[int]],  # noqa: ARG002
        row: Mapping[str, Any],  # noqa: ARG002
        environment_rewards: Sequence[float] = (),  # noqa: ARG002
    ) -> list[Score]:
        """RuntimeError."""
        raise RuntimeError("spec.trainer.kind is External: rollouts score no samples")


def run(environment: RolloutEnvironment, log_fields: dict[str, Any]) -> None:
    """Run until stopped. SpecError names the field that this container cannot satisfy."""
    favour_event_loop()
    asyncio.run(_serve(environment, log_fields))


async def _serve(environment: RolloutEnvironment, log_fields: dict[str, Any]) -> None:
    job = environment.job
    check_seen(environment.pool.accelerators)
    engine = _inference_engine(environment)
    metrics = RolloutMetrics(
        namespace=job.namespace,
        job=job.job,
        pool=environment.pool.pool,
        group=environment.pool.sync_group,
    )
    async with AsyncExitStack() as closing:
        users_code = await start_users_code(job, engine, metrics, closing)
        await _run_agent(environment, engine, users_code, metrics, log_fields)


async def start_users_code(
    job: JobConfig, engine: InferenceEngine, metrics: RolloutMetrics, closing: AsyncExitStack
) -> UsersCode:
    """Start the processes of rewards and environment, if the job has them here; `closing` ends
    them. SpecError if a function cannot be loaded.
    """
    if job.external:
        return UsersCode(NoRewards(), None)
    model = open_model(job.model)
    directory, stop = model.directory, job.reward_errors.on_error != "Zero"
    warn_of_unseen_tags(job, directory)
    reward = RewardProcesses(
        job,
        directory=directory,
        ends=end_tokens(model),
        stop_at_error=stop,
        of_parts=metrics.scored,
    )
    closing.push_async_callback(reward.close)
    await reward.start()
    if job.environment is None:
        return UsersCode(reward, None)
    process = EnvironmentProcess(job.environment, directory=directory)
    closing.push_async_callback(process.close)
    await process.start()
    conversations = Conversations(
        job.environment,
        process=process,
        observations=ObservationTokens(ModelInput.of(model)),
        limits=engine.limits,
    )
    return UsersCode(reward, conversations)


async def _run_agent(
    environment: RolloutEnvironment,
    engine: InferenceEngine,
    users_code: UsersCode,
    metrics: RolloutMetrics,
    log_fields: dict[str, Any],
) -> None:
    pod = environment.pod
    model = open_model(environment.job.model)
    given = environment.job.environment is not None
    bounds = SampleBounds(model.vocabulary, model.positions, given_tokens=given)
    agent = open_agent(environment, engine, users_code, metrics, log_fields, bounds)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop, signal.Signals(number).name)
    log.info("rollout %s of pool %s starts", pod.name, environment.pool.pool)
    await agent.run()


def open_agent(
    environment: RolloutEnvironment,
    engine: InferenceEngine,
    users_code: UsersCode,
    metrics: RolloutMetrics,
    log_fields: dict[str, Any],
    bounds: SampleBounds,
) -> Agent:
    """The agent of this pod, as another member after each start; it opens the sync engine."""
    job, pool = environment.job, environment.pool
    member = new_member(environment.pod)
    own = {key: value for key, value in pool.engine.config.items() if key in AGENT_SETTINGS}
    dependencies = AgentDependencies(
        settings=read_settings(AgentSettings, own, field=f"{FIELD}.config"),
        reward=users_code.reward,
        conversations=users_code.conversations,
        sync=open_engine(
            _group(environment),
            member=member,
            address=environment.pod.address,
            role=Role.RECEIVER,
            profile=job.weight_sync.profile_path,
            shard=engine.shard,
        ),
        engine=engine,
        log_fields=log_fields,
        bounds=bounds,
        metrics=metrics,
    )
    return Agent(environment=environment, member=member, dependencies=dependencies)


def _group(environment: RolloutEnvironment) -> GroupConfig:
    name, groups = environment.pool.sync_group, environment.job.weight_sync.all_groups()
    found = next((group for group in groups if group.name == name), None)
    if found is None:
        known = ", ".join(group.name for group in groups)
        raise SpecError("spec.syncGroup", f"the job has no sync group {name!r}; known: {known}")
    return found


def _inference_engine(environment: RolloutEnvironment) -> InferenceEngine:
    modes, mode = [mode.value for mode in PauseMode], environment.job.weight_sync.pause_mode
    if mode not in modes:
        problem = f"{mode!r} is not one of {', '.join(modes)}"
        raise SpecError("spec.weightSync.pauseMode", problem)
    chosen = environment.pool.engine
    config = {key: value for key, value in chosen.config.items() if key not in AGENT_SETTINGS}
    found = inference_engines.get(chosen.name)
    try:
        adapter = sent_adapter(environment.job.trainer_engine.config)
    except SettingError as error:
        raise SpecError("spec.trainer.engine.config", str(error)) from error
    if adapter is None:
        return found(model=environment.job.model, config=config)
    return found.for_adapter(adapter, model=environment.job.model, config=config)
