"""Whichever pods answer are asked; a pod that fails costs time and nothing else."""

import asyncio
import itertools

import pytest
import torch
from aiohttp import web
from torch import Tensor

from rollcall_protocol.pod_contract import LOGPROBS_ROUTE, REFERENCE_PORT
from rollcall_runtime.train.reference_pods.client import Inquiry, ReferenceClient
from rollcall_runtime.train.reference_pods.exchange import encode_answer
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.worker.errors import SpecError
from tests.networks import own_network
from tests.unit.rollcall_runtime.train.reference_pods.pods import (
    TOKEN,
    Pod,
    client_of,
    model,
    rows,
)

PARTS = [rows(length) for length in (3, 5, 7, 2, 4, 6, 8, 1)]


async def asked(client: ReferenceClient, inquiry: Inquiry, *, seconds: float = 30.0) -> str:
    return await asyncio.to_thread(client.ask, inquiry, seconds=seconds)


def assert_answered(inquiry: Inquiry) -> None:
    for part, answer in zip(inquiry.parts, inquiry.answers, strict=True):
        assert answer is not None
        torch.testing.assert_close(answer, model(part))


async def test_the_parts_are_spread_over_the_pods() -> None:
    net = own_network()
    pods = [await Pod(f"{net}.{number}").start() for number in (1, 2)]
    inquiry = Inquiry(PARTS)
    assert await asked(client_of(*(pod.address for pod in pods)), inquiry) == ""
    assert_answered(inquiry)
    assert sum(len(pod.asked) for pod in pods) == len(PARTS), "each part is asked for once"
    assert all(pod.asked for pod in pods)
    for pod in pods:
        await pod.stop()


async def test_a_pod_that_is_gone_leaves_its_parts_to_the_others() -> None:
    net = own_network()
    pod = await Pod(f"{net}.1").start()
    inquiry = Inquiry(PARTS)
    assert await asked(client_of(pod.address, f"{net}.2"), inquiry) == ""
    assert_answered(inquiry)
    await pod.stop()


async def test_a_pod_that_dies_between_two_requests_delays_only() -> None:
    """What was answered before is not asked for again."""
    net, counted = own_network(), itertools.count(1)
    died = asyncio.Event()
    loop = asyncio.get_running_loop()

    def compute(batch: TrainBatch) -> Tensor:
        if next(counted) == 3:
            loop.call_soon_threadsafe(died.set)
            raise RuntimeError("out of memory")
        return model(batch)

    pod = await Pod(f"{net}.1", compute).start()
    inquiry = Inquiry(PARTS)
    asking = asyncio.create_task(asked(client_of(pod.address), inquiry))
    await died.wait()
    with pytest.raises(RuntimeError, match="out of memory"):
        await pod.server.failed
    await pod.stop()
    replaced = await Pod(f"{net}.1").start()
    assert await asking == ""
    assert_answered(inquiry)
    assert len(pod.asked) + len(replaced.asked) == len(PARTS) + 1
    await replaced.stop()


async def test_without_pods_it_says_why_and_keeps_what_it_has() -> None:
    net = own_network()
    inquiry = Inquiry(PARTS)
    pod = await Pod(f"{net}.1").start()
    assert await asked(client_of(), inquiry, seconds=0.1) == "reference has no address"
    problem = await asked(client_of(f"{net}.9"), inquiry, seconds=0.1)
    assert problem.startswith(f"{net}.9: ")
    assert await asked(client_of(pod.address), inquiry) == ""
    assert_answered(inquiry)
    await pod.stop()


async def test_a_name_that_does_not_resolve_is_waited_for() -> None:
    client = ReferenceClient("no-such-host.invalid", token=lambda: TOKEN)
    problem = await asked(client, Inquiry(PARTS), seconds=0.1)
    assert problem.startswith("no-such-host.invalid: ")


async def test_a_name_leads_to_its_addresses() -> None:
    pod = await Pod(f"{own_network()}.1").start()
    inquiry = Inquiry(PARTS[:1])
    assert await asked(ReferenceClient(pod.address, token=lambda: TOKEN), inquiry) == ""
    await pod.stop()


@pytest.mark.parametrize("wrong", ["shape", "positive", "length"])
async def test_an_answer_that_cannot_be_is_asked_for_elsewhere(wrong: str) -> None:
    net = own_network()

    async def lie(_: web.Request) -> web.Response:
        bodies = {
            "shape": encode_answer(torch.zeros(9, 9)),
            "positive": encode_answer(torch.ones(PARTS[0].mask.shape)),
            "length": bytes(1 << 20),
        }
        return web.Response(body=bodies[wrong])

    liar = web.Application()
    liar.router.add_post(LOGPROBS_ROUTE, lie)
    runner = web.AppRunner(liar)
    await runner.setup()
    await web.TCPSite(runner, f"{net}.2", REFERENCE_PORT).start()
    pod = await Pod(f"{net}.1").start()
    alone = await asked(client_of(f"{net}.2"), Inquiry(PARTS[:1]), seconds=0.1)
    assert alone.startswith(f"{net}.2: ")
    inquiry = Inquiry(PARTS[:1])
    assert await asked(client_of(f"{net}.2", pod.address), inquiry) == ""
    assert_answered(inquiry)
    await pod.stop()
    await runner.cleanup()


async def test_what_a_pod_refuses_for_good_ends_training_with_its_reason() -> None:
    pod = await Pod(f"{own_network()}.1").start()
    with pytest.raises(SpecError, match=r"a row of 33 tokens; the reference's model takes 1 to 32"):
        await asked(client_of(pod.address), Inquiry([rows(33)]))
    await pod.stop()


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_status_of_the_request_itself_is_not_tried_elsewhere(
    status: int, unused_tcp_port: int
) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, text="no such rows")

    application = web.Application()
    application.router.add_post(LOGPROBS_ROUTE, refuse)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()

    async def resolve(_: str) -> list[str]:
        return ["127.0.0.1"]

    client = ReferenceClient("pods", token=lambda: "t", port=unused_tcp_port, resolve=resolve)
    with pytest.raises(SpecError, match="refuses a request: no such rows"):
        await asked(client, Inquiry(PARTS[:1]), seconds=0.1)
    await runner.cleanup()


async def test_a_pod_that_does_not_know_the_token_is_asked_again_later() -> None:
    """The kubelet renews tokens, and the pod learns of new keys."""
    pod = await Pod(f"{own_network()}.1", job_uid="another").start()
    inquiry = Inquiry(PARTS)
    problem = await asked(client_of(pod.address), inquiry, seconds=0.1)
    assert "it refuses this pod's token" in problem
    assert "wrong_audience" in problem
    assert pod.asked == []
    await pod.stop()
    pod = await Pod(pod.address).start()
    assert await asked(client_of(pod.address), inquiry) == ""
    assert_answered(inquiry)
    await pod.stop()
