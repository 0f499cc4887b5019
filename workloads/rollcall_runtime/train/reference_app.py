"""Starts a reference pod: opens the model for inference on one rank, and serves it."""

from __future__ import annotations

import asyncio
import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.engine_configuration import split_config, split_loop
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.reference_pods.exchange import RequestBounds
from rollcall_runtime.train.reference_pods.metrics import ReferenceMetrics
from rollcall_runtime.train.reference_pods.server import ReferenceServer
from rollcall_runtime.train.roles.build_roles import model_named_by, open_role_model
from rollcall_runtime.train.roles.reference import Reference
from rollcall_runtime.train.train_engine import EngineSetup
from rollcall_runtime.worker.asyncio_helpers import favour_event_loop, first_of
from rollcall_runtime.worker.auth import Authenticator
from rollcall_runtime.worker.devices import device_of
from rollcall_runtime.worker.identity.roles import RoleBook
from rollcall_runtime.worker.metrics_server import MetricsServer

if TYPE_CHECKING:
    from rollcall_protocol.job_config import JobConfig
    from rollcall_runtime.worker.environment import ReferenceEnvironment

log = logging.getLogger(__name__)


def run(environment: ReferenceEnvironment) -> None:
    """Run until SIGTERM or SIGINT, which end the process with code 0.

    SpecError when the job asks for what this container cannot do; what the model raises.
    """
    favour_event_loop()
    asyncio.run(_serve(environment))


async def _serve(environment: ReferenceEnvironment) -> None:
    loop, job, address = asyncio.get_running_loop(), environment.job, environment.pod.address
    stop, started = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = ReferenceMetrics(namespace=job.namespace, job=job.job)
    probes = MetricsServer(
        metrics, healthy=lambda: "", ready=lambda: "" if started.is_set() else "starting"
    )
    thread = ThreadPoolExecutor(1, thread_name_prefix="reference")
    with ExitStack() as undo:
        try:
            await probes.start(address)
            bounds = RequestBounds.of(job, open_role_model(*_model(job)))
            reference = await loop.run_in_executor(thread, open_reference, environment, undo)
            server = ReferenceServer(
                authenticator=_authenticator(environment, metrics),
                bounds=bounds,
                logprobs=reference.logprobs,
                thread=thread,
                metrics=metrics,
                certificate=environment.certificate,
            )
            await server.start(address)
            started.set()
            log.info("the reference %s is ready", _model(job)[1])
            await first_of(stop.wait(), server.failed)
            await server.stop()
        finally:
            thread.shutdown(wait=False)
            await probes.stop()


def _authenticator(environment: ReferenceEnvironment, metrics: ReferenceMetrics) -> Authenticator:
    def refused(what: str) -> None:
        metrics.refused(what=what).inc()

    book = RoleBook(environment.job.job, environment.job.trainer_replicas)
    return Authenticator(environment.verifier(), book, refused)


def open_reference(environment: ReferenceEnvironment, undo: ExitStack) -> Reference:
    """The reference on this worker's device; `undo` frees it.

    On one rank, by the engine fsdp2 whatever the trainer's: that one may need several ranks. Of the
    trainer's settings those hold that say how to compute.
    """
    job, pods = environment.job, environment.pods
    device = device_of("reference", asked=pods.device, accelerators=pods.accelerators)
    _, rest = split_loop(job.trainer_engine.config)
    settings, _ = split_config(rest)
    ranks = TrainerProcessGroup(device=device)
    undo.callback(ranks.close)
    engine = Fsdp2Engine(
        EngineSetup(
            model=_model(job)[1],
            ranks=ranks,
            optimizer=None,
            settings=EngineSettings(
                precision=settings.precision,
                compile=settings.compile,
                max_tokens_per_microbatch=settings.max_tokens_per_microbatch,
                packing=settings.packing,
                attention=settings.attention,
                logprob_chunk=settings.logprob_chunk,
                threads=settings.threads,
            ),
            seed=job.data.seed,
            deterministic=job.algorithm.deterministic,
            temperature=job.algorithm.sampling.temperature,
        )
    )
    with model_named_by(_model(job)[0]):
        engine.initialize()
    undo.callback(engine.close)
    return Reference(engine)


def _model(job: JobConfig) -> tuple[str, str]:
    """The field that names the reference's model, and its value."""
    if job.reference.model:
        return "spec.reference.path", job.reference.model
    return "spec.model.path", job.model
