"""Streams that are open at once, each of which gets a token every 50 ms, as of a large model."""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.bench.front import paced_engine
from hack.bench.front.measured_job import Asked, Way, measured, percentiles
from hack.bench.front.paced_engine import INTERVAL_NS, due
from rollcall_protocol.data_config import FRONT, DataConfig, DataSource
from rollcall_protocol.job_config import EngineRef
from tests.process.engines.tiny_models import write_tiny_model
from tests.process.harness import ENDLESS, FAST, LocalJob
from tests.process.pods import ROOT
from tests.unit.rollcall_runtime.jobs import job_config

if TYPE_CHECKING:
    from tests.process.pods import Pod

TOKENS = 140  # of a response: 7 s
BEGIN_SECONDS = 3.0  # in which all streams begin; tokens count once all of them have
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Delays:
    """Milliseconds from a request to its first token, and of the others since they were due."""

    first: list[float] = field(default_factory=list)
    following: list[float] = field(default_factory=list)


def _job(folder: Path) -> LocalJob:
    """Its rollouts work for the front alone."""
    config = job_config(
        model=str(write_tiny_model(folder / "model")),
        data=DataConfig(sources=(DataSource(FRONT),)),
        reward_function="rollcall_runtime.tasks.repeat:reward",
        algorithm=ENDLESS,
        membership=FAST,
        front=True,
    )
    return LocalJob(folder, config, rollout_engine=EngineRef(paced_engine.NAME))


async def steady(folder: Path, *, streams: int, rounds: int) -> dict[str, Any]:
    """Both ways in turn: streams whose tokens are due at different moments, and at the same ones.

    `front_p50_ms` and `front_p99_ms` are of the former, of all tokens but the first: the percentile
    through the front less the one directly from the rollout.
    """
    path = f"{ROOT / 'workloads'}:{ROOT}:{paced_engine.install(folder / 'plugin')}"
    found = {(way, together): Delays() for way in ("direct", "front") for together in (False, True)}
    used = 0.0
    async with measured(_job(folder), rollouts=1, PYTHONPATH=path) as running:
        for number in range(rounds + 1):
            for (name, together), delays in found.items():
                before = _cpu_seconds(running.front)
                new = await _round(running.ways[name], streams, together=together, seed=number)
                if number:  # the first is to warm up
                    delays.first.extend(new.first)
                    delays.following.extend(new.following)
                    used += (_cpu_seconds(running.front) - before) * (name == "front")
    return _figures(found) | {
        "front_cpu_us_a_token": round(1e6 * used / (2 * rounds * streams * TOKENS)),
    }


def _figures(found: dict[tuple[str, bool], Delays]) -> dict[str, Any]:
    def both(together: bool, *, first: bool) -> dict[str, dict[str, float]]:
        return {
            way: percentiles(delays.first if first else delays.following)
            for (way, at_once), delays in found.items()
            if at_once is together
        }

    def added(times: dict[str, dict[str, float]], name: str) -> float:
        return round(times["front"][name] - times["direct"][name], 2)

    apart, together = both(False, first=False), both(True, first=False)
    first = both(False, first=True)
    return {
        "token_ms": apart,
        "front_p50_ms": added(apart, "p50"),
        "front_p99_ms": added(apart, "p99"),
        "first_token_ms": first,
        "front_first_token_p50_ms": added(first, "p50"),
        "front_first_token_p99_ms": added(first, "p99"),
        "together_token_ms": together,
        "front_together_p50_ms": added(together, "p50"),
        "front_together_p99_ms": added(together, "p99"),
    }


async def _round(way: Way, streams: int, *, together: bool, seed: int) -> Delays:
    """`together`: tokens of all streams are due at the same moments, as those of a batch are."""
    rng, found = random.Random(seed), Delays()
    begin = [rng.uniform(0.0, BEGIN_SECONDS) for _ in range(streams)]
    counted = time.monotonic_ns() + int(BEGIN_SECONDS * 1e9)

    async def one(number: int) -> None:
        await asyncio.sleep(begin[number])
        began = time.monotonic_ns()
        first = -(-began // INTERVAL_NS) * INTERVAL_NS if together else began
        came = 0
        async for count in way(Asked(number, first, TOKENS)):
            now = time.monotonic_ns()
            if not came:
                found.first.append((now - began) / 1e6)
            for at in (due(first, n) for n in range(max(came, 1), came + count)):
                if at >= counted:
                    found.following.append((now - at) / 1e6)
            came += count
        if came != TOKENS:
            raise ValueError(f"{came} tokens came of {TOKENS}")

    await asyncio.gather(*(one(number) for number in range(streams)))
    return found


def _cpu_seconds(pod: Pod) -> float:
    assert pod.process is not None
    times = Path(f"/proc/{pod.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / _TICKS
