"""What a server of vLLM outlives: the version that it serves is served as before, bit by bit."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.rollout.inference_engine import GenerationRequest, WeightMismatchError
from rollcall_runtime.sync.errors import SyncError
from tests.plugins.inference.vllm.inside.received_weights import Receiver, described
from tests.plugins.inference.vllm.inside.served_engine import (
    LONG,
    PROMPTS,
    SHORT,
    Served,
    begun,
    certain,
    gauge,
    requests,
)
from tests.unit.rollcall_runtime.rollout import engine_driver
from tests.unit.rollcall_runtime.rollout.engine_driver import respond

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from rollcall_protocol.wire.partial_responses import Response
    from rollcall_protocol.wire.weight_manifest import TensorSpec

MEDIUM = SamplingConfig(max_tokens=40)
CROWD = 2000
CROWD_BYTES = 300 << 20  # of the agent, for all of them
POSITIONS = 256
GONE_SECONDS = 10.0

pytestmark = pytest.mark.timeout(400)  # a server starts in minutes on a machine that is busy


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_driver, "SECONDS", 300.0)
        served = Served(tmp_path_factory.mktemp("model"))
        yield served
        served.driver.close()


# --- weights that are wrong ----------------------------------------------------------------------


def shape(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=spec.shape[::-1])


def name(spec: TensorSpec) -> TensorSpec:
    return replace(spec, name="model.embed.weight")


def integers(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype="int32")


def half_as_wide(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype="float16")


def unknown_dtype(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype="float17")


@pytest.mark.parametrize("change", [shape, name, integers, half_as_wide, unknown_dtype])
def test_a_manifest_that_describes_other_weights_is_refused(
    served: Served, change: Callable[[TensorSpec], TensorSpec]
) -> None:
    before, following = served.answers(), served.version + 1
    weights = dict(served.model(following).named_parameters())
    manifest = described(weights.items())
    first, *others = manifest.tensors
    assert first.shape == (512, 128)
    wrong = replace(manifest, tensors=(change(first), *others))
    receiver = Receiver(served.engine)
    with pytest.raises(SyncError, match=r"model\.embed"):
        served.driver.run(receiver.stage(weights.items(), version=following, manifest=wrong))
    assert served.answers() == before
    served.update()
    assert served.serves_its_version(), "and the next update is made"


def cast(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.detach().to(dtype) for name, tensor in weights.items()}


@pytest.mark.parametrize("sent", [torch.float64, torch.bfloat16, torch.float16])
def test_weights_of_another_float_are_served_in_the_dtype_of_the_pool(
    served: Served, sent: torch.dtype
) -> None:
    def serve(weights: Mapping[str, Tensor]) -> list[Response]:
        served.driver.load_weights(weights.items(), version=served.version)
        return served.answers()

    own = dict(served.model(served.version).named_parameters())
    rounded = cast(own, sent)
    assert serve(rounded) == serve(cast(rounded, torch.float32))
    serve(own)


def test_weights_that_are_no_floats_are_refused(served: Served) -> None:
    before, following = served.answers(), served.version + 1
    weights = cast(dict(served.model(following).named_parameters()), torch.int64)
    with pytest.raises(WeightMismatchError, match="has the dtype int64"):
        served.driver.run(served.engine.prepare(weights.items(), version=following))
    assert served.answers() == before


def test_after_a_version_that_goes_back_its_own_weights_answer_again(served: Served) -> None:
    """Also where the prefix of a prompt was cached by other weights."""
    long = tuple(range(3, 203))

    def answer() -> Response:
        return served.driver.run(respond(served.engine, GenerationRequest(long, SHORT, seed=3)))

    before, former = answer(), served.version
    served.update()
    assert answer().tokens != before.tokens
    served.version = former - 1
    served.update()
    assert answer() == before
    assert set(before.versions) == {former}


# --- updates that meet something else ------------------------------------------------------------


def test_a_version_that_comes_during_the_update_to_another_is_served_after_it(
    served: Served,
) -> None:
    before, first, second = served.answers(), served.version + 1, served.version + 2
    receiver = Receiver(served.engine)

    async def stage(version: int) -> None:
        weights = served.model(version).named_parameters()
        await receiver.stage(weights, version=version)

    async def overlapping() -> list[Response]:
        running = await begun(served.engine, requests(LONG))
        abandoned = asyncio.create_task(stage(first))
        await asyncio.sleep(0.05)
        abandoned.cancel()  # its session has ended
        await asyncio.gather(abandoned, return_exceptions=True)
        await stage(first)
        await asyncio.gather(receiver.commit(first), stage(second))
        await receiver.commit(second)
        return list(await asyncio.gather(*running))

    responses = served.driver.run(overlapping())
    served.version = second
    assert all(r.finished and certain(served, PROMPTS[0], r) for r in responses)
    after = served.answers()
    assert [a.tokens for a in after] == [b.tokens for b in before], "the same weights, of then"
    assert [a.logprobs for a in after] == [b.logprobs for b in before]
    assert {v for a in after for v in a.versions} == {second}


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_an_update_during_anothers_pause_ends_the_pause(served: Served, mode: str) -> None:
    before = served.answers()

    async def paused() -> list[Response]:
        running = await begun(served.engine, requests(LONG))
        parameters = {"mode": mode, "clear_cache": "false"}
        await served.engine._server.client.post("/pause", parameters=parameters, seconds=60)
        running += [asyncio.create_task(respond(served.engine, r)) for r in requests(SHORT)]
        await served.updating()
        return list(await asyncio.gather(*running))

    responses = served.driver.run(paused())
    assert all(certain(served, PROMPTS[0], response) for response in responses)
    assert all(response.finished for response in responses[4:])
    assert all(response.finished for response in responses) == (mode != "abort")
    served.update()
    assert [a.logprobs for a in served.answers()] == [b.logprobs for b in before]


def test_an_update_while_vllm_sleeps_is_served(served: Served) -> None:
    """On a CPU vLLM frees nothing when it sleeps: it pauses, and its executor is marked."""
    before = served.answers()

    async def asleep() -> Response:
        client = served.engine._server.client
        await client.post("/sleep", parameters={"level": "1"}, seconds=60)
        assert b"true" in await client.get("/is_sleeping", seconds=60)
        held = asyncio.create_task(respond(served.engine, requests(SHORT, count=1)[0]))
        await served.updating()
        await client.post("/wake_up", seconds=60)
        return await held

    response = served.driver.run(asleep())
    assert response.finished
    assert certain(served, PROMPTS[0], response)
    assert served.serves_its_version()
    served.update()
    assert [a.logprobs for a in served.answers()] == [b.logprobs for b in before]


# --- requests ------------------------------------------------------------------------------------


def test_a_response_ends_where_the_context_does(served: Served) -> None:
    prompt = tuple(range(3, 3 + POSITIONS - 6))
    response = served.driver.run(respond(served.engine, GenerationRequest(prompt, LONG, seed=1)))
    assert response.finished
    assert len(response.tokens) == 6


@pytest.mark.parametrize("length", [POSITIONS, POSITIONS + 1, 100_000])
def test_a_prompt_that_leaves_no_room_is_refused_and_others_are_served(
    served: Served, length: int
) -> None:
    async def beside() -> list[Response]:
        running = [asyncio.create_task(respond(served.engine, r)) for r in requests(LONG)]
        with pytest.raises(ValueError, match=str(POSITIONS)):
            await respond(served.engine, GenerationRequest((3,) * length, SHORT, seed=1))
        return list(await asyncio.gather(*running))

    assert all(response.finished for response in served.driver.run(beside()))


def crowd(sampling: SamplingConfig) -> list[GenerationRequest]:
    return [
        GenerationRequest((number % 500 + 3, *PROMPTS[0]), sampling, seed=number)
        for number in range(CROWD)
    ]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_two_thousand_requests_all_end_also_over_an_update(served: Served) -> None:
    before, memory = served.answers(), resident_bytes()
    asked = crowd(MEDIUM)

    async def crowded() -> tuple[list[Response], int]:
        running = [asyncio.create_task(respond(served.engine, request)) for request in asked]
        while await gauge(served, "waiting") < CROWD / 4:
            await asyncio.sleep(0.05)
        most = resident_bytes()
        await served.updating()
        late = asyncio.create_task(respond(served.engine, requests(SHORT, count=1)[0]))
        most = max(most, resident_bytes())
        return [*await asyncio.gather(*running), await late], most

    responses, most = served.driver.run(crowded())
    assert len(responses) == CROWD + 1
    assert all(r.finished and len(r.tokens) == 40 for r in responses[:-1])
    assert {v for r in responses for v in r.versions} == {served.version - 1, served.version}
    for request, response in list(zip(asked, responses, strict=False))[:: CROWD // 40]:
        assert certain(served, request.prompt, response)
    assert most - memory < CROWD_BYTES
    served.update()
    assert [a.logprobs for a in served.answers()] == [b.logprobs for b in before]


def test_of_clients_that_go_away_in_mid_stream_no_request_is_left(served: Served) -> None:
    before = served.answers()

    async def gone() -> float:
        running = [asyncio.create_task(respond(served.engine, r)) for r in crowd(LONG)]
        while await gauge(served, "waiting") < CROWD / 4:
            await asyncio.sleep(0.05)
        for task in running:
            task.cancel()
        began = time.monotonic()
        await asyncio.gather(*running, return_exceptions=True)
        while await gauge(served, "running") + await gauge(served, "waiting"):
            assert time.monotonic() - began < GONE_SECONDS
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    assert served.driver.run(gone()) < GONE_SECONDS
    assert served.answers() == before
