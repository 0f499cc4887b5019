"""An unmodified trainer of TRL, with one line more, on rollouts that die."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from rollcall_protocol.job_config import EngineRef
from rollcall_protocol.pod_contract import FRONT_PORT
from tests.process.engines.tiny_models import LETTERS, write_tiny_model
from tests.process.external_job import program_job
from tests.process.harness import FAST, STEP_SECONDS, LocalJob
from tests.unit.rollcall_runtime.jobs import external_job_config

PROGRAM = Path(__file__).with_name("trl_program.py")


def trl_model(folder: Path, settings: dict[str, Any]) -> list[str]:
    """A new model in `folder`, and the program's arguments for it; `settings` are its own."""
    model = write_tiny_model(folder / "model", tied=False, characters=LETTERS, spread=0.02)
    return [str(model), str(folder / "out"), json.dumps(settings)]


def trl_job(
    folder: Path,
    sync: dict[str, Any] | None = None,
    launcher: tuple[str, ...] = (),
    max_tokens: int = 8,
    **settings: Any,
) -> LocalJob:
    """A job whose trainer is the program, started by a `launcher`."""
    arguments = trl_model(folder, settings)
    command = (*launcher, str(PROGRAM), *arguments)
    return program_job(folder, arguments[0], *command, sync=sync, max_tokens=max_tokens)


def logged(log: str, what: str) -> list[float]:
    """A figure that TRL has logged, of each step that had it."""
    steps = [line for line in log.splitlines() if line.startswith("{'loss'")]
    found = [line.partition(f"'{what}': '")[2].partition("'")[0] for line in steps]
    return [float(number) for number in found if number]


async def test_a_kill_in_the_middle_costs_no_step(tmp_path: Path) -> None:
    async with trl_job(tmp_path, max_steps=12) as job:
        await job.start(rollouts=2)
        await job.reach(3, seconds=STEP_SECONDS)
        job.rollouts[0].send(signal.SIGKILL)
        seen = await job.finished(seconds=STEP_SECONDS)
        assert seen.snapshot.finished is not None
        assert (seen.snapshot.finished.step, seen.snapshot.finished.error) == (12, "")
        await job.trainer.logs_line("'train_runtime'", seconds=20)
        assert job.trainer.running, "it stays until the pod is deleted"
        rewards = logged(job.trainer.log(), "reward")
        assert len(rewards) == 12
        assert seen.snapshot.progress.rollout_reward == pytest.approx(rewards[-1], abs=1e-3)
        assert rewards[-1] > rewards[0] + 0.3, "the rollouts' samples have become better"
        # With other weights, or with log-probabilities of others, it would be far from 0.
        assert max(logged(job.trainer.log(), "sampling/sampling_logp_difference/max")) < 0.05
        assert (tmp_path / "out" / "final" / "model.safetensors").is_file()


@pytest.mark.slow
async def test_without_weight_sync_it_does_not_learn(tmp_path: Path) -> None:
    async with trl_job(tmp_path, {"enabled": False}, max_steps=12) as job:
        await job.start(rollouts=2)
        await job.finished(seconds=STEP_SECONDS)
        rewards = logged(job.trainer.log(), "reward")
        assert len(rewards) == 12
        assert max(rewards) < rewards[0] + 0.3
        assert max(logged(job.trainer.log(), "sampling/sampling_logp_difference/max")) > 0.1
        job.trainer.send(signal.SIGTERM)
        await job.trainer.exited(seconds=20)
        await job.trainer.start()
        await job.trainer.logs_line("training is over since step 12", seconds=STEP_SECONDS)
        again = await job.finished(seconds=STEP_SECONDS)
        assert again.snapshot.finished is not None
        assert again.snapshot.finished.step == 12, "it does not train again"


