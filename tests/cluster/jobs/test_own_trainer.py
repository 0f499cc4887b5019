"""Trainers of one's own, TRL's among them, train on rollouts of a cluster, from a ConfigMap."""

import pytest
import yaml

from hack.cluster.examples import ROOT, with_images
from hack.cluster.kubectl import Kubectl
from hack.demo.job_progress import JobWatcher
from hack.demo.learning_checks import check_reported_reward
from hack.demo.trl_job import LEARNED
from tests.cluster.jobs import deadlines


@pytest.mark.slow
@pytest.mark.timeout(deadlines.WHOLE_TEST)
@pytest.mark.parametrize("example", ["plain-loop", "trl"])
def test_a_trainer_of_ones_own_learns(kubectl: Kubectl, example: str) -> None:
    rendered = kubectl.run("kustomize", str(ROOT / "examples" / example))
    kubectl.run("apply", "--filename", "-", text=with_images(rendered))
    job = JobWatcher(kubectl, example)
    job.until(lambda seen: seen.step > 0, seconds=deadlines.STARTED)
    seen = job.until(lambda seen: seen.phase == "Succeeded", seconds=deadlines.LEARNED)
    check_reported_reward(seen, least=LEARNED)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.usefixtures("smollm2_image")
@pytest.mark.timeout(deadlines.WHOLE_TEST, func_only=True)
def test_trls_trainer_learns_on_vllm(kubectl: Kubectl, vllm_nodes: list[str]) -> None:
    rendered = with_images(kubectl.run("kustomize", str(ROOT / "examples" / "smollm" / "trl")))
    program, manifest = yaml.safe_load_all(rendered)
    if vllm_nodes:
        (pool,) = manifest["spec"]["rollouts"]
        pool["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": vllm_nodes[0]}
    kubectl.apply(program)
    kubectl.apply(manifest)
    job = JobWatcher(kubectl, "trl-smollm")
    first = job.until(lambda seen: seen.reported_reward is not None, seconds=deadlines.LEARNED)
    assert (first.reported_reward or 0.0) < LEARNED
    seen = job.until(lambda seen: seen.phase == "Succeeded", seconds=deadlines.LEARNED)
    check_reported_reward(seen, least=LEARNED)
