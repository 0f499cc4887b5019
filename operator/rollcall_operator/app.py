"""The composition root: builds the parts, starts them in order, stops them in bounded time."""

import asyncio
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from rollcall_operator import handlers
from rollcall_operator.config import Settings
from rollcall_operator.control.apply import Applier
from rollcall_operator.control.certificate_authority import (
    CertificateAuthority,
    wait_for_authority,
)
from rollcall_operator.control.job_certificates import JobCertificates
from rollcall_operator.control.job_reader import JobReader
from rollcall_operator.control.job_store import JobStore
from rollcall_operator.control.leader_election import (
    LeaderElectionSettings,
    LeaderElector,
    LeadershipLostError,
)
from rollcall_operator.control.node_watch import NodeWatch
from rollcall_operator.control.object_watches import ObjectWatches
from rollcall_operator.control.operator_tokens import OperatorTokens
from rollcall_operator.control.reconciler import Reconciler
from rollcall_operator.control.startup import may_watch_nodes, wait_for_definitions
from rollcall_operator.control.trust_keys import TrustKeys
from rollcall_operator.control.work_queue import QueueSettings, WorkQueue
from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.connection import ConfigurationError, Connection, connect
from rollcall_operator.kube.event_recorder import EventRecorder
from rollcall_operator.kube.pod_dialer import PodDialer
from rollcall_operator.kube.service_account import own_service_account
from rollcall_operator.kube.transport import Transport
from rollcall_operator.plan.model import JobKey, PolicyPeers
from rollcall_operator.plan.timestamps import to_time
from rollcall_operator.telemetry.logs import configure
from rollcall_operator.telemetry.metrics import OperatorMetrics
from rollcall_operator.telemetry.probes import EventLoopProbe, ProbeServer

log = logging.getLogger(__name__)

T = TypeVar("T")

EXIT_OK, EXIT_FAILED, EXIT_BAD_SETTINGS = 0, 1, 2

_COLLECT_AFTER = (30_000, 10, 20)
"""Python's 700 objects make its search for cycles a tenth of all the work with thousands of jobs,
whose objects it goes through in vain each time; https://docs.python.org/3/library/gc.html"""

_FLUSH_SECONDS = 2.0
_KOPF_SECONDS = 5.0
_HARD_EXIT_SECONDS = 15.0  # beyond the drain time


class StoppedError(Exception):
    """The operator was asked to stop."""


def run(settings: Settings) -> int:
    """Run until a signal; returns the process's exit code."""
    configure(level=settings.log_level, style=settings.log_format)
    gc.set_threshold(*_COLLECT_AFTER)
    return asyncio.run(Operator(settings).run())


@dataclass(frozen=True, slots=True)
class _Watched:
    """What the watches fill, and the watches."""

    store: JobStore
    nodes: NodeWatch
    watches: ObjectWatches


