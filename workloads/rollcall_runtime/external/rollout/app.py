"""Puts the agent's process together: a rollout without an inference engine of its own."""

import asyncio
import signal
from typing import Any

from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.external_rollout import PROGRAM_MESSAGES, ProgramMessage
from rollcall_runtime.external.connection import LibraryConnection
from rollcall_runtime.external.rollout.program_engine import ProgramEngine
from rollcall_runtime.rollout.agent import Agent
from rollcall_runtime.rollout.app import NoRewards, UsersCode, open_agent
from rollcall_runtime.worker.asyncio_helpers import favour_event_loop, first_of
from rollcall_runtime.worker.environment import RolloutEnvironment
from rollcall_runtime.worker.parent_process import parent_ended
from rollcall_runtime.worker.telemetry import RolloutMetrics

ANY_TOKENS = SampleBounds(vocabulary=2**63)  # the engine refuses all requests, whatever they ask


def run(
    environment: RolloutEnvironment, log_fields: dict[str, Any], *, link: int, by_function: bool
) -> None:
    """Be a rollout for the program at the other end of the socket `link`, until it ends.

    SpecError names the field that this container cannot satisfy.
    """
    favour_event_loop()
    asyncio.run(_serve(environment, log_fields, link, by_function=by_function))


async def _serve(
    environment: RolloutEnvironment, log_fields: dict[str, Any], link: int, *, by_function: bool
) -> None:
    job, pool = environment.job, environment.pool
    connection = await LibraryConnection.open(link, PROGRAM_MESSAGES)
    engine = ProgramEngine(environment.pod.name, connection.send, by_function=by_function)
    metrics = RolloutMetrics(
        namespace=job.namespace, job=job.job, pool=pool.pool, group=pool.sync_group
    )
    code = UsersCode(NoRewards(), None)
    agent = open_agent(environment, engine, code, metrics, log_fields, ANY_TOKENS)
    loop = asyncio.get_running_loop()
    # Ctrl-C goes to all processes of a terminal; the program decides what it means.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, agent.stop, signal.SIGTERM.name)
    await first_of(agent.run(), _follow(connection, engine, agent))


async def _follow(
    connection: LibraryConnection[ProgramMessage], engine: ProgramEngine, agent: Agent
) -> None:
    # The parent is watched, too: processes that it forked may keep the socket.
    await first_of(engine.answer(connection.messages()), parent_ended())
    agent.stop("the program has closed the library, or ended")
    await asyncio.Future()  # the agent ends
