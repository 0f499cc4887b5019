"""A job that cannot go on says why, in its status."""

from rollcall_operator.kube.resources import CONFIG_MAPS
from tests.scenarios.conftest import Apply
from tests.scenarios.job import Object, example

BAD_REWARD = """
def reward(prompt, response, **_):
    raise RuntimeError("the judge is out of paper")
"""


async def test_a_reward_that_raises_is_named_and_never_counts_as_nothing(
    applied: Apply, job_name: str
) -> None:
    body = example("reverse.yaml", name=job_name)
    body["spec"]["reward"] = {"function": "bad_reward:reward"}
    for template in (body["spec"]["trainer"]["template"], *rollout_templates(body)):
        mount(template, job_name)
    module = config_map(job_name, "bad_reward.py", BAD_REWARD)
    job = await applied(body, (CONFIG_MAPS, module))
    found = await job.until(lambda s: s["problems"] and "out of paper" in str(s["problems"]))
    assert not found.get("rolloutReward")


async def test_a_trainer_that_always_fails_ends_the_job_by_its_failure_policy(
    applied: Apply, job_name: str
) -> None:
    body = example("reverse.yaml", name=job_name)
    body["spec"]["trainer"]["template"]["spec"]["containers"][0]["command"] = [
        "python3",
        "-c",
        "raise SystemExit('the disk has melted')",
    ]
    body["spec"]["failurePolicy"] = {"maxRestarts": 1}
    job = await applied(body)
    found = await job.until(lambda s: s.get("phase") == "Failed")
    assert "the disk has melted" in str(found["problems"])


def rollout_templates(body: Object) -> list[Object]:
    return [rollout["template"] for rollout in body["spec"]["rollouts"]]


def config_map(name: str, file: str, content: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": {file: content},
    }


def mount(template: Object, name: str) -> None:
    """Let the container import modules of a ConfigMap."""
    template["spec"]["volumes"] = [{"name": "task", "configMap": {"name": name}}]
    (container,) = template["spec"]["containers"]
    container["volumeMounts"] = [{"name": "task", "mountPath": "/task"}]
    container["env"] = [*container["env"], {"name": "PYTHONPATH", "value": "/task"}]
