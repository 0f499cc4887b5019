"""A model learns the answers in data, and an RLJob starts from the directory that was written."""

import json
from pathlib import Path
from typing import Any

import pytest

from hack.cluster.examples import WORKER_IMAGE
from hack.cluster.kubectl import Kubectl
from hack.demo.job_progress import JobWatcher
from rollcall_runtime.tasks import reverse
from tests.cluster.jobs import deadlines
from tests.cluster.jobs.tiny_qwen3 import (
    MODEL,
    TRAINED,
    Mount,
    claim,
    create_config_map,
    create_model,
    pod_specs,
    repeat_job,
)

ROWS, STEPS = 1024, 100
DATA = Mount.config_map("rows", "/rows")
ROWS_FILE = f"{DATA.path}/rows.jsonl"
EXPORTED = f"{TRAINED.path}/exported"
SAMPLED_STEPS = 30
TAUGHT = 0.8  # chance is 0.05
TRAINED_SECONDS = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(deadlines.WHOLE_TEST)]


def test_rollouts_begin_with_what_a_supervised_job_exported(
    kubectl: Kubectl, tmp_path: Path
) -> None:
    create_inputs(kubectl, tmp_path)
    kubectl.apply(supervised_job())
    wait_for(kubectl, "condition=Succeeded", "rljob/taught")
    (succeeded,) = (
        condition
        for condition in kubectl.job("taught")["status"]["conditions"]
        if condition["type"] == "Succeeded"
    )
    assert succeeded["reason"] == "Completed"
    check_first_reward(kubectl)


def test_rollouts_begin_with_a_checkpoint_of_the_command(kubectl: Kubectl, tmp_path: Path) -> None:
    create_inputs(kubectl, tmp_path)
    kubectl.apply(pod_of_the_command())
    wait_for(kubectl, "jsonpath={.status.phase}=Succeeded", "pod/sft")
    check_first_reward(kubectl)


def create_inputs(kubectl: Kubectl, folder: Path) -> None:
    """The model and its data as ConfigMaps, and the claim for what is learned."""
    create_model(kubectl, folder / "model")
    rows = folder / Path(ROWS_FILE).name
    rows.write_text("".join(json.dumps(row(number)) + "\n" for number in range(ROWS)))
    create_config_map(kubectl, DATA.name, [rows])
    kubectl.apply(claim())


def row(number: int) -> dict[str, Any]:
    """A prompt with its answer; the seed is not that of the jobs' prompts."""
    prompt = reverse.prompt(number, seed=1)
    return {"tokens": prompt, "completion": [*prompt[1:-1], reverse.EOS]}


def supervised_job() -> dict[str, Any]:
    """Two ranks in one pod, which write the model to the claim."""
    manifest = repeat_job(MODEL.path, max_steps=0)
    spec = manifest["spec"]
    for other in ("algorithm", "reward", "rollouts"):
        del spec[other]
    manifest["metadata"]["name"] = "taught"
    spec["data"] = {"prompts": ROWS_FILE}
    spec["trainer"] |= {"processesPerPod": 2, "exportPath": EXPORTED}
    spec["supervised"] = {
        "learningRate": "3e-3",
        "rowsPerStep": 64,
        "maxSteps": STEPS,
    }
    for mount in (MODEL, DATA, TRAINED):
        mount.add_to(*pod_specs(manifest))
    return manifest


def pod_of_the_command() -> dict[str, Any]:
    """Learns with two ranks, and exports the checkpoint with one."""
    saved = f"{TRAINED.path}/saved"
    learn = (
        f"rollcall-train sft --model {MODEL.path} --learning-rate 3e-3 --rows-per-step 64 "
        f"--steps {STEPS} --checkpoints {saved} --ranks 2 {ROWS_FILE}"
    )
    export = f"rollcall-train export {saved} {EXPORTED} --model {MODEL.path}"
    container = {
        "name": "sft",
        "image": WORKER_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-ec", f"{learn}\n{export}"],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    for mount in (MODEL, DATA, TRAINED):
        mount.add_to(spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sft"}, "spec": spec}


def wait_for(kubectl: Kubectl, what: str, thing: str) -> None:
    """Wait until training and export are done."""
    limit = (f"--for={what}", f"--timeout={TRAINED_SECONDS}s")
    kubectl.run("wait", thing, *limit, seconds=TRAINED_SECONDS + 10)


def check_first_reward(kubectl: Kubectl) -> None:
    """What two rollouts generate is right although nothing is learned by reward."""
    manifest = repeat_job(EXPORTED, max_steps=5000)
    manifest["spec"]["algorithm"]["optimizer"] = {"learningRate": "1e-9"}
    TRAINED.add_to(*pod_specs(manifest))
    kubectl.apply(manifest)
    job = JobWatcher(kubectl, "reverse")
    # Each rollout's reward is then the mean of some hundred samples.
    seen = job.until(
        lambda seen: len(seen.rewards) == 2 and seen.step >= SAMPLED_STEPS,
        seconds=deadlines.STARTED,
    )
    assert min(seen.rewards.values()) >= TAUGHT
