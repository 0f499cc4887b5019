"""A supervised job: a trainer, no rollouts, and conditions that do not ask for them."""

import json
from typing import Any

from rollcall_protocol import pod_contract
from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_protocol.wire.job_snapshot import JobSnapshot, TrainingProgress, TrainingResult
from rollcall_protocol.wire.json_codec import decode
from tests.apiserver.bad_manifests.manifests import DELETE, Changes
from tests.unit.rollcall_operator.plan.simulator import JobSimulator, lent_pool

SUPERVISED: Changes = {
    **{f"spec.{field}": DELETE for field in ("algorithm", "reward", "rollouts")},
    "spec.supervised": {
        "rowsPerStep": 64,
        "epochs": 2,
        "evaluation": {"source": {"name": "/data/held-out.parquet"}, "everySteps": 100},
    },
    "spec.trainer.exportPath": "/models/chat",
}


def config_of(simulator: JobSimulator) -> JobConfig:
    """What the trainer reads."""
    template = simulator.children["StatefulSet/bad-trainer"]["spec"]["template"]
    (found,) = (
        item["value"]
        for item in template["spec"]["containers"][0]["env"]
        if item["name"] == pod_contract.CONFIG
    )
    return decode(JobConfig, json.loads(found))


def types(simulator: JobSimulator) -> set[str]:
    assert simulator.job is not None
    return {condition["type"] for condition in simulator.job["status"]["conditions"]}


def running() -> JobSimulator:
    """A supervised job whose trainer runs."""
    simulator = JobSimulator(SUPERVISED)
    simulator.converge()
    simulator.schedule()
    simulator.run()
    simulator.converge(2)
    return simulator


def report(simulator: JobSimulator, **changes: Any) -> None:
    """The trainer has made 7 of 20 steps."""
    simulator.snapshot = JobSnapshot(
        pod_uid=simulator.trainer.uid,
        boot=1,
        roster_epoch=0,
        roster_digest="",
        members=(),
        progress=TrainingProgress(7, 20, 0, None),
        **changes,
    )


def test_it_has_a_trainer_and_nothing_else() -> None:
    simulator = running()
    trust, trainer = (
        "ConfigMap/bad-rollcall-trust",
        ("NetworkPolicy/bad-trainer", "Service/bad-trainer", "StatefulSet/bad-trainer"),
    )
    assert set(simulator.children) == {trust, *trainer}
    assert simulator.pools == {}
    assert simulator.roster is None, "nothing is a member of anything"


def test_its_trainer_reads_what_to_learn() -> None:
    held_out = DataConfig((DataSource("/data/held-out.parquet"),))
    config = config_of(running())
    assert config.export_path == "/models/chat"
    assert config.supervised == SupervisedConfig(
        rows_per_step=64,
        epochs=2,
        evaluation=held_out,
        evaluate_every=100,
    )


def test_steps_alone_do_not_contradict_a_default() -> None:
    simulator = JobSimulator({**SUPERVISED, "spec.supervised": {"maxSteps": 5}})
    simulator.converge()
    assert config_of(simulator).supervised == SupervisedConfig(max_steps=5)


def test_no_condition_asks_for_rollouts() -> None:
    simulator = running()
    of_the_trainer = {"TrainerReady", "TrainerUpToDate", "CoordinatorConnected"}
    assert types(simulator) == {"Validated", "Suspended", *of_the_trainer, "Running"}
    assert simulator.condition("Running")["status"] == "True"


def test_its_progress_is_what_the_trainer_reports() -> None:
    simulator = running()
    report(simulator)
    simulator.converge(20)
    assert simulator.job is not None
    progress = simulator.job["status"]["progress"]
    assert (progress["step"], progress["maxSteps"]) == (7, 20)


def test_it_succeeds_when_the_trainer_has_finished() -> None:
    simulator = running()
    report(simulator, finished=TrainingResult(step=20))
    simulator.converge(5)
    assert simulator.condition("Succeeded")["message"] == "training completed after 20 steps"
    assert "RolloutsReady" not in types(simulator)


def test_a_lent_pool_gets_no_rollouts() -> None:
    simulator = running()
    simulator.pools["lent"] = lent_pool()
    simulator.converge(2)
    assert "Deployment/lent" not in simulator.children
    assert simulator.pool_condition("lent", "Validated")["message"].startswith(
        "spec.jobRef.name: the RLJob is supervised"
    )
    assert simulator.condition("Validated")["status"] == "True", "it is not the job's fault"
