"""Leader election: one active operator, by a coordination.k8s.io Lease.

Written here because the client library's elector compares wall clocks, waits without timeouts
and dies on a broken connection. The rules are client-go's: a candidate times the holder by its own
monotonic clock from the moment it saw the record change, and every write carries the
resourceVersion, so that of two takers one gets a conflict.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.errors import ApiError, ConflictError, UnreachableError
from rollcall_operator.kube.resources import LEASES
from rollcall_operator.plan.timestamps import to_micro_time

log = logging.getLogger(__name__)


class LeadershipLostError(Exception):
    """Another process may be the leader by now: this one must stop."""


@dataclass(frozen=True, slots=True)
class LeaderElectionSettings:
    """Times are seconds: `renew_deadline` < `duration`, or two processes could lead at once."""

    namespace: str
    name: str
    identity: str
    duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if not self.retry_period < self.renew_deadline < self.duration:
            raise ValueError("a Lease needs retry period < renew deadline < duration")


class LeaderElector:
    """`acquire`, then `hold` in a task until it raises or is cancelled, then `release`."""

    def __init__(
        self,
        client: KubeClient,
        settings: LeaderElectionSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._seen: tuple[Any, ...] | None = None  # the record last observed
        self._seen_at = 0.0
        self._lease: Object | None = None  # as this process last wrote it
        self._renewed_at: float | None = None
        self.asked = asyncio.Event()
        """Set once it was tried to get the Lease: it is held now, or will be later."""

    @property
    def held(self) -> bool:
        """Whether this process may act, by its own clock."""
        at = self._renewed_at
        return at is not None and self._clock() - at < self._settings.duration

    def guard(self) -> None:
        """Raise LeadershipLostError unless held: fences writes of a process that was paused."""
        if not self.held:
            raise LeadershipLostError("the Lease is not held; not writing")

    async def acquire(self) -> None:
        """Wait until this process holds the Lease; API errors are retried without end."""
        announced = ""
        while True:
            try:
                holder = await self._try()
            except (ApiError, UnreachableError) as error:
                holder = f"unknown ({error})"
            self.asked.set()
            if not holder:
                log.info("Lease %s/%s acquired", self._settings.namespace, self._settings.name)
                return
            if holder != announced:
                log.info("Standing by: %s is the leader", holder)
                announced = holder
            jitter = random.uniform(0.9, 1.2)  # noqa: S311 - spreads candidates
            await asyncio.sleep(self._settings.retry_period * jitter)

    async def hold(self) -> None:
        """Renew until it fails for `renew_deadline`; raises LeadershipLostError."""
        while True:
            await asyncio.sleep(self._settings.retry_period)
            await self._renew()

    async def _renew(self) -> None:
        assert self._renewed_at is not None  # noqa: S101 - acquire came first
        deadline = self._renewed_at + self._settings.renew_deadline
        problem = "no time left"
        while (left := deadline - self._clock()) > 0:
            try:
                async with asyncio.timeout(left):
                    holder = await self._try()
            except (ApiError, UnreachableError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
                log.warning("Lease not renewed, retrying: %s", problem)
            else:
                if not holder:
                    return
                self._renewed_at = None
                raise LeadershipLostError(f"the Lease was taken by {holder}")
            await asyncio.sleep(min(self._settings.retry_period, max(0.1, left / 3)))
        self._renewed_at = None
        raise LeadershipLostError(
            f"the Lease was not renewed within {self._settings.renew_deadline:.0f} s: {problem}"
        )

    async def release(self) -> None:
        """Let a successor take over at once. Best effort: the Lease expires in any case."""
        lease, self._lease, self._renewed_at = self._lease, None, None
        if lease is None:
            return
        spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._client.replace(LEASES, {**lease, "spec": spec})
        except (ApiError, UnreachableError) as error:
            log.warning("Lease not released: %s", error)
        else:
            log.info("Lease released")

    async def _try(self) -> str:
        """Create, take or renew the Lease. Returns another holder's identity, or nothing."""
        asked_at = self._clock()
        settings = self._settings
        lease = self._lease
        if lease is None:
            lease = await self._client.find(
                LEASES, namespace=settings.namespace, name=settings.name
            )
        try:
            if lease is None:
                written = await self._client.create(LEASES, self._body(None))
            else:
                holder = self._observe(lease)
                if holder:
                    return holder
                written = await self._client.replace(LEASES, self._body(lease))
        except ConflictError:
            # Another process wrote it meanwhile: read it again before deciding.
            self._lease = None
            current = await self._client.get(
                LEASES, namespace=settings.namespace, name=settings.name
            )
            return self._observe(current) or await self._take(current, asked_at)
        self._won(written, asked_at)
        return ""

    async def _take(self, lease: Object, asked_at: float) -> str:
        self._won(await self._client.replace(LEASES, self._body(lease)), asked_at)
        return ""

    def _won(self, lease: Object, asked_at: float) -> None:
        self._lease = lease
        # The time before the request: no other candidate can have seen the record earlier.
        self._renewed_at = asked_at
        self._seen, self._seen_at = _record(lease), asked_at

    def _observe(self, lease: Object) -> str:
        """The identity of a holder whose Lease has not expired, or nothing."""
        record = _record(lease)
        if record != self._seen:
            self._seen, self._seen_at = record, self._clock()
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if holder in {"", self._settings.identity}:
            return ""
        duration = float(spec.get("leaseDurationSeconds") or self._settings.duration)
        return holder if self._clock() - self._seen_at < duration else ""

    def _body(self, lease: Object | None) -> Object:
        now = to_micro_time(time.time())
        settings = self._settings
        spec = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != settings.identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + bool(lease)
        spec.update(
            holderIdentity=settings.identity,
            leaseDurationSeconds=settings.duration,
            renewTime=now,
        )
        meta = (
            lease["metadata"] if lease else {"namespace": settings.namespace, "name": settings.name}
        )
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": meta,
            "spec": spec,
        }


def _record(lease: Object) -> tuple[Any, ...]:
    spec = lease.get("spec") or {}
    return (
        spec.get("holderIdentity"),
        spec.get("renewTime"),
        spec.get("acquireTime"),
        spec.get("leaseTransitions"),
        lease["metadata"].get("resourceVersion"),
    )
