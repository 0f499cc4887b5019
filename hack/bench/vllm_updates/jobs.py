"""Recovery of whole jobs whose rollouts are vLLM servers: kills, and newcomers that catch up."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.bench.vllm_updates import endless_reward
from hack.bench.vllm_updates.served_models import LARGE, SMALL, ModelSize, random_model
from rollcall_protocol.job_config import EngineRef, RewardErrorConfig
from rollcall_protocol.wire.roster import EpochCause
from tests.process.engines.tiny_models import LETTERS, tiny_tokenizer
from tests.process.harness import ENDLESS, FAST, Lag, LocalJob, in_sync
from tests.unit.rollcall_runtime.jobs import job_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.process.pods import Pod

Figures = dict[str, Any]

ROLLOUTS = 3
NEWCOMERS = 4
VLLM = EngineRef("vllm", {"maxTokens": 5, "dtype": "float32", "maxModelLen": 64})
BUILT_IN = EngineRef("transformers", {"maxTokens": 5})
STILL = {"group_size": 2, "prompts_per_step": 1, "max_concurrent_rollouts": 1}
START_SECONDS = 300.0  # several vLLM on two cores
SECONDS = 60.0  # for what takes a few
WARM_UP, BETWEEN = 10, 5  # steps before the first kill, and before each other one
REST_SECONDS = 2.0  # after the last vLLM has started
_GAVE = re.compile(r"gave (\d+) bytes of weights")


async def kills(folder: Path, *, vllm: int, built_in: int) -> Figures:
    """Seconds from SIGKILL of a rollout to the survivors' session, in two jobs with one model.

    One job's rollouts are on vLLM, the other's on the built-in engine `transformers`. Kills come at
    any moment of training. The next one comes when the victim has started again and serves.
    """
    figures: Figures = {}
    for name, engine, count in (("built_in_kill", BUILT_IN, built_in), ("kill", VLLM, vllm)):
        seconds, lag = await _kills(engine, folder / name, count)
        figures |= {
            f"{name}_to_session_seconds": round(statistics.median(seconds), 3),
            f"{name}_to_session_worst_seconds": round(max(seconds), 3),
            f"{name}s_seconds": [round(each, 3) for each in seconds],
            f"{name}s_lag_seconds": round(lag, 3),
        }
    return figures


async def _kills(engine: EngineRef, folder: Path, count: int) -> tuple[list[float], float]:
    """Seconds of each kill, and how late an idle process was woken meanwhile at the most."""
    config = job_config(
        model=_write_model(folder, SMALL),
        reward_function="rollcall_runtime.tasks.repeat:reward",
        algorithm=ENDLESS,
        membership=FAST,
    )
    found, lags = [], []
    async with LocalJob(folder, config, rollout_engine=engine) as job:
        await job.start(rollouts=ROLLOUTS)
        await _serving(job, job.rollouts, seconds=START_SECONDS)
        await job.steps(WARM_UP, seconds=SECONDS)
        for number in range(count):
            victim, lag = job.rollouts[number % ROLLOUTS], Lag()
            killed = time.monotonic()
            victim.send(signal.SIGKILL)
            seen = await job.operator.until(
                lambda s: s.session is not None and s.session.members == ROLLOUTS, seconds=SECONDS
            )
            found.append(seen.at - killed)
            lags.append(lag.stop())
            await victim.exited(seconds=SECONDS)
            await victim.start()
            await _serving(job, job.rollouts, seconds=START_SECONDS)
            await job.steps(BETWEEN, seconds=SECONDS)
    return found, max(lags)


async def newcomers(folder: Path, *, turns: int) -> Figures:
    """Seconds and bytes in which four newcomers on vLLM catch up, and one of them alone.

    They are counted from the roster that names them, when all of their vLLM have started and they
    have registered, until the last one serves in the session. One rollout serves before; the four
    come once more while none does, so that only the trainer has the weights. Training stands still.
    """
    config = job_config(
        model=_write_model(folder, LARGE),
        reward_function=endless_reward.NAME,
        reward_errors=RewardErrorConfig(timeout=endless_reward.SECONDS),
        algorithm=ENDLESS | STILL,
        membership=FAST,
    )
    cases: dict[str, list[_CatchUp]] = {"one": [], "four": [], "four_alone": []}
    async with LocalJob(folder, config, rollout_engine=VLLM) as job:
        await job.start(rollouts=1)
        await _serving(job, job.rollouts, seconds=START_SECONDS)
        (old,) = job.rollouts
        four = [job.place() for _ in range(NEWCOMERS)]
        for _ in range(turns):
            cases["one"].append(await _catch_up(job, [old], four[:1]))
            cases["four"].append(await _catch_up(job, [old], four))
            cases["four_alone"].append(await _catch_up(job, [], four))
            await _roster(job, [old])
    return _of_newcomers(cases)


@dataclass(frozen=True, slots=True)
class _CatchUp:
    """`given`: bytes that the trainer sent; `busy_cores`: how many were in use, on average."""

    seconds: float
    given: int
    busy_cores: float


def _of_newcomers(cases: dict[str, list[_CatchUp]]) -> Figures:
    size = 4 * sum(p.numel() for p in random_model(LARGE, seed=0, tied=True).parameters())
    seconds = {name: [each.seconds for each in trials] for name, trials in cases.items()}
    copies = {name: max(each.given for each in trials) / size for name, trials in cases.items()}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "newcomers_ratio": round(medians["four"] / medians["one"], 2),
        "newcomers_alone_ratio": round(medians["four_alone"] / medians["one"], 2),
        "trainer_copies": round(copies["four"], 3),
        "trainer_copies_alone": round(copies["four_alone"], 3),
        "newcomer_bytes": size,
        "newcomers_seconds": {
            name: [round(each, 3) for each in values] for name, values in seconds.items()
        },
        "newcomers_busy_cores": {
            name: [round(each.busy_cores, 2) for each in trials] for name, trials in cases.items()
        },
    }


async def _catch_up(job: LocalJob, old: Sequence[Pod], new: Sequence[Pod]) -> _CatchUp:
    """From when a roster names all of `new` beside `old` until all serve."""
    for pod in new:
        if pod.running:
            pod.send(signal.SIGKILL)
            await pod.exited(seconds=SECONDS)
    await _roster(job, old)
    for pod in new:
        await pod.start()
    for pod in new:
        await pod.logs_line("stream to the coordinator is open", seconds=START_SECONDS)
    await asyncio.sleep(REST_SECONDS)
    given, busy, began = _given(job.trainer), _processor_seconds(), time.monotonic()
    seconds = await _roster(job, [*old, *new]) - began
    cores = (_processor_seconds() - busy) / (time.monotonic() - began)
    return _CatchUp(seconds, _given(job.trainer) - given, cores)


def _processor_seconds() -> float:
    """What all processes of this machine together have taken since it started (proc_stat(5))."""
    line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    user, nice, system, _, _, irq, softirq, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


async def _roster(job: LocalJob, pods: Sequence[Pod]) -> float:
    """Push a roster of these alone; when all of them and no others serve."""
    others = tuple(pod for pod in job.rollouts if pod not in pods)
    await job.push_roster(EpochCause.MEMBERS_JOINED, without=others)
    return await _serving(job, pods, seconds=SECONDS)


async def _serving(job: LocalJob, pods: Sequence[Pod], *, seconds: float) -> float:
    """Wait until these are the session's rollouts and serve; when that was seen."""
    seen = await job.operator.until(
        lambda s: (
            in_sync(s, *pods) and s.session is not None and s.session.members == len(pods) + 1
        ),
        seconds=seconds,
    )
    return seen.at


def _given(trainer: Pod) -> int:
    """Bytes of weights that newcomers fetched from the trainer, by its log."""
    lines = (json.loads(line) for line in trainer.log().splitlines() if line[:1] == "{")
    gave = (_GAVE.match(line["message"]) for line in lines)
    return sum(int(found[1]) for found in gave if found)


def _write_model(folder: Path, size: ModelSize) -> str:
    """The folder of a random model of this size with a tokenizer, in Hugging Face's format."""
    path = folder / "model"
    random_model(size, seed=0, tied=True).save_pretrained(path)
    tiny_tokenizer(LETTERS).save_pretrained(path)
    return str(path)