TWO_RANKS = ("-m", "torch.distributed.run", "--nproc_per_node=2")
FSDP2 = ("-m", "accelerate.commands.launch", "--config_file")
KINDS: dict[str, dict[str, Any]] = {
    "low-rank adapters": {"lora": True},
    "RLOO": {"kind": "RLOO"},
    "rollouts of its own": {"own_rollouts": True},
    "two ranks": {"launcher": TWO_RANKS},
    "FSDP2": {"launcher": (*FSDP2, str(PROGRAM.with_name("accelerate_fsdp2.yaml")))},
    "several updates of a batch": {"steps_per_generation": 4, "num_iterations": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
async def test_other_settings_of_trl_have_samples_of_their_weights(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with trl_job(tmp_path, max_steps=4, **settings) as job:
        await job.start(rollouts=2)
        seen = await job.finished(seconds=STEP_SECONDS)
        assert seen.snapshot.finished is not None
        assert seen.snapshot.finished.step == 4
        assert logged(job.trainer.log(), "reward")
        # RLOO has no importance sampling, which would show other weights.
        if settings.get("kind") != "RLOO":
            assert max(logged(job.trainer.log(), "sampling/sampling_logp_difference/max")) < 0.05


TRAINERS = (
    *("conversations", "tools", "environments"),  # of GRPOTrainer
    *("distillation", "gold", "iw_opd", "sdft", "sdpo"),
)


@pytest.mark.slow
@pytest.mark.parametrize("script", TRAINERS)
async def test_each_trainer_of_trl_trains(tmp_path: Path, script: str) -> None:
    model = str(model_for_chats(tmp_path / "model"))
    program = str(PROGRAM.with_name("trl_trainers_program.py"))
    command = (program, script, model, str(tmp_path / "out"))
    async with program_job(tmp_path, model, *command, max_tokens=128) as job:
        await job.start(rollouts=2)
        seen = await job.finished(seconds=STEP_SECONDS)
        assert seen.snapshot.finished is not None
        assert (seen.snapshot.finished.step, seen.snapshot.finished.error) == (3, "")
        published = (await job.trainer.metrics())["weight_version"]
        assert published >= 3, "the weights of each step"
        if script in {"tools", "environments"}:
            assert max(logged(job.trainer.log(), "tools/call_frequency")) > 0
            assert max(logged(job.trainer.log(), "sampling/sampling_logp_difference/max")) < 0.05


def model_for_chats(folder: Path) -> Path:
    """One with a tokenizer of bytes, as GOLD wants it, and room for a template with tools."""
    alphabet = "".join(sorted(pre_tokenizers.ByteLevel.alphabet()))
    model = write_tiny_model(folder, tied=False, characters=alphabet, spread=0.02)
    of_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    bytes_of_text = {**of_bytes, "use_regex": False}
    changes: dict[str, dict[str, object]] = {
        "config.json": {"max_position_embeddings": 2048},  # rotary: they have no weights
        "tokenizer_config.json": {"model_max_length": 2048},
        "tokenizer.json": {"pre_tokenizer": bytes_of_text, "decoder": bytes_of_text},
    }
    for name, changed in changes.items():
        path = model / name
        settings = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(settings | changed), encoding="utf-8")
    return model


@pytest.mark.slow
async def test_async_grpo_samples_at_the_front(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path / "model", tied=False, spread=0.02))
    config = external_job_config(membership=FAST, model=model, front=True)
    engine = EngineRef("transformers", {"maxTokens": 8})
    async with LocalJob(tmp_path, config, rollout_engine=engine) as job:
        program = PROGRAM.with_name("async_grpo_program.py")
        address = (await job.start_front()).address
        words = [model, str(tmp_path / "out"), f"http://{address}:{FRONT_PORT}"]
        job.trainer.command = [sys.executable, str(program), *words]
        await job.start(rollouts=2)
        await job.reach(3, seconds=STEP_SECONDS)
        job.rollouts[0].send(signal.SIGKILL)
        seen = await job.finished(seconds=STEP_SECONDS)
        assert seen.snapshot.finished is not None
        assert seen.snapshot.finished.step >= 39
        rewards = logged(job.trainer.log(), "reward")
        assert rewards[-1] > rewards[0] + 0.3, "the rollouts' samples have become better"
