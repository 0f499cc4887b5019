"""The trainer is killed, and suspended: it goes on from its checkpoint, in the same run."""

import pytest_asyncio

from rollcall_operator.kube.resources import Resource
from tests.scenarios.conftest import Apply
from tests.scenarios.job import Object, ScenarioJob, causes, example

CLAIMS = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVERY_STEPS = 5


@pytest_asyncio.fixture(loop_scope="session")
async def with_checkpoints(applied: Apply, job_name: str) -> ScenarioJob:
    """A job that writes checkpoints into a volume, and has written some."""
    volume = {"persistentVolumeClaim": {"claimName": job_name}}
    body = example("reverse.yaml", name=job_name)
    body["spec"]["trainer"]["checkpoint"] = {"volume": volume, "everySteps": EVERY_STEPS}
    job = await applied(body, (CLAIMS, claim(job_name)))
    await job.trains(rollouts=2, steps=2 * EVERY_STEPS + 1)
    return job


def claim(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "100Mi"}},
        },
    }


async def test_a_killed_trainer_goes_on_from_its_checkpoint(
    with_checkpoints: ScenarioJob,
) -> None:
    job = with_checkpoints
    await job.kill(f"{job.name}-trainer-0")
    await job.until(lambda s: "CoordinatorReplaced" in causes(s))
    assert await job.reaches(1) >= EVERY_STEPS  # and not 1, as of a new job
    await job.trains(rollouts=2)


async def test_a_suspended_job_has_no_pods_and_goes_on_when_it_is_resumed(
    with_checkpoints: ScenarioJob,
) -> None:
    job = with_checkpoints
    before = await job.step()
    await job.suspend(True)
    await job.until(lambda s: s.get("phase") == "Suspended" and not s["rollouts"])
    await job.suspend(False)
    await job.trains(rollouts=2, steps=1)
    assert await job.step() >= before
