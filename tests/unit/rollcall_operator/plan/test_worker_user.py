"""The default user of workers: a job that runs keeps it, one that restarts takes the new one."""

import pytest

from rollcall_operator.api import labels
from tests.apiserver.bad_manifests.manifests import DELETE, FRONT, OWN_REFERENCE, Changes
from tests.unit.rollcall_operator.plan.simulator import JobSimulator, lent_pool, orphaned

TRAINER, ROLLOUTS = "StatefulSet/bad-trainer", "Deployment/bad-cpu"
ALL = {TRAINER, ROLLOUTS, "StatefulSet/bad-front", "Deployment/bad-reference"}
OLD, NEW = 65532, 1234


def running(user: int | None = OLD, changes: Changes | None = None) -> JobSimulator:
    simulator = JobSimulator({**FRONT, **OWN_REFERENCE, **(changes or {})})
    simulator.worker_user = user
    simulator.to_running()
    return simulator


def users(simulator: JobSimulator) -> dict[str, int | None]:
    """Of each child that makes pods."""
    return {
        name: child["spec"]["template"]["spec"]["containers"][0]["securityContext"].get("runAsUser")
        for name, child in simulator.children.items()
        if child["kind"] in {"StatefulSet", "Deployment"}
    }


def record(simulator: JobSimulator) -> dict[str, str]:
    annotations: dict[str, str] = simulator.children[TRAINER]["metadata"]["annotations"]
    return annotations


@pytest.mark.parametrize(("before", "now"), [(OLD, NEW), (None, NEW), (OLD, None)])
def test_another_default_changes_nothing_of_a_running_job(
    before: int | None, now: int | None
) -> None:
    simulator = running(before)
    simulator.worker_user = now
    simulator.memory = type(simulator.memory)()  # the operator's new pod remembers nothing
    plan = simulator.converge(60)
    assert plan.applies == ()
    assert users(simulator) == dict.fromkeys(ALL, before)
    assert simulator.condition("TrainerUpToDate")["status"] == "True"


def test_a_pool_that_joins_a_running_job_has_its_user() -> None:
    simulator = running()
    simulator.worker_user = NEW
    simulator.pools["lent"] = lent_pool()
    simulator.converge(5)
    assert users(simulator)["Deployment/lent"] == OLD


def test_a_template_that_names_no_user_any_more_gets_the_jobs_default() -> None:
    context = "spec.trainer.template.spec.containers[0].securityContext"
    simulator = running(changes={context: {"runAsUser": 1000}})
    simulator.worker_user = NEW
    assert users(simulator)[TRAINER] == 1000
    simulator.edit({context: DELETE})
    simulator.converge(5)
    assert users(simulator) == dict.fromkeys(ALL, OLD)


def test_a_job_that_was_suspended_has_the_new_default() -> None:
    simulator = running()
    simulator.worker_user = NEW
    simulator.edit({"spec.suspend": True})
    simulator.converge(1)
    assert users(simulator) == dict.fromkeys(ALL, OLD), "the trainer's last step goes on"
    simulator.schedule()
    simulator.converge(1)
    simulator.edit({"spec.suspend": False})
    simulator.converge(1)
    assert users(simulator) == dict.fromkeys(ALL, NEW)
    simulator.worker_user = OLD
    simulator.converge(5)
    assert users(simulator) == dict.fromkeys(ALL, NEW)


def test_a_restart_that_is_asked_for_takes_the_new_default() -> None:
    simulator = running()
    simulator.worker_user = NEW
    simulator.edit({"metadata.annotations": {labels.RESTART_TRAINER: "now"}})
    simulator.converge(5)
    assert users(simulator) == dict.fromkeys(ALL, NEW)
    assert record(simulator) == {labels.WORKER_USER: str(NEW)}
    simulator.worker_user = OLD
    simulator.converge(5)
    assert users(simulator) == dict.fromkeys(ALL, NEW)


@pytest.mark.parametrize("said", ["", "0", "-1", "root", "9" * 10, "9" * 5000])
def test_a_record_that_is_no_user_counts_as_none(said: str) -> None:
    simulator = running()
    simulator.worker_user = NEW
    record(simulator)[labels.WORKER_USER] = said
    simulator.converge(5)
    assert users(simulator) == dict.fromkeys(ALL, NEW)
    assert record(simulator) == {labels.WORKER_USER: str(NEW)}


def test_a_job_takes_nothing_from_one_of_its_name() -> None:
    simulator = orphaned()
    simulator.worker_user = NEW
    simulator.edit({"metadata.annotations": {labels.ADOPT_CHILDREN: "true"}})
    simulator.converge()
    assert set(users(simulator).values()) == {NEW}
