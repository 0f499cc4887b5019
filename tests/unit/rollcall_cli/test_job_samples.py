"""Responses are read from the trainer, checked, and followed until the job is over."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_cli import job_samples
from rollcall_cli.job_samples import follow_samples, read_samples
from rollcall_operator.kube.errors import NotFoundError, UnreachableError
from rollcall_protocol.sample_query import SampleQuery
from tests.unit.rollcall_protocol.sample_records import sample_record

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient

GONE = UnreachableError("get pods/proxy: TimeoutError")
ABSENT = NotFoundError(status=404, reason="NotFound", message="", what="get pods/proxy")


def lines(*samples: int, time: float = 1000.0) -> bytes:
    return b"".join(sample_record(sample=sample, time=time).line() for sample in samples)


class Trainer:
    """Instead of the client: answers one after the other; the job ends with the last."""

    def __init__(self, *answers: bytes | Exception, pods: Sequence[str] = ("x-trainer-0",)) -> None:
        self.answers, self.routes = list(answers), list[str]()
        self._pods = pods

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"status": {"phase": "Running" if len(self.answers) > 1 else "Succeeded"}}

    async def list(self, *_: Any, **__: Any) -> Any:
        return [{"metadata": {"name": name}} for name in self._pods]

    async def read_from_pod(self, **asked: Any) -> bytes:
        self.routes.append(asked["route"])
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def read(trainer: Trainer) -> list[int]:
    client = cast("KubeClient", trainer)
    found = await read_samples(client, namespace="team", job="x", query=SampleQuery())
    return [record.sample for record in found]


async def follow(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(job_samples, "FOLLOW_SECONDS", 0.0)
    client = cast("KubeClient", trainer)
    query = SampleQuery(step=3, limit=4)
    return [
        found if isinstance(found, Exception) else [record.sample for record in found]
        async for found in follow_samples(client, namespace="team", job="x", query=query)
    ]


async def test_what_the_trainer_gives_is_read_and_the_rest_left_out() -> None:
    trainer = Trainer(lines(0) + b"nonsense\n" + lines(1))
    assert await read(trainer) == [0, 1]
    assert trainer.routes == ["/samples?order=newest&limit=8"]


async def test_no_more_is_believed_than_may_be_answered() -> None:
    assert len(await read(Trainer(lines(*range(300))))) == 256


async def test_before_the_first_response_there_is_none() -> None:
    assert await read(Trainer(ABSENT)) == []


async def test_without_its_pod_it_says_what_to_do() -> None:
    with pytest.raises(UnreachableError, match=r"set spec\.cleanPodPolicy to None"):
        await read(Trainer(pods=()))


async def test_each_response_is_followed_once_until_the_job_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = Trainer(
        lines(0, 1, time=1000.0),
        lines(1, 2, time=1000.0),  # of the same step, written meanwhile
        b"",
        lines(2, time=1000.0) + lines(0, time=1001.5),  # the same response of a later training
    )
    assert await follow(trainer, monkeypatch) == [[0, 1], [2], [], [0]]
    assert trainer.routes[0] == "/samples?step=3&order=newest&limit=4"
    assert trainer.routes[-1] == "/samples?step=3&order=newest&limit=256&since=1000.0"


async def test_an_outage_is_waited_out_but_not_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(lines(0), GONE, lines(0, 1))
    assert await follow(trainer, monkeypatch) == [[0], GONE, [1]]
    with pytest.raises(UnreachableError):
        await follow(Trainer(GONE, b""), monkeypatch)
