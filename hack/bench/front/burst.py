"""Requests that all begin at the same moment, at rollouts with a tiny model."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

from hack.bench.front.measured_job import Asked, Way, measured, percentiles
from rollcall_protocol.job_config import EngineRef, OptimizerConfig
from tests.process.engines.tiny_models import write_tiny_model
from tests.process.harness import ENDLESS, FAST, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config

if TYPE_CHECKING:
    from pathlib import Path


def _job(folder: Path) -> LocalJob:
    still = {
        **ENDLESS,
        "group_size": 2,  # GRPO compares them
        "prompts_per_step": 1,
        "max_concurrent_rollouts": 1,
        "optimizer": OptimizerConfig(name="adamw", learning_rate=1e-12),
    }
    config = job_config(
        model=str(write_tiny_model(folder / "model")),
        reward_function="rollcall_runtime.tasks.repeat:reward",
        algorithm=still,
        membership=FAST,
        front=True,
    )
    engine = EngineRef("transformers", {"maxTokens": 4, "concurrency": 1})
    return LocalJob(folder, config, rollout_engine=engine)


async def _round(way: Way, streams: int, tokens: int) -> tuple[list[float], list[float], int]:
    """Times to the first tokens and to the end, in ms, and how many requests failed."""
    firsts, wholes, lost = list[float](), list[float](), 0

    async def one(number: int) -> None:
        nonlocal lost
        began, first, found = time.perf_counter(), 0.0, 0
        try:
            async for count in way(Asked(number, number, tokens)):
                first = first or time.perf_counter() - began
                found += count
        except Exception:  # noqa: BLE001 - whatever it is, the request is lost
            lost += 1
            return
        lost += not found
        firsts.append(1000 * first)
        wholes.append(1000 * (time.perf_counter() - began))

    await asyncio.gather(*(one(number) for number in range(streams)))
    return firsts, wholes, lost


async def burst(folder: Path, *, streams: int, rounds: int, tokens: int) -> dict[str, Any]:
    """Both ways in turn; in the last round a rollout is killed under the front's streams."""
    async with measured(_job(folder), rollouts=2) as running:
        found: dict[str, tuple[list[float], list[float]]] = {way: ([], []) for way in running.ways}
        lost = 0
        for number in range(rounds + 1):
            ways = list(running.ways.items())
            for name, way in ways if number % 2 else reversed(ways):
                firsts, wholes, failed = await _round(way, streams, tokens)
                lost += failed if name == "front" else 0
                if number:  # the first is to warm up
                    found[name][0].extend(firsts)
                    found[name][1].extend(wholes)
        killing = asyncio.create_task(_round(running.ways["front"], streams, tokens))
        victim = running.job.rollouts[0]
        await victim.reaches("rollout_front_requests", streams // 4, seconds=60)
        victim.send(signal.SIGKILL)
        killed = await killing
        moved = (await running.front.metrics())["front_moved_requests_total"]
    return {
        "burst_first_token_ms": {way: percentiles(times[0]) for way, times in found.items()},
        "burst_whole_answer_ms": {way: percentiles(times[1]) for way, times in found.items()},
        "burst_killed_whole_answer_ms": percentiles(killed[1]),
        "lost_requests": lost + killed[2],
        "moved_requests": moved,
    }
