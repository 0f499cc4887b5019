"""The measurements, each of which says its figures."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hack.bench.vllm_updates import replay
from hack.bench.vllm_updates.fault_file import Fault, FaultFile
from hack.bench.vllm_updates.load import PROMPT, load
from hack.bench.vllm_updates.served_models import (
    FAULT,
    LARGE,
    SMALL,
    loaded_from_disk,
    random_model,
    served,
)
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.rollout.inference_engine import GenerationRequest
from rollcall_runtime.vllm_plugin import staged_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from transformers import Qwen2ForCausalLM

    from hack.bench.vllm_updates.served_models import Served
    from rollcall_protocol.wire.partial_responses import Response

Figures = dict[str, Any]

PROMPTS = ((5, 9, 11, 40, 7, 33), PROMPT, (1, 2, 3))
CHECKED_TOKENS = 12
STREAMS = 8
SECONDS_BETWEEN_UPDATES = 5.0
_CALL_SECONDS = 120.0


async def pauses(folder: Path, *, rounds: int) -> Figures:
    """How long streams stand still for an update of 229 MB: by Rollcall, and by vLLM itself.

    vLLM's own is its in-place reload of the same file in shared memory, so without any transport.
    Each has a server, one after the other.
    """
    models = [random_model(LARGE, seed=seed, tied=False) for seed in range(2)]
    ours = await _pauses_of(_rollcalls_update, folder / "ours", models, rounds)
    own = await _pauses_of(_vllms_own_update, folder / "own", models, rounds)
    return {
        "pause_ratio": statistics.median(ours) / statistics.median(own),
        "pause_ms": [round(1000 * seconds, 1) for seconds in ours],
        "vllms_pause_ms": [round(1000 * seconds, 1) for seconds in own],
    }


async def _pauses_of(
    update: Callable[[Served], Awaitable[tuple[float, float]]],
    folder: Path,
    models: Sequence[Qwen2ForCausalLM],
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
    following = found.version + 1
    await found.engine.prepare(found.weights(following), version=following)
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

    After each update a prompt whose prefix was cached before is compared with transformers.
    """
    models = [random_model(SMALL, seed=seed, tied=tied) for seed in range(2)]
    differences: list[float] = []
    async with served(folder, models) as found:
        async with load(found, streams=STREAMS, tokens=100) as running:
            for number in range(updates):
                await found.update()
                request = GenerationRequest(PROMPT, SamplingConfig(max_tokens=4), seed=number)
                response = await found.respond(request)
                differences += replay.differences(found, PROMPT, response)
        mixed = _mixed_tokens(found, running.responses)
    several = sum(len(set(response.versions)) > 1 for _, response in running.responses)
    return {
        "updates": updates,
        "responses": len(running.responses),
        "responses_of_several_versions": several,
        "lost_requests": len(running.failures) + running.unfinished,
        "mixed_outputs": mixed,
        "logprob_mean": statistics.mean(differences),
        "logprob_max": max(differences),
    }


def _mixed_tokens(found: Served, responses: list[tuple[tuple[int, ...], Response]]) -> int:
    """Tokens that the weights of their version did not sample, with their prompts."""
    return sum(
        difference > replay.MIXED
        for prompt, response in responses
        for difference in replay.differences(found, prompt, response)
    )


