"""Events: one object for a message that repeats within minutes, and recording does not wait."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.kube.errors import NotFoundError, ServerError
from rollcall_operator.kube.event_recorder import EventRecorder

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient

JOB = {
    "apiVersion": "rollcall.dev/v1alpha1",
    "kind": "RLJob",
    "namespace": "ns",
    "name": "reverse",
    "uid": "u-1",
}


class Posted:
    """Stands in for the client and keeps what was sent."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.bumped: list[tuple[str, dict[str, Any]]] = []
        self.fail: Exception | None = None

    async def create(self, _resource: object, body: dict[str, Any]) -> dict[str, Any]:
        if self.fail is not None:
            raise self.fail
        self.created.append(body)
        return body

    async def merge(self, _resource: object, *, namespace: str, name: str, patch: Any) -> Any:
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        self.bumped.append((name, patch))


class Clock:
    """Seconds that only the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def posted() -> Posted:
    return Posted()


@pytest.fixture
async def recorder(posted: Posted, clock: Clock) -> AsyncIterator[EventRecorder]:
    made = EventRecorder(cast("KubeClient", posted), clock=clock)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def record(recorder: EventRecorder, message: str = "Epoch 2: MembersJoined") -> None:
    recorder.record(JOB, type_="Normal", reason="EpochOpened", message=message)


async def test_an_event_names_the_object_and_the_reason(
    recorder: EventRecorder, posted: Posted
) -> None:
    record(recorder)
    await recorder.flush(seconds=1)
    (event,) = posted.created
    assert event["regarding"] == JOB
    assert event["metadata"]["namespace"] == "ns"
    assert event["metadata"]["name"].startswith("reverse.")
    assert (event["type"], event["reason"]) == ("Normal", "EpochOpened")
    assert event["note"] == "Epoch 2: MembersJoined"
    assert event["reportingController"] == "rollcall.dev/operator"
    assert event["action"]
    assert event["reportingInstance"]


async def test_a_message_that_repeats_is_a_series(recorder: EventRecorder, posted: Posted) -> None:
    for _ in range(3):
        record(recorder)
    await recorder.flush(seconds=1)
    name = posted.created[0]["metadata"]["name"]
    assert len(posted.created) == 1
    assert [(n, p["series"]["count"]) for n, p in posted.bumped] == [(name, 2), (name, 3)]


async def test_another_message_or_a_late_repetition_is_another_event(
    recorder: EventRecorder, posted: Posted, clock: Clock
) -> None:
    record(recorder)
    record(recorder, "Epoch 3: MemberLost")
    await recorder.flush(seconds=1)
    clock.now += 1000
    record(recorder)
    await recorder.flush(seconds=1)
    assert len(posted.created) == 3
    assert posted.bumped == []


async def test_a_series_whose_event_expired_starts_again(
    recorder: EventRecorder, posted: Posted
) -> None:
    record(recorder)
    await recorder.flush(seconds=1)
    posted.fail = NotFoundError(status=404, reason="NotFound", message="", what="patch")
    record(recorder)
    await recorder.flush(seconds=1)
    assert len(posted.created) == 2


async def test_an_event_that_cannot_be_posted_does_not_end_the_recorder(
    recorder: EventRecorder, posted: Posted
) -> None:
    posted.fail = ServerError(status=500, reason="InternalError", message="no", what="create")
    record(recorder)
    await recorder.flush(seconds=1)
    posted.fail = None
    record(recorder)
    await recorder.flush(seconds=1)
    assert len(posted.created) == 1


async def test_a_full_queue_drops_and_counts_instead_of_waiting(posted: Posted) -> None:
    stuck = EventRecorder(cast("KubeClient", posted), clock=Clock())
    for _ in range(1005):
        record(stuck)
    assert stuck.dropped == 5


async def test_a_long_message_is_cut_to_what_the_api_takes(
    recorder: EventRecorder, posted: Posted
) -> None:
    record(recorder, "x" * 5000)
    await recorder.flush(seconds=1)
    assert len(posted.created[0]["note"]) == 1024
