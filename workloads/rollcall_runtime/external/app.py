"""Puts the coordinator's process together: what a trainer's rank 0 has, without the training."""

import asyncio
import errno
import logging
import math
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.pod_contract import METRICS_PORT, PARTS_PORT
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.step_history import ROUTE
from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.external_trainer import (
    LIBRARY_MESSAGES,
    CoordinatorReady,
    LibraryMessage,
)
from rollcall_protocol.wire.json_codec import MAX_INT
from rollcall_protocol.wire.library_link import CancelRequest, Failed
from rollcall_protocol.wire.roster import DEFAULT_GROUP
from rollcall_runtime.coordinator.coordinator import Coordinator
from rollcall_runtime.coordinator.prometheus_metrics import PrometheusCoordinatorMetrics
from rollcall_runtime.coordinator.server import (
    CoordinatorListeners,
    CoordinatorServer,
    port_of,
)
from rollcall_runtime.external.connection import LibraryConnection
from rollcall_runtime.external.finished_step import FinishedStep
from rollcall_runtime.external.sending_rank import PartService, RankPlace
from rollcall_runtime.external.service import TrainerService
from rollcall_runtime.external.weights_file import WeightsFile
from rollcall_runtime.external.without_prompts import WithoutPrompts
from rollcall_runtime.generation.continued_generation import Generation
from rollcall_runtime.generation.rollout_client import open_session
from rollcall_runtime.membership.part_sender import SenderRank
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.sync.open_engine import checksums_do, close_engines, open_senders
from rollcall_runtime.worker.asyncio_helpers import first_of
from rollcall_runtime.worker.environment import TrainerEnvironment, new_member
from rollcall_runtime.worker.errors import FencedError, SpecError
from rollcall_runtime.worker.history_file import HistoryFile, history_path
from rollcall_runtime.worker.metrics_server import MetricsServer
from rollcall_runtime.worker.parent_process import parent_ended
from rollcall_runtime.worker.telemetry import TrainerMetrics

log = logging.getLogger(__name__)


def run(
    environment: TrainerEnvironment,
    log_fields: dict[str, Any],
    *,
    link: int,
    file: int,
    place: RankPlace | None,
) -> None:
    """Serve the trainer at the other end of the socket `link`, whose weights are in `file` (both
    descriptors), until it ends. `place`: of a trainer whose ranks all send.

    SpecError when the job asks for what is not here, FencedError when another trainer has taken
    over.
    """
    asyncio.run(_serve(environment, log_fields, link, file, place))


async def _serve(
    environment: TrainerEnvironment,
    log_fields: dict[str, Any],
    link: int,
    file: int,
    place: RankPlace | None,
) -> None:
    # Ctrl-C goes to all processes of a terminal; the trainer decides what it means.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    environment = environment if place is None else place.within(environment)
    job, address = environment.job, environment.pod.address
    connection = await LibraryConnection.open(link, LIBRARY_MESSAGES)
    metrics = TrainerMetrics(namespace=job.namespace, job=job.job, group=DEFAULT_GROUP)
    if environment.rank > 0:
        serving = (
            _refuse(environment.rank, connection)
            if place is None
            else _send_parts(environment, connection, file)
        )
        await _serve_probes(environment, serving, metrics)
        return
    member = new_member(environment.pod)
    counted = PrometheusCoordinatorMetrics(metrics, log_fields)
    history = history_path(environment)
    probes = MetricsServer(metrics, healthy=lambda: "", ready=lambda: "", files={ROUTE: history})
    async with AsyncExitStack() as closing:
        engines = await open_senders(environment, member)
        closing.push_async_callback(close_engines, engines)
        listeners = _open_listeners(environment)
        coordinator = Coordinator(
            config=job.coordinator,
            member=member,
            address=address,
            name=environment.coordinator,
            state_dir=environment.state_dir,
            engines=engines,
            metrics=counted,
            senders=1 if place is None else place.ranks,
            part_patience=job.weight_sync.stage_timeout,
            weights_port=PARTS_PORT if listeners is None else port_of(listeners.weights),
            prompts=WithoutPrompts(),
            changed=lambda: service.members_changed(),  # noqa: PLW0108 - it is made below
        )
        service = TrainerService(
            coordinator=coordinator,
            connection=connection,
            file=WeightsFile(
                file,
                bucket_bytes=job.weight_sync.bucket_bytes,
                # The other ranks may write theirs again before rank 0 asks for their digests.
                cheap=place is None and checksums_do(job.weight_sync, device="cpu"),
            ),
            ready=CoordinatorReady(_float32_as(job), 0 if listeners is None else listeners.port),
            open_generation=lambda: _open_generation(environment, closing),
            read_metrics=lambda: _figures(metrics),
            result=FinishedStep(environment.state_dir),
            record=_recorder(metrics, closing.enter_context(_open_history(history))),
        )
        server = CoordinatorServer(
            coordinator,
            address=address,
            verifier=environment.verifier(),
            certificate=environment.certificate,
            metrics=counted,
            listeners=listeners,
        )
        closing.push_async_callback(server.stop)
        closing.push_async_callback(coordinator.stop)
        await _listen(server)
        closing.push_async_callback(probes.stop)
        await probes.start(address, environment.own_port(METRICS_PORT))
        log.info("the coordinator of %s listens", job.job)
        # The parent is watched, too: processes that it forked may keep the socket.
        await first_of(service.run(), _fenced(coordinator), parent_ended())