async def throughput(folder: Path, *, rounds: int, seconds: float) -> Figures:
    """Tokens a second with an update of 229 MB every 5 s, divided by none; windows alternate."""
    models = [random_model(LARGE, seed=seed, tied=False) for seed in range(2)]
    rates: dict[bool, list[float]] = {False: [], True: []}
    async with (
        served(folder, models) as found,
        load(found, streams=STREAMS, tokens=200) as running,
    ):
        await asyncio.sleep(3)
        for number in range(2 * rounds):
            with_updates = bool(number % 2)
            before, began = running.tokens, time.monotonic()
            while (passed := time.monotonic() - began) < seconds:
                if with_updates:
                    await found.update()
                following = passed + SECONDS_BETWEEN_UPDATES
                await asyncio.sleep(max(0.0, min(following, seconds) + began - time.monotonic()))
            rates[with_updates].append((running.tokens - before) / (time.monotonic() - began))
    return {
        "throughput_ratio": sum(rates[True]) / sum(rates[False]),
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
            await _answers(found)
            for _ in range(3):
                await found.update()
            updated = await _answers(found)
        async with loaded_from_disk(own / "fresh", models[found.version % 2]) as fresh:
            equal.append(updated == await _answers(fresh))
    return {"identical": all(equal)}


Answers = list[tuple[tuple[int, ...], tuple[float, ...]]]


async def _answers(found: Served) -> Answers:
    """Tokens and log-probabilities, of most likely tokens and of sampled ones."""
    answers = []
    for top_k in (1, 0):
        sampling = SamplingConfig(max_tokens=CHECKED_TOKENS, top_k=top_k)
        for prompt in PROMPTS:
            response = await found.respond(GenerationRequest(prompt, sampling, seed=11))
            answers.append((response.tokens, response.logprobs))
    return answers


def plan_faults(count: int, *, restarts: int, tensors: int, modules: int, seed: int) -> list[Fault]:
    """Faults of which at most `restarts` end the server, in an order by `seed`."""
    rng = random.Random(seed)

    def ending() -> Iterator[Fault]:
        yield Fault("exchange", modules // 2, "raise")
        yield Fault("finish", 0, "raise")
        yield Fault("load", tensors // 2, "kill")
        yield Fault("load", tensors - 1, "stop")
        yield Fault("exchange", 1, "kill")
        yield Fault("call", "prepare", "raise")
        yield Fault("call", "wait", "kill")
        while True:
            yield Fault("exchange", rng.randrange(modules + 1), "raise")

    ends = ending()
    faults = [next(ends) for _ in range(restarts)]
    every = [Fault("read", 0, "raise"), *(Fault("load", n, "raise") for n in range(tensors + 1))]
    faults += [every[number % len(every)] for number in range(count - restarts)]
    rng.shuffle(faults)
    return faults


@dataclass(slots=True)
class FaultCounts:
    """What came of faults, by phase and kind."""

    made: Counter[str] = field(default_factory=Counter)
    out_of_service: int = 0
    bad_ready: int = 0
    mixed: int = 0
    not_made: list[str] = field(default_factory=list)


async def faults(folder: Path, *, count: int, restarts: int, seed: int) -> Figures:
    """Faults at each tensor and phase of an update, while requests run.

    After each, either the server is out of service, or it answers with the former weights as
    before, bit by bit; then the same update is made.
    """
    models = [random_model(SMALL, seed=number, tied=True) for number in range(2)]
    tensors, modules = len(list(models[0].named_parameters())), 20
    left = plan_faults(count, restarts=restarts, tensors=tensors, modules=modules, seed=seed)
    counts = FaultCounts()
    servers = 0
    while left:
        servers += 1
        async with served(folder / str(servers), models, silent_seconds=2.0) as found:
            planned = FaultFile(folder / str(servers) / FAULT)
            while left and not found.engine.failure:
                await _one_fault(found, planned, left.pop(), counts)
    return {
        "faults": sum(counts.made.values()),
        "faults_by_kind": dict(sorted(counts.made.items())),
        "faults_not_made": counts.not_made,
        "out_of_service": counts.out_of_service,
        "bad_ready": counts.bad_ready,
        "mixed_outputs_by_faults": counts.mixed,
    }


async def _one_fault(found: Served, planned: FaultFile, fault: Fault, counts: FaultCounts) -> None:
    before, version = await _answers(found), found.version
    planned.plan(fault)
    async with load(found, streams=2, tokens=40) as running:
        await asyncio.sleep(0.05)
        try:
            await found.update()
        except (RuntimeError, TimeoutError):
            if found.engine.failure:  # as the agent does; paused requests would wait for ever
                await found.engine.close()
    made = not planned.take_back()
    if made:
        counts.made[f"{fault.phase} {fault.kind}"] += 1
    else:
        counts.not_made.append(f"{fault.phase} {fault.at} {fault.kind}")
    counts.mixed += _mixed_tokens(found, running.responses)
    if found.engine.failure:
        counts.out_of_service += 1
        return
    if found.version != version:  # the update was made
        counts.bad_ready += made
        return
    if found.engine.version != version or await _answers(found) != before:
        counts.bad_ready += 1
    await found.update()
    if found.engine.version != version + 1:
        counts.bad_ready += 1
