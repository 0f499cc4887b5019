"""A job whose trainer is a program of the user's own: its pods, outcomes and conditions."""

import json
from dataclasses import replace
from typing import Any

import pytest

from rollcall_local.controllers.stateful_set import plan as stateful_set_plan
from rollcall_local.kubelet import pod_environment
from rollcall_local.kubelet.node import fields_of
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.external_trainer import uncalled_at_end
from rollcall_operator.plan.model import NodeFacts, PodFacts, Taint
from rollcall_protocol import pod_contract
from rollcall_protocol.data_config import DataConfig
from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.job_snapshot import TrainingResult
from rollcall_protocol.wire.json_codec import decode
from tests.apiserver.bad_manifests.manifests import DELETE, EXTERNAL, Changes, Manifest
from tests.unit.rollcall_operator.plan.simulator import JobSimulator, good_job, lent_pool

CONTAINER = "spec.trainer.template.spec.containers[0]"
INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"
UNCALLED = (
    "pod bad-trainer-0 runs, but its program has not called rollcall.Trainer() "
    "(spec.trainer.startTimeoutSeconds: 600)"
)


def made(changes: Changes | None = None) -> JobSimulator:
    """An External job whose children are there."""
    simulator = JobSimulator({**EXTERNAL, **(changes or {})})
    simulator.converge()
    return simulator


def running(changes: Changes | None = None) -> JobSimulator:
    """An External job that trains."""
    simulator = JobSimulator({**EXTERNAL, **(changes or {})})
    simulator.to_running()
    return simulator


def worker(simulator: JobSimulator, child: str = "StatefulSet/bad-trainer") -> Manifest:
    """The container of a child's pods."""
    found: Manifest = simulator.children[child]["spec"]["template"]["spec"]["containers"][0]
    return found


def variables(simulator: JobSimulator, child: str = "StatefulSet/bad-trainer") -> dict[str, Any]:
    """Values of the worker's variables, and the paths of those with a field of the pod."""
    return {
        item["name"]: item["value"]
        if "value" in item
        else item["valueFrom"]["fieldRef"]["fieldPath"]
        for item in worker(simulator, child)["env"]
    }


def config_of(simulator: JobSimulator, child: str = "StatefulSet/bad-trainer") -> JobConfig:
    return decode(JobConfig, json.loads(variables(simulator, child)[pod_contract.CONFIG]))


# --- pods ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param({}, (["python", "train.py"], None), id="a command"),
        pytest.param({f"{CONTAINER}.command": None}, (None, None), id="the image's own"),
        pytest.param(
            {f"{CONTAINER}.command": None, f"{CONTAINER}.args": ["--lr=1"]},
            (None, ["--lr=1"]),
            id="the image's own with arguments",
        ),
    ],
)
def test_the_operator_names_no_command(given: Changes, kept: tuple[Any, Any]) -> None:
    container = worker(made(given))
    assert (container.get("command"), container.get("args")) == kept


def test_launchers_find_each_other_by_the_usual_variables() -> None:
    found = variables(made({"spec.trainer.replicas": 3}))
    host = "bad-trainer-0.bad-trainer.team.svc"
    for prefix in ("", "PET_"):
        assert found[f"{prefix}MASTER_ADDR"] == host
        assert found[f"{prefix}MASTER_PORT"] == "29500"
        assert found[f"{prefix}NNODES"] == "3"
        assert found[f"{prefix}NODE_RANK"] == INDEX
    assert found[pod_contract.COORDINATOR] == host


def test_a_local_pod_knows_its_rank_as_a_clusters_does() -> None:
    stateful_set = made({"spec.trainer.replicas": 2}).children["StatefulSet/bad-trainer"]
    pods = stateful_set_plan(stateful_set, []).create
    ranks = [
        pod_environment.variables(
            pod["spec"]["containers"][0],
            fields_of({**pod, "metadata": {**pod["metadata"], "uid": "u"}}, "127.0.0.1"),
            lambda *_: {},
        )["NODE_RANK"]
        for pod in pods
    ]
    assert ranks == ["0", "1"]


def test_a_variable_of_the_template_wins() -> None:
    own = [{"name": "MASTER_PORT", "value": "23456"}, {"name": "NODE_RANK", "value": "7"}]
    container = worker(made({f"{CONTAINER}.env": own}))
    names = [item["name"] for item in container["env"]]
    assert container["env"][:2] == own
    assert len(names) == len(set(names)), "each one once"
    assert {"PET_MASTER_PORT", "PET_NODE_RANK"} <= set(names)


def test_it_has_what_a_builtin_trainer_has_beside_its_command() -> None:
    external, builtin = made(), JobSimulator()
    builtin.converge()
    own, usual = variables(external), variables(builtin)
    del own[pod_contract.CONFIG], usual[pod_contract.CONFIG]
    assert usual.items() <= own.items()
    assert set(external.children) == set(builtin.children)
    pods = [s.children["StatefulSet/bad-trainer"]["spec"]["template"] for s in (external, builtin)]
    mounts = [{m["mountPath"] for m in worker(s)["volumeMounts"]} for s in (external, builtin)]
    assert mounts[1] <= mounts[0]
    names = [{v["name"] for v in pod["spec"]["volumes"]} for pod in pods]
    assert names[0] - names[1] == {"rollcall-shm"}, "its processes may share memory"


