"""The rollouts learn a model in Hugging Face's format that two ranks of one pod train."""

import json
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from hack.cluster.examples import WORKER_IMAGE
from hack.cluster.kubectl import Kubectl
from hack.demo.job_progress import JobProgress, JobWatcher
from hack.demo.learning_checks import LEARNED
from rollcall_protocol import pod_contract
from rollcall_runtime.tasks import repeat, reverse
from tests.cluster.jobs import deadlines
from tests.cluster.jobs.tiny_qwen3 import MODEL, create_model, pod_specs, repeat_job

JOB, TRAINER = "reverse", "reverse-trainer-0"
CHECKPOINT_STEPS, KILL_STEP = 20, 30
EXPORTS = 6
EXPORT_LEARNED = LEARNED - 0.05
"""Rollouts have learned once the means of their last 256 samples have been at LEARNED at one of
many looks. Their standard error is up to 0.02: the policy's own reward may be lower by some of it.
"""
CHECKPOINTS = "/var/lib/rollcall/checkpoints"
EXPORTED = "/tmp/exported"

# The engines of the image that has them all, with settings by which two ranks share the model.
ENGINES = [
    pytest.param("fsdp", {}, id="fsdp"),
    pytest.param("torchtitan", {"tensorParallel": 2}, id="torchtitan"),
    pytest.param("megatron", {"pipelineParallel": 2}, id="megatron"),
]

# Without the fixtures: one of them may build an image.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(deadlines.WHOLE_TEST, func_only=True)]


def test_the_rollouts_learn_although_a_rank_is_killed(kubectl: Kubectl, tmp_path: Path) -> None:
    check_engine(kubectl, tmp_path, "fsdp2", {}, image=WORKER_IMAGE)


@pytest.mark.every_engine
@pytest.mark.parametrize(("engine", "settings"), ENGINES)
def test_rollouts_learn_with_each_engine(
    kubectl: Kubectl, tmp_path: Path, engines_image: str, engine: str, settings: dict[str, Any]
) -> None:
    check_engine(kubectl, tmp_path, engine, settings, image=engines_image)


def check_engine(
    kubectl: Kubectl, folder: Path, engine: str, settings: dict[str, Any], *, image: str
) -> None:
    """Train with it, kill a rank, and export what was learned once the rollouts' samples are right.

    With a constant learning rate a policy may lose again what it has learned, and one that falls
    stops some policies shortly before: when they are right differs from run to run. So a later
    checkpoint is exported where one is of such a policy; of a wrong export none would be right.
    """
    create_model(kubectl, folder / "model")
    kubectl.apply(job_of(engine, settings, image=image))
    job = JobWatcher(kubectl, JOB)
    first = job.until(lambda seen: len(seen.rewards) == 2, seconds=deadlines.STARTED)
    assert max(first.rewards.values()) < LEARNED / 2

    before = job.until(lambda seen: seen.step >= KILL_STEP, seconds=deadlines.STARTED)
    assert max(before.rewards.values()) < LEARNED
    kill_rank(kubectl, local_rank=1)
    learned = job.until(lambda seen: seen.all_reach(LEARNED, rollouts=2), seconds=deadlines.LEARNED)
    check_that_the_gang_restarted(kubectl)

    rewards: list[float] = []
    step = learned.step
    while max(rewards, default=0) < EXPORT_LEARNED and len(rewards) < EXPORTS:
        # So that the newest checkpoint is of a policy after those that were looked at.
        later = partial(is_beyond, step=step + CHECKPOINT_STEPS)
        step = job.until(later, seconds=deadlines.STARTED).step
        exported = export(kubectl, engine, into=folder / f"exported-{step}")
        rewards.append(greedy_reward(exported))
    assert max(rewards) >= EXPORT_LEARNED, rewards


def is_beyond(seen: JobProgress, *, step: int) -> bool:
    """Whether the trainer has done more than this number of steps."""
    return seen.step > step


def job_of(engine: str, settings: dict[str, Any], *, image: str) -> dict[str, Any]:
    """Two ranks in one pod, which save checkpoints; it does not end by itself."""
    manifest = repeat_job(MODEL.path, max_steps=5000)
    MODEL.add_to(*pod_specs(manifest))
    trainer = manifest["spec"]["trainer"]
    trainer["processesPerPod"] = 2
    trainer["device"] = "cpu"  # one of the images has a torch that is made for CUDA
    trainer["engine"] = {"name": engine, "config": settings}
    trainer["checkpoint"] = {"everySteps": CHECKPOINT_STEPS, "volume": {"emptyDir": {}}}
    trainer["template"]["spec"]["containers"][0]["image"] = image
    return manifest


def kill_rank(kubectl: Kubectl, *, local_rank: int) -> None:
    """SIGKILL for one of the processes in the trainer's pod."""
    own = f"{pod_contract.LOCAL_RANK}={local_rank}"
    look = f"grep -qzx {own} $process/environ 2>/dev/null && kill -KILL ${{process#/proc/}}"
    script = f"for process in /proc/[0-9]*; do {look}; done; true"
    kubectl.run("exec", TRAINER, "--", "sh", "-c", script)


def check_that_the_gang_restarted(kubectl: Kubectl) -> None:
    """Both ranks ended, the container began again once, and training went on where it was saved."""
    ends = messages(kubectl.run("logs", TRAINER, "--previous"))
    assert "local rank 1 ended with code -9" in ends
    assert "local rank 0 ended with code 1" in ends
    assert kubectl.job(JOB)["status"]["trainer"]["restarts"] == 1
    (resumed,) = (
        int(message.rpartition(" ")[2])
        for message in messages(kubectl.run("logs", TRAINER))
        if message.startswith("rank 0 starts at step ")
    )
    assert resumed >= KILL_STEP - CHECKPOINT_STEPS
    rollouts = kubectl.rollouts(JOB)
    assert len(rollouts) == 2
    for pod in rollouts:
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def messages(log: str) -> list[str]:
    """The messages of a worker's log."""
    return [json.loads(line)["message"] for line in log.splitlines() if line[:1] == "{"]


def export(kubectl: Kubectl, engine: str, *, into: Path) -> Path:
    """Export the newest checkpoint in the pod, by one rank, and copy the directory here."""
    command = ("rollcall-train", "export", CHECKPOINTS, EXPORTED)
    options = ("--model", MODEL.path, "--engine", engine)
    kubectl.run("exec", TRAINER, "--", "rm", "-rf", EXPORTED)
    kubectl.run("exec", TRAINER, "--", *command, *options, seconds=120)
    kubectl.run("cp", f"{TRAINER}:{EXPORTED}", str(into))
    return into


def greedy_reward(directory: Path, *, prompts: int = 500) -> float:
    """Mean reward of transformers' most likely answers to prompts that were not trained on."""
    model = cast("Any", AutoModelForCausalLM).from_pretrained(directory, dtype=torch.float32)
    asked = [reverse.prompt(number, seed=1) for number in range(prompts)]
    answers = model.generate(
        torch.tensor(asked),
        attention_mask=torch.ones(prompts, reverse.PROMPT_TOKENS),
        max_new_tokens=reverse.LENGTH,
        do_sample=False,
        pad_token_id=reverse.EOS,
    )[:, reverse.PROMPT_TOKENS :].tolist()
    return sum(map(repeat.reward, asked, answers)) / prompts
