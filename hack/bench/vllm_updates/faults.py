"""Faults at each tensor and phase of updates, and what the server does after each."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hack.bench.vllm_updates import replay
from hack.bench.vllm_updates.answers import answers
from hack.bench.vllm_updates.fault_file import Fault, FaultFile
from hack.bench.vllm_updates.load import load
from hack.bench.vllm_updates.served_models import FAULT, SMALL, random_model, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hack.bench.vllm_updates.served_models import Served

COPIES = 6  # of norms and the like, at least; vLLM packs the other weights on CPUs


def plan_faults(count: int, *, restarts: int, tensors: int, copies: int, seed: int) -> list[Fault]:
    """Faults of which at most `restarts` end the server, in an order by `seed`."""
    rng = random.Random(seed)

    def ending() -> Iterator[Fault]:
        yield Fault("copy", copies // 2, "raise")
        yield Fault("finish", 0, "raise")
        yield Fault("load", tensors // 2, "kill")
        yield Fault("load", tensors - 1, "stop")
        yield Fault("copy", 1, "kill")
        yield Fault("call", "prepare", "raise")
        yield Fault("call", "wait", "kill")
        while True:
            yield Fault("copy", rng.randrange(copies + 1), "raise")

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


async def faults(folder: Path, *, count: int, restarts: int, seed: int) -> dict[str, Any]:
    """Faults at each tensor and phase of an update, while requests run.

    After each, either the server is out of service, or it answers with the former weights as
    before, bit by bit; then the same update is made.
    """
    models = [random_model(SMALL, seed=number, tied=True) for number in range(2)]
    tensors = len(list(models[0].named_parameters()))
    left = plan_faults(count, restarts=restarts, tensors=tensors, copies=COPIES, seed=seed)
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
    before, version = await answers(found), found.version
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
    counts.mixed += replay.mixed_tokens(found, running.responses)
    if found.engine.failure:
        counts.out_of_service += 1
        return
    if found.version != version:  # the update was made
        counts.bad_ready += made
        return
    if found.engine.version != version or await answers(found) != before:
        counts.bad_ready += 1
    await found.update()
    if found.engine.version != version + 1:
        counts.bad_ready += 1
