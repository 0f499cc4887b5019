"""A job of processes with the settings of a manifest of examples/smollm."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from hack.bench.language_model.learning import GOALS, Learning, Look
from hack.cluster.examples import example
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.children.worker_config import job_config
from rollcall_protocol.job_config import EngineRef, JobConfig
from tests.process.harness import LocalJob, in_sync

TASKS = tuple(GOALS)
START_SECONDS = 400.0  # importing torch and vLLM on two cores that may have other work
STEP_SECONDS = 120.0
LOOK_SECONDS = 0.2  # between two looks at the rollout's metrics


def settings(task: str, *, seed: int, model: Path, sync: bool) -> tuple[JobConfig, EngineRef]:
    """The job of the manifest, and its rollouts' engine.

    Other than there: where the model is, the seed of the data, whether weights are sent, no export,
    no end, and the device, as PyTorch's own build is made for CUDA.
    """
    spec = example(f"smollm/{task}.yaml", maxSteps=1_000_000)["spec"]
    spec["model"]["path"] = str(model)
    spec["data"]["seed"] = seed
    spec["weightSync"] = {"enabled": sync}
    spec["trainer"].pop("exportPath", None)
    spec["trainer"]["device"] = "cpu"
    parsed = RLJobSpec.model_validate(spec)
    [pool] = parsed.rollouts or []
    config = job_config(parsed, namespace="default", name=f"smollm-{task}", uid=str(uuid4()))
    return config, EngineRef(pool.engine.name, pool.engine.config)


async def learn(
    task: str, *, seed: int, model: Path, sync: bool, steps: int | None = None
) -> Learning:
    """Train for `steps` steps, or as many as the manifest says, and watch the rollout.

    Raises:
        AssertionError: a process ended, or the rollout did not serve in time; says what it wrote.
        TimeoutError: training stood still.
    """
    last = steps or example(f"smollm/{task}.yaml")["spec"]["algorithm"]["maxSteps"]
    config, engine = settings(task, seed=seed, model=model, sync=sync)
    with tempfile.TemporaryDirectory(prefix="rollcall-bench-") as folder:
        async with LocalJob(Path(folder), config, rollout_engine=engine) as job:
            await job.start(rollouts=1)
            await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
            looks = await watch(job, last)
            figures = job.step_figures()
            seconds = job.step_seconds()
    kl = [step["actor/mismatch_kl"] for step in figures if "actor/mismatch_kl" in step]
    return Learning(task, seed, sync, tuple(looks), tuple(kl), tuple(seconds))


async def watch(job: LocalJob, last: int) -> list[Look]:
    """A look at the only rollout after each change, until step `last` is done."""
    (rollout,) = job.rollouts
    looks: list[Look] = []
    began = time.monotonic()
    async with asyncio.timeout(STEP_SECONDS * last):
        while not looks or looks[-1].step < last:
            for pod in (rollout, job.trainer):
                assert pod.running, f"{pod.name} ended: {pod.log()[-3000:]}"
            values = await rollout.metrics()
            look = Look(
                seconds=round(time.monotonic() - began, 1),
                step=job.operator.last.progress.step,
                version=int(values["weight_version"]),
                samples=int(values["rollout_samples_total"]),
                reward=values["rollout_reward"],
            )
            if look.samples and (not looks or _new(looks[-1], look)):
                looks.append(look)
            await asyncio.sleep(LOOK_SECONDS)
    return looks


def _new(before: Look, now: Look) -> bool:
    return (before.step, before.version, before.samples) != (now.step, now.version, now.samples)
