"""Puts a rollout together from its environment and runs it until it is drained."""

import asyncio
import logging
import signal

from rollcall_runtime.environment import RolloutEnvironment, new_member
from rollcall_runtime.errors import SpecError
from rollcall_runtime.rollout.agent import Agent, AgentSettings, Parts
from rollcall_runtime.rollout.engine import FIELD, InferenceEngine, PauseMode
from rollcall_runtime.rollout.engines import inference_engines
from rollcall_runtime.settings import read_settings
from rollcall_runtime.sync.engine import Role, SyncSettings
from rollcall_runtime.sync.registry import create_engine
from rollcall_runtime.tasks.rewards import load_reward
from rollcall_runtime.telemetry import RolloutMetrics

log = logging.getLogger(__name__)

AGENT_KEYS = frozenset({"concurrency"})
SYNC_DEVICE = "cpu"  # versions are staged in host memory


def run(environment: RolloutEnvironment) -> None:
    """Run to the end. SpecError when the job asks for what this container cannot do."""
    asyncio.run(_serve(environment))


async def _serve(environment: RolloutEnvironment) -> None:
    pod = environment.pod
    member = new_member(pod)
    parts = _parts(environment)
    descriptor = parts.sync.open(
        member=member, address=pod.address, role=Role.RECEIVER,
        settings=SyncSettings(),
    )  # fmt: skip
    agent = Agent(environment=environment, member=member, descriptor=descriptor, parts=parts)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.drain, signal.Signals(number).name)
    log.info("rollout %s of pool %s starts", pod.name, environment.pool.pool)
    await agent.run()


def _parts(environment: RolloutEnvironment) -> Parts:
    job, pool = environment.job, environment.pool
    own = {key: value for key, value in pool.engine.config.items() if key in AGENT_KEYS}
    modes = [mode.value for mode in PauseMode]
    if job.weight_sync.pause_mode not in modes:
        problem = f"{job.weight_sync.pause_mode!r} is not one of {', '.join(modes)}"
        raise SpecError("spec.weightSync.pauseMode", problem)
    return Parts(
        settings=read_settings(AgentSettings, own, field=f"{FIELD}.config"),
        reward=load_reward(job.reward_function),
        sync=create_engine(job.weight_sync.engine, device=SYNC_DEVICE),
        engine=_inference_engine(environment),
        metrics=RolloutMetrics(
            namespace=job.namespace, job=job.job, pool=pool.pool, group=pool.sync_group
        ),
    )


def _inference_engine(environment: RolloutEnvironment) -> InferenceEngine:
    chosen = environment.pool.engine
    config = {key: value for key, value in chosen.config.items() if key not in AGENT_KEYS}
    found = inference_engines.get(chosen.name)
    return found(model=environment.job.model, config=config)
