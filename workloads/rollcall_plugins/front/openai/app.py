"""Starts a pod of the front: the model's tokenizer, the rollouts, and the endpoints for agents."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from rollcall_plugins.front.openai.api_keys import ApiKeys
from rollcall_plugins.front.openai.metrics import FrontMetrics
from rollcall_plugins.front.openai.prompts import PromptReader
from rollcall_plugins.front.openai.recording import Recording, TrajectorySender
from rollcall_plugins.front.openai.server import FrontServer
from rollcall_plugins.front.openai.tool_calls import open_tool_parser
from rollcall_plugins.front.openai.turn_store import TurnStore
from rollcall_protocol import pod_contract
from rollcall_runtime.generation.continued_generation import Generation
from rollcall_runtime.generation.rollout_client import open_session
from rollcall_runtime.generation.rollout_stream import RolloutStream
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.models.tokenizer import open_tokenizer
from rollcall_runtime.worker.asyncio_helpers import first_of
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.metrics_server import MetricsServer

if TYPE_CHECKING:
    from rollcall_protocol.wire.serving_rollouts import ServingRollouts
    from rollcall_runtime.models.model_source import ModelSource
    from rollcall_runtime.models.tokenizer import ModelTokenizer
    from rollcall_runtime.worker.environment import FrontEnvironment

log = logging.getLogger(__name__)


def run(environment: FrontEnvironment) -> None:
    """Run until SIGTERM or SIGINT. SpecError names what this container cannot do."""
    asyncio.run(_serve(environment))


async def _serve(environment: FrontEnvironment) -> None:
    loop, job, address = asyncio.get_running_loop(), environment.job, environment.pod.address
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    keys = None if environment.keys_file is None else ApiKeys(environment.keys_file)
    source = open_model(job.model)
    tokenizer = _tokenizer(source)
    parser = open_tool_parser(environment.front.tool_parser, tokenizer)
    reader = PromptReader(source, tokenizer, parser, rollout_context=job.rollout_context)
    metrics = FrontMetrics(namespace=job.namespace, job=job.job)
    async with AsyncExitStack() as closing:
        session = await closing.enter_async_context(open_session())
        generation = Generation(session, metrics.moved.inc, reader.bounds)
        stream = _stream(environment, generation, metrics)
        probes = MetricsServer(
            metrics,
            healthy=lambda: "",
            ready=lambda: "" if generation.routes.rollouts else "no rollout serves",
        )
        closing.push_async_callback(probes.stop)
        await probes.start(address)
        store = _store(environment)
        closing.push_async_callback(store.close)
        server = FrontServer(
            job=job,
            settings=environment.front,
            reader=reader,
            generation=generation,
            keys=keys,
            metrics=metrics,
            recording=_recording(environment, reader, store, metrics),
            certificate=environment.certificate,
        )
        following = asyncio.create_task(stream.run())
        closing.callback(following.cancel)
        closing.push_async_callback(server.stop)
        await server.start(address)
        log.info("the front of %s listens at port %d", job.model, pod_contract.FRONT_PORT)
        await first_of(stop.wait(), asyncio.shield(following))


def _stream(
    environment: FrontEnvironment, generation: Generation, metrics: FrontMetrics
) -> RolloutStream:
    def changed(serving: ServingRollouts) -> None:
        generation.replace(serving)
        metrics.rollouts.set(len(serving.rollouts))

    return RolloutStream(
        url=environment.coordinator_url(
            pod_contract.MEMBERSHIP_PORT, pod_contract.FRONT_STREAM_ROUTE
        ),
        token=environment.token,
        tls=environment.trust.client_context,
        changed=changed,
    )


def _store(environment: FrontEnvironment) -> TurnStore:
    url = environment.coordinator_url(pod_contract.COMPLETIONS_PORT, pod_contract.TURNS_ROUTE)
    return TurnStore(url=url, token=environment.token, tls=environment.trust.client_context)


def _recording(
    environment: FrontEnvironment, reader: PromptReader, store: TurnStore, metrics: FrontMetrics
) -> Recording:
    url = environment.coordinator_url(
        pod_contract.COMPLETIONS_PORT, pod_contract.TRAJECTORIES_ROUTE
    )
    tls = environment.trust.client_context
    return Recording(
        job=environment.job,
        settings=environment.front,
        reader=reader,
        sender=TrajectorySender(url=url, token=environment.token, tls=tls),
        store=store,
        metrics=metrics,
    )


def _tokenizer(source: ModelSource) -> ModelTokenizer | None:
    """None for a built-in model, whose prompts are tokens. SpecError for any other without one."""
    if source.directory is None:
        return None
    tokenizer = open_tokenizer(source)
    if not hasattr(tokenizer.library, "backend_tokenizer"):
        problem = f"the tokenizer in '{source.directory}' has no tokenizer.json, which streams need"
        raise SpecError("spec.model.path", problem)
    return tokenizer