def test_its_program_has_time_until_it_calls() -> None:
    for seconds in (600, 45):
        probes = worker(made({"spec.trainer.startTimeoutSeconds": seconds}))
        startup = probes["startupProbe"]
        assert (startup["failureThreshold"], startup["periodSeconds"]) == (seconds, 1)
        for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            assert probes[probe]["httpGet"] == {"path": path, "port": pod_contract.METRICS_PORT}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 2}},
        {"spec.trainer.checkpoint.volume": {"emptyDir": {}}, "spec.trainer.replicas": 2},
        {
            **{f"spec.{field}": DELETE for field in ("algorithm", "reward", "rollouts")},
            "spec.supervised": {},
        },
    ],
    ids=["reverse", "two devices", "two pods", "supervised"],
)
def test_a_builtin_trainer_has_nothing_of_it(changes: Changes) -> None:
    plain = JobSimulator(changes)
    plain.converge()
    named = {"spec.trainer.kind": "Builtin", "spec.trainer.startTimeoutSeconds": 45}
    other = JobSimulator({**changes, **named})
    other.converge()
    assert other.children == plain.children
    assert not {"MASTER_ADDR", "NNODES", "PET_NNODES", "NODE_RANK"} & variables(plain).keys()
    assert worker(plain)["command"] == ["rollcall-trainer"]
    assert worker(plain)["startupProbe"]["failureThreshold"] == 300
    assert not config_of(plain).external
    for name in ("external", "rollout_context"):
        assert name not in variables(plain)[pod_contract.CONFIG], "no pod is to be made again"


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("child", ["StatefulSet/bad-trainer", "Deployment/bad-cpu"])
def test_its_pods_read_that_the_program_has_data_rewards_and_steps(child: str) -> None:
    config = config_of(running(), child)
    assert config.external
    assert config.data == DataConfig(())
    assert config.reward_function == ""
    assert config.coordinator.max_steps == 0, "the program alone knows"
    assert config.coordinator.max_staleness == 0, "what it samples is of what it published last"
    assert config.algorithm.sampling == SamplingConfig(), "a request says how to sample"
    assert not config.algorithm.deterministic, "requests are answered side by side"


def test_the_processes_of_a_pod_are_the_programs_own() -> None:
    simulator = made({f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 8}})
    config = config_of(simulator)
    assert (config.trainer_processes, config.trainer_replicas) == (1, 1)
    assert config.trainer_accelerators == {"nvidia.com/gpu": 8}


def test_claimed_devices_need_no_number_of_processes() -> None:
    claims = {f"{CONTAINER}.resources.claims": [{"name": "gpus"}]}
    assert made(claims).condition("Validated")["status"] == "True"


# --- rollouts ------------------------------------------------------------------------------------


def test_a_lent_pool_joins_it() -> None:
    simulator = running()
    simulator.pools["lent"] = lent_pool()
    simulator.converge(2)
    assert "Deployment/lent" in simulator.children
    assert simulator.pool_condition("lent", "Validated")["status"] == "True"


def test_its_conditions_are_those_of_a_job_with_rollouts() -> None:
    simulator = running()
    builtin = JobSimulator()
    builtin.to_running()
    kinds = [{c["type"] for c in s.status["conditions"]} for s in (simulator, builtin)]
    assert kinds[0] == kinds[1] - {"RewardsUsable"}, "its program has the rewards"
    assert {"RolloutsReady", "WeightsInSync"} <= kinds[0]
    simulator.edit({"spec.suspend": True})
    simulator.converge(2)
    assert simulator.condition("WeightsInSync")["reason"] == "Suspended"


# --- outcomes and conditions ---------------------------------------------------------------------


def ended(simulator: JobSimulator, times: int, code: int, **facts: Any) -> None:
    """The program's container has ended with this code, for the time that this makes; the kubelet
    has not counted it yet.
    """
    gone = {"ready": False, "running": False, "up": False, "waiting_reason": "CrashLoopBackOff"}
    simulator.change(simulator.trainer, restarts=times - 1, exit_code=code, **{**gone, **facts})
    simulator.converge(5)


def test_it_succeeds_when_its_program_says_so() -> None:
    simulator = running()
    simulator.report(finished=TrainingResult(step=31))
    simulator.converge(5)
    assert simulator.condition("Succeeded")["message"] == "training completed after 31 steps"


