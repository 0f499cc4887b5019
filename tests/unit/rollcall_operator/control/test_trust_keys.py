"""The cluster's keys are read at the start and again, and what cannot be read changes nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.control import trust_keys
from rollcall_operator.control.trust_keys import TrustKeys
from rollcall_operator.kube.errors import RefusedError, UnreachableError
from rollcall_protocol.wire.trust_bundle import TrustBundle

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient

A, B = {"kid": "a"}, {"kid": "b"}
REFUSED = RefusedError(status=403, reason="Forbidden", message="may not", what="get")


class Cluster:
    """Stands in for the client: answers in turn, the last one again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def token_keys(self) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def keys_of(cluster: Cluster) -> TrustKeys:
    return TrustKeys(cast("KubeClient", cluster), operator="system:serviceaccount:s:o")


@asynccontextmanager
async def running(
    keys: TrustKeys, changed: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    task = asyncio.create_task(keys.run(changed))
    try:
        async with asyncio.timeout(5):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_keys_are_waited_for_and_the_reason_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trust_keys, "RETRY_SECONDS", 0.0)
    cluster = Cluster(REFUSED, UnreachableError("away"), ("", (A,)), ("i", ()), ("i", (B, A)))
    keys, said = keys_of(cluster), list[str]()
    await keys.wait_until_known(said.append)
    assert keys.current == TrustBundle("i", "system:serviceaccount:s:o", (A, B)), "in their order"
    for problem, part in zip(said, ["may not", "away", "issuer is empty", "no key"], strict=True):
        assert part in problem


async def test_rotated_keys_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust_keys, "READ_SECONDS", 0.01)
    monkeypatch.setattr(trust_keys, "SOONEST_SECONDS", 0.0)
    keys = keys_of(Cluster(("i", (A,)), UnreachableError("away"), ("i", (A, B))))
    await keys.wait_until_known(lambda _: None)
    changes: list[TrustBundle | None] = []
    async with running(keys, lambda: changes.append(keys.current)):
        while keys.current is None or keys.current.keys != (A, B):
            await asyncio.sleep(0.01)
            assert keys.current is not None, "what was known stays"
        assert changes == [keys.current], "jobs are reconciled for what has changed"


async def test_a_refused_token_has_them_read_at_once_but_not_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trust_keys, "SOONEST_SECONDS", 0.1)
    cluster = Cluster(("i", (A,)))
    keys = keys_of(cluster)
    async with running(keys):
        for _ in range(20):
            keys.look_now()
            await asyncio.sleep(0.01)
        assert 1 <= cluster.asked <= 3
