"""The measurements, each of which says its figures."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from hack.bench.vllm_updates import replay
from hack.bench.vllm_updates.answers import answers
from hack.bench.vllm_updates.load import PROMPT, load
from hack.bench.vllm_updates.served_models import SMALL, loaded_from_disk, random_model, served
from rollcall_plugins.inference.vllm import engine
from rollcall_plugins.inference.vllm.in_server import staged_file
from rollcall_plugins.inference.vllm.server import choices
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.rollout.inference_engine import GenerationRequest
from rollcall_runtime.sync.memory.device_allocators import device_allocator

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

    from hack.bench.vllm_updates.load import Load
    from hack.bench.vllm_updates.served_models import Served
    from rollcall_runtime.rollout.engines.server.client import ServerClient

Figures = dict[str, Any]

STREAMS = 8
SECONDS_BETWEEN_UPDATES = 5.0
_CALL_SECONDS = 120.0


async def pauses(folder: Path, models: Sequence[PreTrainedModel], *, rounds: int) -> Figures:
    """How long streams stand still for an update: by Rollcall, and by vLLM itself.

    vLLM's own is its in-place reload of the same file in shared memory, so without any transport.
    Each has a server, one after the other.
    """
    ours = await _pauses_of(_rollcalls_update, folder / "ours", models, rounds)
    own = await _pauses_of(_vllms_own_update, folder / "own", models, rounds)
    return {
        "megabytes": round(sum(p.nbytes for p in models[0].parameters()) / 1e6),
        "pause_ratio": statistics.median(ours) / statistics.median(own),
        "pause_ms": [round(1000 * seconds, 1) for seconds in ours],
        "vllms_pause_ms": [round(1000 * seconds, 1) for seconds in own],
    }


async def _pauses_of(
    update: Callable[[Served], Awaitable[tuple[float, float]]],
    folder: Path,
    models: Sequence[PreTrainedModel],
    rounds: int,
) -> list[float]:
    """Of each round: the median over the streams of their longest gap."""
    pauses = []
    async with (
        served(folder, models) as found,
        load(found, streams=STREAMS, tokens=200) as running,
    ):
        await asyncio.sleep(3)
        for _ in range(rounds):
            began, ended = await update(found)
            await asyncio.sleep(1.5)
            pauses.append(statistics.median(running.longest_gaps(began, ended)))
    if running.failures:
        raise RuntimeError(running.failures[0])
    return pauses


async def _rollcalls_update(found: Served) -> tuple[float, float]:
    """Begin and end of its commit, by the clock."""
    await found.prepare()
    return await _commit(found)


async def _commit(found: Served) -> tuple[float, float]:
    """Begin and end, by the clock; a second after it was prepared."""
    await asyncio.sleep(1)
    began = time.monotonic()
    await found.commit()
    return began, time.monotonic()


async def _vllms_own_update(found: Served) -> tuple[float, float]:
    """Begin and end, by the clock. The version goes on as with an update of Rollcall's."""
    client, following = found.engine._server.client, found.version + 1
    staged = os.memfd_create("own")
    try:
        await asyncio.to_thread(
            staged_file.write, staged, found.weights(following), version=following
        )
        path = f"/proc/{os.getpid()}/fd/{staged}"
        began = time.monotonic()
        parameters = {"mode": "keep", "clear_cache": "false"}
        await client.post("/pause", parameters=parameters, seconds=_CALL_SECONDS)
        await client.post("/start_weight_update", seconds=_CALL_SECONDS)
        info = {"update_info": {"action": "own", "path": path}}
        await client.post("/update_weights", info, seconds=_CALL_SECONDS)
        version = {"weight_version": str(following)}
        await client.post("/finish_weight_update", version, seconds=_CALL_SECONDS)
        await client.post("/resume", seconds=_CALL_SECONDS)
        return began, time.monotonic()
    finally:
        os.close(staged)
        found.engine._version = found.version = following


async def updates_under_load(folder: Path, *, updates: int, tied: bool) -> Figures:
    """Requests that fail in `updates` updates, tokens whose version is wrong, log-probabilities.

    After each update a prompt whose prefix was cached before is compared with transformers. The
    versions of tokens are compared with vLLM's own: as they were when the tokens came, and at last.
    """
    models = [random_model(SMALL, seed=seed, tied=tied) for seed in range(2)]
    differences: list[float] = []
    async with served(folder, models) as found:
        with recorded() as vllms:
            async with load(found, streams=STREAMS, tokens=100) as running:
                for _ in range(updates):
                    differences += await _differences_after_an_update(found)
        mixed = replay.mixed_tokens(found, running.responses)
    versions = [(one, vllms[one.seed]) for one in running.responses if one.seed in vllms]
    several = sum(len(set(one.response.versions)) > 1 for one in running.responses)
    return {
        "updates": updates,
        "responses": len(running.responses),
        "responses_of_several_versions": several,
        "lost_requests": len(running.failures) + running.unfinished,
        "mixed_outputs": mixed,
        "logprob_mean": statistics.mean(differences),
        "logprob_max": max(differences),
        "tokens_with_vllms_version": sum(len(own) for _, own in versions),
        "versions_corrected": sum(_unequal(one.arrived, own) for one, own in versions),
        "versions_that_differ": sum(_unequal(one.response.versions, own) for one, own in versions),
    }