def _open_listeners(environment: TrainerEnvironment) -> CoordinatorListeners | None:
    port, address = environment.coordinator_port, environment.pod.address
    if port is None:
        return None
    try:
        return CoordinatorListeners.open(address, port)
    except OSError as error:
        raise SpecError(
            "rollcall.Trainer",
            f"it cannot listen at {host_port(address, port)} ({error.strerror}); give an address "
            "of this machine, and see that no other trainer has the folder",
        ) from error


async def _listen(server: CoordinatorServer) -> None:
    try:
        await server.start()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise SpecError(
            "rollcall.Trainer",
            f"it was called before in this pod ({error.strerror}); call it once in each pod, or "
            "close the former one",
        ) from error


async def _serve_probes(
    environment: TrainerEnvironment, serving: Coroutine[Any, Any, None], metrics: TrainerMetrics
) -> None:
    """Beside `serving`, in the trainer's other pods: the kubelet asks them, too."""
    probes = MetricsServer(metrics, healthy=lambda: "", ready=lambda: "")
    if environment.local_rank == 0:  # the pod's ranks have one address
        await probes.start(environment.pod.address)
    try:
        await first_of(serving, parent_ended())
    finally:
        await probes.stop()


async def _send_parts(
    environment: TrainerEnvironment, connection: LibraryConnection[LibraryMessage], file: int
) -> None:
    job = environment.job
    engines = await open_senders(environment, new_member(environment.pod))
    sender = SenderRank(environment=environment, engines=engines)
    service = PartService(
        rank=environment.rank,
        sender=sender,
        connection=connection,
        file=WeightsFile(file, bucket_bytes=job.weight_sync.bucket_bytes),
        float32_as=_float32_as(job),
    )
    try:
        await first_of(service.run(), sender.run())
    finally:
        await close_engines(engines)


def _float32_as(job: JobConfig) -> str:
    return "bfloat16" if job.weight_sync.dtype == "BFloat16" else "float32"


async def _refuse(pod: int, connection: LibraryConnection[LibraryMessage]) -> None:
    connection.send(CoordinatorReady("float32"))
    async for message in connection.messages():
        if not isinstance(message, CancelRequest):
            problem = f"this is pod {pod} of the trainer; only pod 0 speaks for it: call it there"
            connection.send(Failed(message.request, problem))


@contextmanager
def _open_history(path: Path) -> Iterator[HistoryFile]:
    file = HistoryFile(path, first_step=MAX_INT)  # a trainer's own count may go back
    try:
        yield file
    finally:
        file.close()


def _recorder(
    metrics: TrainerMetrics, history: HistoryFile
) -> Callable[[int, Mapping[str, float]], None]:
    def record(step: int, figures: Mapping[str, float]) -> None:
        history.record(step, figures)
        metrics.step.set(step)
        metrics.last_step.set_to_current_time()
        metrics.record_figures(figures)
        if "reward/mean" in figures:
            metrics.reward.set(figures["reward/mean"])

    return record


async def _fenced(coordinator: Coordinator) -> None:
    await coordinator.fenced.wait()
    raise FencedError("another coordinator has taken over this job")


async def _open_generation(environment: TrainerEnvironment, closing: AsyncExitStack) -> Generation:
    model = await asyncio.to_thread(open_model, environment.job.model)
    session = await closing.enter_async_context(open_session())
    bounds = SampleBounds(model.vocabulary, model.positions)
    return Generation(session, lambda: None, bounds)


def _figures(metrics: TrainerMetrics) -> dict[str, float]:
    """Gauges and counters by their names, without those of causes and kinds."""
    return {
        sample.name: sample.value
        for family in metrics.registry.collect()
        if family.type != "histogram"
        for sample in family.samples
        if sample.labels.keys() <= metrics.labels.keys() and math.isfinite(sample.value)
    }