class Operator:
    """One operator process: `run` once, `stop` from anywhere in its loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._drain = settings.drain
        self._not_ready = "starting"
        self._metrics = OperatorMetrics()
        self._loop_probe = EventLoopProbe()
        self._probes = ProbeServer(metrics=self._metrics, live=self._live, ready=self._ready)
        self._queue: WorkQueue[JobKey] | None = None
        self._last_resort: threading.Timer | None = None

    @property
    def http_port(self) -> int:
        """The port of probes and metrics; 0 before it listens."""
        return self._probes.port

    async def run(self) -> int:
        """Run until stopped. Returns 0 after a signal, 1 when the Lease was lost or a part failed,
        2 when the cluster's configuration cannot be read.
        """
        self._catch_signals()
        try:
            async with AsyncExitStack() as stack:
                await self._serve(stack)
        except StoppedError:
            log.info("Stopped")
            return EXIT_OK
        except ConfigurationError as error:
            log.critical("Exiting: %s", error)
            return EXIT_BAD_SETTINGS
        except LeadershipLostError as error:
            log.critical("Exiting: %s", error)
        except Exception:
            log.exception("Exiting: a part of the operator failed")
        finally:
            if self._last_resort is not None:
                self._last_resort.cancel()
        return EXIT_FAILED

    def stop(self) -> None:
        """Stop, as SIGTERM does."""
        self._stop.set()

    # --- the parts, in order -------------------------------------------------------------------

    async def _serve(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        connection = await connect(kubeconfig=settings.kubeconfig, context=settings.context)
        stack.push_async_callback(connection.close)
        await self._probes.start(host=settings.http_host, port=settings.http_port)
        stack.push_async_callback(self._probes.close)
        log.info("Probes and metrics on port %d", self._probes.port)
        vital = [_start(stack, self._loop_probe.run(), "loop_probe")]

        leading = asyncio.Event()
        elector = LeaderElector(self._client(connection, None), self._lease_settings(connection))
        if settings.leader_elect:
            stack.push_async_callback(elector.release)
            vital.append(_start(stack, _hold(elector, leading), "lease"))
            await self._race(_start(stack, elector.asked.wait(), "candidate"), *vital)
        else:
            leading.set()
        client = self._client(connection, elector.guard if settings.leader_elect else None)
        stood_by = not leading.is_set()
        watched = await self._watch(client, stack, vital)
        self._not_ready = ""  # a standby is ready to take over
        await self._race(_start(stack, leading.wait(), "leading"), *vital)
        self._metrics.leading(held=True)
        if stood_by:
            await self._race(_start(stack, watched.watches.catch_up(), "catching up"), *vital)
        await self._lead(connection, client, watched, stack, vital)

    async def _watch(
        self, client: KubeClient, stack: AsyncExitStack, vital: list[asyncio.Task[None]]
    ) -> _Watched:
        """List and watch all objects; a standby has done so when it becomes the leader."""
        namespaces = self._settings.namespaces
        definitions = wait_for_definitions(client, namespaces=namespaces, report=self._wait_on)
        await self._race(_start(stack, definitions, "definitions"), *vital)
        node_rights = _start(stack, may_watch_nodes(client), "node rights")
        await self._race(node_rights, *vital)
        store = JobStore()
        nodes = NodeWatch(taints=self._settings.preemption_taints, enqueue=self._enqueue)
        watches = ObjectWatches(
            client,
            store=store,
            namespaces=namespaces,
            enqueue=self._enqueue,
            seen=self._metrics.event_seen,
            node_seen=nodes.seen if node_rights.result() else None,
        )
        self._wait_on("listing the objects of all jobs")
        vital.append(_start(stack, watches.run(), "watches"))
        await self._race(_start(stack, watches.listed(), "first lists"), *vital)
        log.info("Listed the objects of %d jobs", len(store.jobs()))
        return _Watched(store, nodes, watches)

    async def _lead(
        self,
        connection: Connection,
        client: KubeClient,
        watched: _Watched,
        stack: AsyncExitStack,
        vital: list[asyncio.Task[None]],
    ) -> None:
        """Reconcile all jobs until stopped."""
        settings = self._settings
        account = await own_service_account(connection, setting=settings.service_account)
        log.info("Coordinators know this operator as %s", account.subject)
        keys = TrustKeys(client, operator=account.subject)
        await self._race(_start(stack, keys.wait_until_known(self._wait_on), "keys"), *vital)
        loading = _start(stack, self._load_authority(client, connection), "authority")
        await self._race(loading, *vital)
        # When kopf ends, it cancels all tasks started after it: so it is stopped after the queue,
        # whose callback is therefore pushed later.
        kopf_stop = asyncio.Event()
        kopf: list[asyncio.Task[None]] = []
        stack.push_async_callback(_end, kopf, kopf_stop)
        recorder = EventRecorder(client, clock=time.monotonic)
        vital.append(_start(stack, recorder.run(), "events"))
        stack.push_async_callback(recorder.flush, seconds=_FLUSH_SECONDS)
        direct = settings.reach == "direct" or (settings.reach == "auto" and connection.in_cluster)
        dialer = PodDialer(connection, direct=direct)
        stack.push_async_callback(dialer.close)
        reconciler = self._reconciler(
            client,
            watched,
            recorder=recorder,
            dialer=dialer,
            tokens=OperatorTokens(client, account),
            keys=keys,
            certificates=JobCertificates(client, loading.result()),
        )
        stack.push_async_callback(reconciler.close)
        self._start_queue(reconciler, watched.store.jobs(), stack)
        vital.append(_start(stack, keys.run(reconciler.reconcile_all), "keys"))
        watching = handlers.watch(
            connection=connection,
            namespaces=settings.namespaces,
            reported=watched.watches.reported,
            started=self._watching,
            stop=kopf_stop,
        )
        kopf.append(asyncio.create_task(watching, name="kopf"))
        await self._race(*kopf, *vital)
        raise StoppedError  # kopf ends without an error only after a signal

    def _reconciler(
        self,
        client: KubeClient,
        watched: _Watched,
        *,
        recorder: EventRecorder,
        dialer: PodDialer,
        tokens: OperatorTokens,
        keys: TrustKeys,
        certificates: JobCertificates,
    ) -> Reconciler:
        settings, writes = self._settings, watched.watches.writes
        reader = JobReader(
            client, store=watched.store, writes=writes, lost_for=watched.watches.lost_for
        )
        return Reconciler(
            reader=reader,
            applier=Applier(client, recorder, writes, timestamp=_timestamp),
            writes=writes,
            nodes=watched.nodes,
            dialer=dialer,
            tokens=tokens,
            keys=keys,
            certificates=certificates,
            policy_peers=PolicyPeers(settings.operator_peers, settings.monitoring_peers),
            worker_user=settings.worker_user,
            metrics=self._metrics,
            enqueue=self._enqueue,
        )

    def _start_queue(
        self, reconciler: Reconciler, jobs: list[JobKey], stack: AsyncExitStack
    ) -> None:
        """Reconcile all jobs, and from now on those that `_enqueue` is asked for."""
        queue: WorkQueue[JobKey] = WorkQueue(
            reconciler,
            settings=QueueSettings(workers=self._settings.workers),
            metrics=self._metrics,
        )
        stack.push_async_callback(lambda: queue.close(seconds=self._drain))
        for job in jobs:
            queue.add(job)
        queue.start()
        self._queue = queue

    def _enqueue(self, key: JobKey, delay: float = 0.0) -> None:
        """Have a job reconciled; a standby takes all jobs up once it leads."""
        if self._queue is not None:
            self._queue.add(key, delay=delay)

    async def _race(self, *tasks: asyncio.Task[Any]) -> None:
        """Wait until one of `tasks` ends, raising its error; StoppedError when asked to stop."""
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        for task in done - {stop}:
            error = task.exception()
            if isinstance(error, LeadershipLostError):
                self._drain = 0.0  # another process may be the leader by now
            if error is not None:
                # Said now: on a busy machine the end may be forced before all parts have ended.
                log.critical("Stopping: %s", str(error) or type(error).__name__)
                self._limit_shutdown()
                raise error
        if stop in done:
            raise StoppedError

    async def _load_authority(
        self, client: KubeClient, connection: Connection
    ) -> CertificateAuthority:
        settings = self._lease_settings(connection)
        return await wait_for_authority(
            client,
            namespace=settings.namespace,
            name=f"{settings.name}-authority",
            report=self._wait_on,
        )

    def _client(self, connection: Connection, guard: Callable[[], None] | None) -> KubeClient:
        return KubeClient(
            Transport(
                connection,
                timeout=self._settings.request_timeout,
                observe=self._metrics.api_request,
                guard=guard,
            )
        )

    def _lease_settings(self, connection: Connection) -> LeaderElectionSettings:
        settings = self._settings
        duration = settings.lease_duration
        return LeaderElectionSettings(
            namespace=settings.lease_namespace or connection.namespace,
            name=settings.lease_name,
            identity=settings.identity,
            duration=duration,
            renew_deadline=duration * 2 / 3,
            retry_period=duration * 2 / 15,
        )

    # --- signals and health --------------------------------------------------------------------

    def _catch_signals(self) -> None:
        """Stop on SIGTERM and SIGINT; called again once kopf has installed its own handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        log.info("Signal %s: stopping", number.name)
        self._limit_shutdown()
        self.stop()

    def _limit_shutdown(self) -> None:
        """Exit at a deadline even when the event loop is blocked."""
        if self._last_resort is None:
            seconds = self._drain + _HARD_EXIT_SECONDS
            self._last_resort = threading.Timer(seconds, os._exit, args=(EXIT_FAILED,))
            self._last_resort.daemon = True
            self._last_resort.start()

    def _watching(self) -> None:
        self._catch_signals()
        self._not_ready = ""
        log.info("Watching %s", ", ".join(self._settings.namespaces) or "all namespaces")

    def _wait_on(self, problem: str) -> None:
        self._not_ready = problem

    def _live(self) -> str:
        return self._loop_probe.problem() or (self._queue.problem() if self._queue else "")

    def _ready(self) -> str:
        return self._not_ready


def _start(stack: AsyncExitStack, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """A task that the stack cancels."""
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    return task


async def _hold(elector: LeaderElector, leading: asyncio.Event) -> None:
    """Set `leading` once the Lease is held, and renew it from then on."""
    await elector.acquire()
    leading.set()
    await elector.hold()


async def _end(tasks: list[asyncio.Task[None]], stop: asyncio.Event) -> None:
    """Ask kopf to stop, and cancel it if it does not in time."""
    stop.set()
    if not tasks:
        return
    await asyncio.wait(tasks, timeout=_KOPF_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _timestamp() -> str:
    return to_time(time.time())


__all__ = ["Operator", "run"]
