"""A whole job of processes whose rollouts are real vLLM servers: it learns as they see it."""

from __future__ import annotations

import asyncio
import signal
from math import nan, prod
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollcall_local.kubelet.marks import containers
from rollcall_protocol.adapter_config import sent_adapter
from rollcall_protocol.job_config import EngineRef, OptimizerConfig
from rollcall_protocol.wire.roster import EpochCause
from rollcall_runtime.models.adapter_files import adapter_shapes
from rollcall_runtime.models.open_model import open_model
from tests.process.engines.tiny_models import LETTERS, tiny_tokenizer
from tests.process.harness import FAST, LocalJob, in_sync
from tests.unit.rollcall_runtime.jobs import job_config

if TYPE_CHECKING:
    from pathlib import Path

    from tests.process.pods import Pod

LEARNED = 0.9  # chance is 0.05
LEARNED_BY_ADAPTER = 0.25  # beside random layers it learns slowly
# As many tokens as there are symbols: the task has no end of a response.
ENGINE = EngineRef("vllm", {"maxTokens": 5, "dtype": "float32", "maxModelLen": 64})
START_SECONDS = 240.0  # several servers that import vLLM on two cores
STEPS_TO_LEARN = 150  # with weight sync the reward is above 0.9 by then
ADAPTER = {
    "loraRank": 16,
    "loraAlpha": 32,
    "loraTargets": "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
}
PROCESSES = 4  # of a rollout: its own, the server, which generates in another one, and a guard
STEPS = 100_000  # it is over when it has learned


def write_model(folder: Path, *, spread: float) -> Path:
    """A tiny Qwen3 whose heads are as wide as vLLM's attention on CPUs wants them.

    `spread` of its weights: where its embeddings stay as they are, small ones allow of no sure
    answers.
    """
    tokenizer = tiny_tokenizer(LETTERS)
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 8) * 8,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=spread,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


async def rewards(job: LocalJob) -> list[float]:
    """The mean reward of the last 256 samples of each rollout that runs; NaN before the first."""
    return [await reward(pod) for pod in job.rollouts if pod.running]


async def reward(pod: Pod) -> float:
    try:
        return (await pod.metrics()).get("rollout_reward", nan)
    except aiohttp.ClientError:  # it does not listen yet
        return nan


def processes(*pods: Pod) -> list[int]:
    """All that they have, with those of vLLM."""
    uids = {pod.uid for pod in pods}
    return [pid for pid, container in containers().items() if container.split("/")[0] in uids]


def adapter_bytes(model: Path, config: dict[str, Any]) -> int:
    """Of the tensors of one version, in float32."""
    adapter = sent_adapter(config)
    assert adapter is not None
    shapes = adapter_shapes(open_model(str(model)).weights().shapes, adapter)
    return 4 * sum(prod(shape) for shape in shapes.values())


def job_of(
    folder: Path, *, spread: float = 0.02, algorithm: dict[str, Any] | None = None, **changes: Any
) -> LocalJob:
    changes.setdefault("reward_function", "rollcall_runtime.tasks.repeat:reward")
    config = job_config(
        model=str(write_model(folder / "model", spread=spread)),
        algorithm={"max_steps": STEPS} | (algorithm or {}),
        membership=FAST,
        **changes,
    )
    return LocalJob(folder, config, rollout_engine=ENGINE)


@pytest.mark.timeout(600)
async def test_it_learns_over_a_scale_up_and_a_kill(tmp_path: Path) -> None:
    async with job_of(tmp_path) as job:
        await job.start(rollouts=1)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        await job.launch()
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        await job.steps(5, seconds=60)
        victim, survivor = job.rollouts
        assert len(processes(victim)) >= PROCESSES
        victim.send(signal.SIGKILL)
        await job.steps(5, seconds=60)
        assert await victim.exited(seconds=20) == -signal.SIGKILL
        assert processes(victim) == []
        async with asyncio.timeout(300):
            while not await reward(survivor) >= LEARNED:
                assert survivor.running, survivor.log()[-3000:]
                await asyncio.sleep(1)
        assert job.operator.last.progress.step <= STEPS_TO_LEARN, job.operator.last.progress
        assert (await job.prompts()).balanced
    assert processes(job.trainer, victim, survivor) == []


@pytest.mark.timeout(600)
async def test_without_weight_sync_its_rollouts_learn_nothing(tmp_path: Path) -> None:
    async with job_of(tmp_path, weight_sync={"enabled": False}) as job:
        await job.start(rollouts=1)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        await job.reach(STEPS_TO_LEARN, seconds=420)
        assert await reward(job.rollouts[0]) < 0.3
        assert (await job.rollouts[0].metrics())["weight_version"] >= STEPS_TO_LEARN - 2


@pytest.mark.timeout(600)
async def test_with_an_adapter_alone_it_learns_and_the_model_is_not_sent(tmp_path: Path) -> None:
    engine = EngineRef("fsdp2", {**ADAPTER, "loraExport": "adapter"})
    optimizer = OptimizerConfig("adamw", 5e-3)
    job = job_of(tmp_path, spread=0.2, trainer_engine=engine, algorithm={"optimizer": optimizer})
    async with job:
        await job.start(rollouts=1)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        async with asyncio.timeout(400):
            while not await reward(job.rollouts[0]) >= LEARNED_BY_ADAPTER:
                assert job.rollouts[0].running, job.rollouts[0].log()[-3000:]
                await asyncio.sleep(1)
        step, metrics = job.operator.last.progress.step, await job.trainer.metrics()
        assert step <= STEPS_TO_LEARN
        sent = metrics["param_sync_bytes_total"]
        assert 0 < sent <= (step + 2) * adapter_bytes(tmp_path / "model", engine.config)