def test_the_end_of_its_program_is_no_success() -> None:
    simulator = running({"spec.failurePolicy.maxRestarts": 1})
    ended(simulator, 1, 0)
    assert simulator.status["phase"] == "Restarting"
    assert simulator.status["trainer"]["restarts"] == 1
    assert "call rollcall.Trainer.finish(step)" in simulator.condition("TrainerReady")["message"]
    ended(simulator, 2, 0)
    condition = simulator.condition("Failed")
    assert condition["reason"] == "BackoffLimitExceeded"
    assert (
        "Last exit of pod bad-trainer-0: exit code 0; its program ended without calling finish; "
        "call rollcall.Trainer.finish(step) at its end. Fix the cause"
    ) in condition["message"]


def test_a_program_that_was_ended_as_it_did_not_call_reads_it() -> None:
    simulator = running({"spec.failurePolicy.maxRestarts": 1})
    ended(simulator, 1, 137, ran_for=631.0)
    expected = "does not call rollcall.Trainer(), which is ended after spec.trainer.startTimeout"
    assert expected in simulator.condition("TrainerReady")["message"]
    assert not any(plan.pod_deletions for plan in simulator.plans), "the condition stays"
    ended(simulator, 2, 137, ran_for=602.0)
    assert (
        "startTimeoutSeconds (600); call it earlier, or" in simulator.condition("Failed")["message"]
    )


@pytest.mark.parametrize(
    ("grace", "ran_for", "explained"),
    [
        (None, 5.0, False),
        (None, 597.0, False),
        (None, 599.0, True),
        (None, 640.0, True),
        (None, 641.0, False),
        (120, 641.0, True),
        (120, 731.0, False),
        (None, None, False),
    ],
)
def test_only_a_run_as_long_as_the_limit_is_put_down_to_it(
    grace: int | None, ran_for: float | None, explained: bool
) -> None:
    path = "spec.trainer.template.spec.terminationGracePeriodSeconds"
    spec = RLJobSpec.model_validate(good_job({**EXTERNAL, path: grace})["spec"])
    pod = PodFacts("t-0", "u", "trainer", exit_code=1, ran_for=ran_for)
    assert bool(uncalled_at_end(spec.trainer, pod)) is explained


def test_a_program_that_runs_and_has_not_called_is_named() -> None:
    simulator = made()
    simulator.schedule()
    simulator.change(simulator.trainer, phase="Running", running=True, ip="10.0.0.9")
    simulator.converge(30)
    condition = simulator.condition("TrainerReady")
    assert (condition["status"], condition["reason"]) == ("False", "Starting")
    assert condition["message"] == f"0 of 1 trainer pods are ready: {UNCALLED}"
    simulator.change(simulator.trainer, up=True)
    simulator.converge(30)
    assert simulator.condition("TrainerReady")["message"] == "0 of 1 trainer pods are ready"


def test_a_builtin_trainers_message_has_nothing_of_calls() -> None:
    simulator = JobSimulator({"spec.failurePolicy.maxRestarts": 0})
    simulator.converge()
    simulator.schedule()
    simulator.change(simulator.trainer, phase="Running", running=True, ip="10.0.0.9")
    simulator.converge(30)
    assert simulator.condition("TrainerReady")["message"] == "0 of 1 trainer pods are ready"
    ended(simulator, 1, 0, ran_for=600.0)
    assert "rollcall.Trainer" not in simulator.condition("Failed")["message"]


def test_a_killed_programs_message_has_no_settings_of_builtin_trainers() -> None:
    simulator = running({"spec.failurePolicy.maxRestarts": 0})
    ended(simulator, 1, 137, oom_killed=True, exit_message="OOMKilled", ran_for=600.0)
    message = simulator.condition("Failed")["message"]
    assert "raise the limit (resources.limits.memory in spec.trainer.template)" in message
    assert "maxTokensPerMicrobatch" not in message


def test_where_training_goes_on_after_a_restart_is_the_programs_matter() -> None:
    simulator = running()
    simulator.edit({"spec.suspend": True})
    simulator.converge(2)
    message = simulator.condition("Suspended")["message"]
    assert message.endswith("the trainer's own program then decides where training goes on")


def test_an_event_names_the_step_alone() -> None:
    simulator = running()
    ended(simulator, 1, 1)
    simulator.run(simulator.trainer)
    assert simulator.snapshot is not None
    progress = replace(simulator.snapshot.progress, step=7, max_steps=0)
    simulator.snapshot = replace(simulator.snapshot, progress=progress)
    simulator.converge(5)
    texts = [event.message for plan in simulator.plans for event in plan.events]
    assert any(text.startswith("training is in progress at step 7 (phase was") for text in texts)


def test_a_node_that_will_go_promises_no_checkpoint() -> None:
    simulator = running()
    simulator.change(simulator.trainer, node="n")
    taint = Taint("karpenter.sh/disrupted", "", "NoSchedule")
    simulator.nodes = {"n": NodeFacts("n", preempted=(taint,))}
    plan = simulator.converge(1)
    (text,) = [e.message for e in plan.events if "will terminate" in e.message]
    assert text.endswith(
        "restarts on another node; the trainer's own program then decides where training goes on"
    )


def test_its_progress_has_no_number_of_steps_before_it_reports() -> None:
    assert made().status["progress"]["maxSteps"] == 0
