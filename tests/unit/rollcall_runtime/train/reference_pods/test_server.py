"""A reference pod's port: who may ask, what is refused and with which status."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator

import aiohttp
import pytest
import torch
from torch import Tensor

from rollcall_protocol.pod_contract import LOGPROBS_ROUTE, REFERENCE_PORT
from rollcall_runtime.train.reference_pods import server
from rollcall_runtime.train.reference_pods.exchange import decode_answer, encode_request
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.worker.identity.own_tokens import bearer
from tests.networks import own_network
from tests.unit.rollcall_runtime.train.reference_pods.pods import (
    BOUNDS,
    TOKEN,
    Pod,
    model,
    rows,
)

BATCH = rows(3, 1, 5)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers=bearer(TOKEN)) as made:
        yield made


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    made = await Pod(f"{own_network()}.1").start()
    yield made
    await made.stop()


def url(pod: Pod) -> str:
    return f"http://{pod.address}:{REFERENCE_PORT}{LOGPROBS_ROUTE}"


async def error(answer: aiohttp.ClientResponse) -> str:
    return str((await answer.json())["error"])


async def test_rows_are_answered(pod: Pod, session: aiohttp.ClientSession) -> None:
    async with session.post(url(pod), data=encode_request(BATCH)) as answer:
        assert answer.status == 200
        torch.testing.assert_close(decode_answer(await answer.read(), BATCH), model(BATCH))


async def test_a_client_without_the_token_is_refused_before_it_sends_its_request(pod: Pod) -> None:
    reader, writer = await asyncio.open_connection(pod.address, REFERENCE_PORT)
    head = (
        f"POST {LOGPROBS_ROUTE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n"
        "Content-Length: 500\r\nExpect: 100-continue\r\n\r\n"
    )
    writer.write(head.encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    writer.close()
    assert pod.counted("malformed_token") == 1
    assert pod.asked == []


async def test_a_client_without_the_token_is_not_listened_to(pod: Pod) -> None:
    """It sends all the same: the connection ends, long before all of it was taken."""
    _, writer = await asyncio.open_connection(pod.address, REFERENCE_PORT)
    size, sent = 1 << 28, 0
    head = f"POST {LOGPROBS_ROUTE} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
    writer.write(head.encode())

    async def send() -> None:
        nonlocal sent
        while sent < size:
            writer.write(bytes(1 << 20))
            await writer.drain()
            sent += 1 << 20

    with pytest.raises(ConnectionError):
        await send()
    assert sent < size // 2
    writer.close()


async def test_a_header_above_4_kib_is_refused(pod: Pod, session: aiohttp.ClientSession) -> None:
    with pytest.raises(aiohttp.ClientConnectionError):
        await session.post(url(pod), headers={"X-Long": "x" * 4200})
    assert (pod.counted("long_header"), pod.asked) == (1, [])


async def test_what_is_not_within_the_bounds_is_refused_by_name(
    pod: Pod, session: aiohttp.ClientSession
) -> None:
    async with session.post(url(pod), data=b"nonsense") as answer:
        assert (answer.status, await error(answer))[0] == 400
    async with session.post(url(pod), data=encode_request(rows(33))) as answer:
        assert answer.status == 400
        assert await error(answer) == "a row of 33 tokens; the reference's model takes 1 to 32"
    async with session.post(url(pod), data=bytes(BOUNDS.request_bytes + 1)) as answer:
        assert answer.status == 413
        assert await error(answer) == f"a request has {BOUNDS.request_bytes} bytes at most"
    assert (pod.counted("malformed"), pod.counted("too_long")) == (2, 1)
    assert pod.asked == []


async def test_a_model_whose_numbers_are_not_finite_is_named(
    session: aiohttp.ClientSession,
) -> None:
    pod = await Pod(f"{own_network()}.1", lambda batch: model(batch) * math.nan).start()
    async with session.post(url(pod), data=encode_request(BATCH)) as answer:
        assert answer.status == 422
        assert await error(answer) == "its log-probabilities are not finite"
    await pod.stop()


async def test_a_model_that_fails_ends_the_process(session: aiohttp.ClientSession) -> None:
    def fail(_: TrainBatch) -> Tensor:
        raise RuntimeError("CUDA error")

    pod = await Pod(f"{own_network()}.1", fail).start()
    async with session.post(url(pod), data=encode_request(BATCH)) as answer:
        assert answer.status == 500
    with pytest.raises(RuntimeError, match="CUDA error"):
        await pod.server.failed
    await pod.stop()


async def test_while_many_requests_wait_others_are_sent_away_without_their_rows(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "AT_ONCE", 2)
    go_on = threading.Event()

    def compute(batch: TrainBatch) -> Tensor:
        assert go_on.wait(30)
        return model(batch)

    pod = await Pod(f"{own_network()}.1", compute).start()
    body = encode_request(BATCH)
    first = [asyncio.ensure_future(session.post(url(pod), data=body)) for _ in range(2)]
    async with asyncio.timeout(30):
        while pod.server._there < 2:
            await asyncio.sleep(0.01)
    async with session.post(url(pod), data=body, expect100=True) as answer:
        assert answer.status == 503
    assert pod.counted("busy") == 1
    go_on.set()
    for found in await asyncio.gather(*first):
        assert found.status == 200
    await pod.stop()