async def on_one_server(folder: Path, *, updates: int, seconds: float) -> Figures:
    """Pauses, tokens whose version is wrong, log-probabilities, and what updates cost.

    For a machine on which there is time for one start of vLLM alone. The second half of the updates
    come from the card's memory, if there is one.
    """
    models = [random_model(SMALL, seed=seed, tied=True) for seed in range(2)]
    pauses, differences, rates = list[float](), list[float](), list[float]()
    prepared: dict[str, list[float]] = {}
    async with served(folder, models) as found:
        async with load(found, streams=STREAMS, tokens=100) as running:
            for number in range(updates):
                if number == updates // 2:
                    found.receive_on = device_allocator(found.engine.device)
                place = found.receive_on.device if found.receive_on else "cpu"
                asked = time.monotonic()
                await found.prepare()
                prepared.setdefault(place, []).append(time.monotonic() - asked)
                began, ended = await _commit(found)
                differences += await _differences(found)
                pauses.append(statistics.median(running.longest_gaps(began, ended)))
            for every in (seconds, SECONDS_BETWEEN_UPDATES):
                rates.append(await _tokens_per_second(found, running, every, seconds))
        mixed = replay.mixed_tokens(found, running.responses)
    return {
        "updates": updates,
        "pause_ms": [round(1000 * pause, 1) for pause in pauses],
        "prepare_ms_from": {
            place: round(1000 * statistics.median(seconds), 1)
            for place, seconds in prepared.items()
        },
        "lost_requests": len(running.failures) + running.unfinished,
        "mixed_outputs": mixed,
        "logprob_max": max(differences),
        "tokens_per_second": round(rates[0], 1),
        "tokens_per_second_with_updates": round(rates[1], 1),
    }


async def _tokens_per_second(found: Served, running: Load, every: float, seconds: float) -> float:
    """With an update each `every` seconds, if any lies within `seconds`."""
    before, began = running.tokens, time.monotonic()
    while (left := seconds + began - time.monotonic()) > 0:
        if every < seconds:
            await found.update()
        await asyncio.sleep(max(0.0, min(every, left)))
    return (running.tokens - before) / (time.monotonic() - began)


async def _differences_after_an_update(found: Served) -> list[float]:
    """Of log-probabilities, from those of transformers in float32."""
    await found.update()
    return await _differences(found)


async def _differences(found: Served) -> list[float]:
    request = GenerationRequest(PROMPT, SamplingConfig(max_tokens=4), seed=10**9 + found.version)
    return replay.differences(found, PROMPT, await found.respond(request))


def _unequal(versions: Sequence[int], others: Sequence[int]) -> int:
    return sum(one != other for one, other in zip(versions, others, strict=True))


async def bfloat16(folder: Path, *, updates: int) -> Figures:
    """Log-probabilities of a server in bfloat16, against transformers with the float32 weights."""
    models = [random_model(SMALL, seed=seed, tied=True) for seed in range(2)]
    differences: list[float] = []
    async with served(folder, models, dtype="bfloat16") as found:
        for _ in range(updates):
            differences += await _differences_after_an_update(found)
    return {
        "bfloat16_logprob_mean": statistics.mean(differences),
        "bfloat16_logprob_max": max(differences),
    }


async def throughput(
    folder: Path, models: Sequence[PreTrainedModel], *, windows: int, seconds: float
) -> Figures:
    """Tokens a second with an update every 5 s, divided by none; windows of both alternate."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    updates = 0
    async with (
        served(folder, models) as found,
        load(found, streams=STREAMS, tokens=200) as running,
    ):
        await asyncio.sleep(3)
        for number in range(2 * windows):
            with_updates = bool(number % 2)
            before, began = running.tokens, time.monotonic()
            while (passed := time.monotonic() - began) < seconds:
                if with_updates:
                    await found.update()
                    updates += 1
                following = passed + SECONDS_BETWEEN_UPDATES
                await asyncio.sleep(max(0.0, min(following, seconds) + began - time.monotonic()))
            rates[with_updates].append((running.tokens - before) / (time.monotonic() - began))
    return {
        "throughput_ratio": sum(rates[True]) / sum(rates[False]),
        "updates_in_windows": updates,
        "tokens_per_second": [round(rate, 1) for rate in rates[False]],
        "tokens_per_second_with_updates": [round(rate, 1) for rate in rates[True]],
    }


async def identical(folder: Path) -> Figures:
    """Whether an updated server answers as one that loaded the same weights from disk.

    The prefixes of all prompts are in the cache of the updated one, from older weights.
    """
    equal = []
    for tied in (False, True):
        models = [random_model(SMALL, seed=seed, tied=tied) for seed in range(2)]
        own = folder / f"tied-{tied}"
        async with served(own, models) as found:
            await answers(found)
            for _ in range(3):
                await found.update()
            updated = await answers(found)
        async with loaded_from_disk(own / "fresh", models[found.version % 2]) as fresh:
            equal.append(updated == await answers(fresh))
    return {"identical": all(equal)}


@contextmanager
def recorded() -> Iterator[Mapping[int, list[int]]]:
    """The version of each token of the responses that end meanwhile, by the request's seed."""
    found: dict[int, list[int]] = {}

    async def recording(
        client: ServerClient, body: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(choices(client, body)) as given:
            async for choice in given:
                spans = choice.get("weight_versions")
                if spans:
                    found[body["sampling_params"]["seed"]] = [
                        int(span["version"])
                        for span in spans
                        for _ in range(span["start"], span["end"])
                    ]
                yield choice

    with patch.object(engine, "choices", recording):
        yield found
