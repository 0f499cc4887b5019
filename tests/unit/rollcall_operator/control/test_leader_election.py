"""The Lease: one holder, timed by one's own clock, and no write after it is lost."""

import asyncio
import copy
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.control.leader_election import (
    LeaderElectionSettings,
    LeaderElector,
    LeadershipLostError,
)
from rollcall_operator.kube.errors import ConflictError, UnreachableError

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient


class Clock:
    """Seconds that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class OneLease:
    """Stands in for the client: a single object under optimistic concurrency."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.away = False
        self.writes = 0

    async def find(self, _resource: object, *, namespace: str, name: str) -> Any:
        self._reach()
        return copy.deepcopy(self.lease)

    async def get(self, _resource: object, *, namespace: str, name: str) -> Any:
        return await self.find(_resource, namespace=namespace, name=name)

    async def create(self, _resource: object, body: Any) -> Any:
        self._reach()
        if self.lease is not None:
            raise ConflictError(status=409, reason="AlreadyExists", message="", what="create")
        return self._store(body, "1")

    async def replace(self, _resource: object, body: Any) -> Any:
        self._reach()
        assert self.lease is not None
        held = self.lease["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != held:
            raise ConflictError(status=409, reason="Conflict", message="", what="update")
        return self._store(body, str(int(held) + 1))

    def _reach(self) -> None:
        if self.away:
            raise UnreachableError("no answer")

    def _store(self, body: Any, version: str) -> Any:
        self.writes += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = version
        return copy.deepcopy(self.lease)

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])


def elector(store: OneLease, identity: str, clock: Clock, **changes: Any) -> LeaderElector:
    settings = LeaderElectionSettings(namespace="ns", name="op", identity=identity, **changes)
    return LeaderElector(cast("KubeClient", store), settings, clock=clock)


async def test_the_first_candidate_gets_it_and_the_second_stands_by() -> None:
    store, clock = OneLease(), Clock()
    first, second = elector(store, "a", clock), elector(store, "b", clock)
    await first.acquire()
    assert await second._try() == "a"
    assert (store.holder, first.held, second.held) == ("a", True, False)


async def test_a_standby_takes_over_only_after_watching_a_silent_holder_for_the_duration() -> None:
    store, clock = OneLease(), Clock()
    await elector(store, "a", clock).acquire()
    clock.now += 1000.0  # however old the record is by now: it has just been seen
    second = elector(store, "b", clock)
    assert await second._try() == "a"
    clock.now += 14.0
    assert await second._try() == "a"
    clock.now += 1.5
    assert await second._try() == ""
    assert store.holder == "b"
    assert store.lease is not None
    assert store.lease["spec"]["leaseTransitions"] == 1


async def test_renewals_keep_a_standby_waiting() -> None:
    store, clock = OneLease(), Clock()
    first, second = elector(store, "a", clock), elector(store, "b", clock)
    await first.acquire()
    for _ in range(10):
        clock.now += 9.0
        await first._renew()
        assert await second._try() == "a"


async def test_a_holder_that_was_stopped_finds_itself_replaced_and_may_not_write() -> None:
    store, clock = OneLease(), Clock()
    first, second = elector(store, "a", clock), elector(store, "b", clock)
    await first.acquire()
    await second._try()
    clock.now += 15.5  # the first process is stopped all that time
    assert await second._try() == ""
    with pytest.raises(LeadershipLostError):
        first.guard()
    with pytest.raises(LeadershipLostError):
        await first._renew()
    second.guard()


async def test_a_holder_that_cannot_renew_gives_up_before_its_time_is_over() -> None:
    store, clock = OneLease(), Clock()
    first = elector(store, "a", clock, duration=15, renew_deadline=0.3, retry_period=0.1)
    await first.acquire()
    first._clock = asyncio.get_running_loop().time
    first._renewed_at = first._clock()
    store.away = True
    async with asyncio.timeout(2.0):
        with pytest.raises(LeadershipLostError, match="no answer"):
            await first.hold()
    assert not first.held


async def test_a_short_outage_is_survived() -> None:
    store, clock = OneLease(), Clock()
    first = elector(store, "a", clock, duration=15, renew_deadline=1.0, retry_period=0.05)
    await first.acquire()
    first._clock = asyncio.get_running_loop().time
    first._renewed_at = first._clock()
    store.away = True
    asyncio.get_running_loop().call_later(0.2, setattr, store, "away", False)
    await first._renew()
    assert first.held


async def test_of_two_takers_one_gets_it() -> None:
    store, clock = OneLease(), Clock()
    await elector(store, "gone", clock).acquire()
    first, second = elector(store, "a", clock), elector(store, "b", clock)
    await first._try()
    await second._try()
    clock.now += 16.0
    stale = await store.find(None, namespace="ns", name="op")
    assert await first._try() == ""
    second._lease = stale  # it had read the Lease before the first one took it
    assert await second._try() == "a"


async def test_another_clients_edit_does_not_cost_the_lease() -> None:
    store, clock = OneLease(), Clock()
    first = elector(store, "a", clock)
    await first.acquire()
    assert store.lease is not None
    store.lease["metadata"].update(resourceVersion="7", annotations={"note": "by hand"})
    await first._renew()
    assert first.held
    assert store.lease["metadata"]["annotations"] == {"note": "by hand"}


async def test_release_lets_a_successor_in_at_once() -> None:
    store, clock = OneLease(), Clock()
    first, second = elector(store, "a", clock), elector(store, "b", clock)
    await first.acquire()
    await second._try()
    await first.release()
    assert await second._try() == ""
    with pytest.raises(LeadershipLostError):
        first.guard()


async def test_no_operator_writes_before_acquiring_the_lease() -> None:
    with pytest.raises(LeadershipLostError):
        elector(OneLease(), "a", Clock()).guard()


def test_periods_that_would_let_two_act_are_refused() -> None:
    with pytest.raises(ValueError, match="renew deadline"):
        LeaderElectionSettings(
            namespace="n", name="l", identity="i", duration=10, renew_deadline=10.0
        )


async def test_a_lease_counts_from_before_it_was_asked_for() -> None:
    """Another candidate may have seen the write as soon as it was sent."""

    class SlowLease(OneLease):
        def _store(self, body: Any, version: str) -> Any:
            clock.now += 3
            return super()._store(body, version)

    clock = Clock()
    holder = elector(SlowLease(), "a", clock, duration=15)
    await holder.acquire()
    clock.now = 100 + 14.9
    assert holder.held
    clock.now = 100 + 15.1
    assert not holder.held
