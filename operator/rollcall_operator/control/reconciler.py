"""One reconcile: look, plan, carry out. Owns the jobs' states and their links."""

import logging
import random
from collections.abc import Callable

from rollcall_operator.control.apply import Applier
from rollcall_operator.control.coordinator_link import CoordinatorLink, LinkMetrics, LinkSettings
from rollcall_operator.control.job_reader import JobReader, Sight
from rollcall_operator.control.job_state import JobState, Key
from rollcall_operator.control.work_queue import RetryError
from rollcall_operator.kube.errors import (
    ConflictError,
    NotFoundError,
    ServerError,
    TerminatingError,
    ThrottledError,
    UnreachableError,
)
from rollcall_operator.kube.pod_dialer import PodDialer
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import JobPlan, ReconcileMemory
from rollcall_operator.telemetry.logs import log_fields
from rollcall_operator.telemetry.metrics import OperatorMetrics

log = logging.getLogger(__name__)

RESYNC_SECONDS = 60.0

# Not found: an object or its namespace went away since it was looked at.
_PASSING = (ConflictError, NotFoundError, ServerError, ThrottledError, UnreachableError)


class Reconciler:
    """The queue's handler. `wake` is the queue's `add`, for links to ask for a reconcile."""

    def __init__(
        self,
        *,
        observer: JobReader,
        applier: Applier,
        dialer: PodDialer,
        metrics: OperatorMetrics,
        wake: Callable[[Key, float], None],
        link_settings: LinkSettings | None = None,
    ) -> None:
        self._observer = observer
        self._applier = applier
        self._dialer = dialer
        self._metrics = metrics
        self._wake = wake
        self._link_settings = link_settings or LinkSettings()
        self._states: dict[Key, JobState] = {}

    async def __call__(self, key: Key) -> float | None:
        """Reconcile one job; returns seconds to the next look, None when it is gone.

        Raises RetryError for what passes by itself.
        """
        with log_fields(namespace=key[0], job=key[1]):
            try:
                return await self._reconcile(key)
            except TerminatingError:
                log.debug("The namespace is being deleted")
                return RESYNC_SECONDS
            except _PASSING as error:
                raise RetryError(str(error)) from error

    async def close(self) -> None:
        """Close every link."""
        for state in self._states.values():
            await self._unlink(state)
        self._states.clear()

    async def _reconcile(self, key: Key) -> float | None:
        state = self._states.setdefault(key, JobState())
        await self._applier.retry_refused(state)
        sight = await self._observer.look(key)
        _recognise(state, sight)
        await self._relink(key, state, sight)
        observed = self._observer.observed(key, sight, state)
        plan = make_plan(observed)
        with log_fields(epoch=_epoch(plan)):
            again = await self._applier.carry_out(observed, plan, state)
        if sight.gone:
            await self._forget(key, state)
            return None
        if sight.job is not None:
            self._metrics.jobs.update(key, plan.job_status or sight.job.get("status") or {})
        else:
            self._metrics.jobs.forget(key)
        resync = RESYNC_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads resyncs
        return resync if again is None else min(again, resync)

    async def _relink(self, key: Key, state: JobState, sight: Sight) -> None:
        pod, token = sight.coordinator, sight.token
        link = state.link
        if link is not None and pod is not None and token and link.serves(pod, token):
            link.poke()
            return
        await self._unlink(state)
        if sight.job is None or pod is None or not token:
            return
        observer: LinkMetrics = self._metrics
        state.link = CoordinatorLink(
            pod=pod,
            token=token,
            dialer=self._dialer,
            notify=lambda delay: self._wake(key, delay),
            observer=observer,
            settings=self._link_settings,
        )
        state.link.start()

    async def _unlink(self, state: JobState) -> None:
        link, state.link = state.link, None
        if link is not None:
            await link.close()

    async def _forget(self, key: Key, state: JobState) -> None:
        await self._unlink(state)
        self._states.pop(key, None)
        self._observer.forget(key)
        self._metrics.jobs.forget(key)


def _recognise(state: JobState, sight: Sight) -> None:
    uid = sight.job["metadata"]["uid"] if sight.job is not None else ""
    if uid != state.uid:
        state.uid, state.memory = uid, ReconcileMemory()
        state.refused.clear()


def _epoch(plan: JobPlan) -> int | None:
    return plan.roster.epoch if plan.roster is not None else None
