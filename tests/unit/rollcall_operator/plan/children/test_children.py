"""The children: names, owners, selectors, replicas, and what workers are given."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.children import rollout as rollout_children
from rollcall_operator.plan.children import trainer as trainer_children
from rollcall_operator.plan.children.certificates import trust_config_map
from rollcall_protocol import pod_contract
from rollcall_protocol.algorithm_settings import preset
from rollcall_protocol.data_config import DataConfig, DataSource, TooLong
from rollcall_protocol.job_config import (
    CriticConfig,
    DeltaConfig,
    EngineRef,
    EvaluationConfig,
    GroupConfig,
    HealthConfig,
    JobConfig,
    PoolConfig,
    ReferenceConfig,
    RewardErrorConfig,
    RewardModelConfig,
    SampleRecordingConfig,
    TrackingConfig,
)
from rollcall_protocol.wire.json_codec import decode
from rollcall_protocol.wire.trust_bundle import TrustBundle
from tests.apiserver.bad_manifests.manifests import DELETE, OWN_REFERENCE, Changes
from tests.unit.rollcall_operator.plan.simulator import TRUST, JobSimulator, good_job, lent_pool


def trainer(changes: Changes | None = None) -> Any:
    job = good_job(changes)
    spec = RLJobSpec.model_validate(job["spec"])
    return trainer_children.stateful_set(job, spec, replicas=spec.trainer.replicas)


def deployment(changes: Changes | None = None) -> Any:
    simulator = JobSimulator(changes)
    simulator.converge()
    return simulator.children["Deployment/bad-cpu"]


def pod_spec(child: Any) -> Any:
    return child["spec"]["template"]["spec"]


def variables(child: Any) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in pod_spec(child)["containers"][0]["env"]}


# --- names and owners ----------------------------------------------------------------------------


def test_all_children_belong_to_the_job() -> None:
    simulator = JobSimulator()
    plan = simulator.reconcile()
    for child in plan.applies:
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("RLJob", "job-uid", True)
        assert owner["blockOwnerDeletion"] is True
        assert child["metadata"]["namespace"] == "team"
        assert child["metadata"]["labels"][labels.JOB] == "bad"


def test_the_clusters_keys_are_a_config_map_whose_text_depends_on_nothing_else() -> None:
    simulator = JobSimulator()
    simulator.converge()
    made = simulator.children["ConfigMap/bad-rollcall-trust"]
    assert decode(TrustBundle, json.loads(made["data"]["trust.json"])) == TRUST
    assert trust_config_map(good_job(), TRUST, "")["data"] == made["data"]


def test_new_keys_reach_the_config_map_and_no_pod_is_replaced_for_them() -> None:
    simulator = JobSimulator()
    simulator.converge()
    simulator.trust = replace(TRUST, keys=(*TRUST.keys, {"kid": "b"}))
    (body,) = simulator.reconcile().applies
    assert body["kind"] == "ConfigMap"


def test_a_deleted_config_map_is_made_again() -> None:
    simulator = JobSimulator()
    simulator.converge()
    del simulator.children["ConfigMap/bad-rollcall-trust"]
    (body,) = simulator.reconcile().applies
    assert body["kind"] == "ConfigMap"


def test_unknown_keys_leave_the_config_map_as_it_is() -> None:
    simulator = JobSimulator()
    simulator.converge()
    simulator.trust = None
    assert not simulator.reconcile().applies


def test_the_service_gives_names_to_pods_that_are_not_ready() -> None:
    service = trainer_children.service(good_job())["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["selector"] == {labels.JOB: "bad", labels.ROLE: "trainer"}


def test_each_selector_names_job_role_and_pool_and_selects_its_own_pods_alone() -> None:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.converge()
    own = {labels.JOB: "bad", labels.ROLE: "rollout"}
    exact = {
        "StatefulSet/bad-trainer": {labels.JOB: "bad", labels.ROLE: "trainer"},
        "Deployment/bad-cpu": {**own, labels.POOL: "bad-cpu"},
        "Deployment/lent": {**own, labels.POOL: "lent"},
    }
    for name, selector in exact.items():
        assert simulator.children[name]["spec"]["selector"] == {"matchLabels": selector}
        for other in exact:
            pods = simulator.children[other]["spec"]["template"]["metadata"]["labels"]
            assert (selector.items() <= pods.items()) is (name == other), (name, other)


@pytest.mark.parametrize("longest", [43])
def test_names_stay_within_their_limits(longest: int) -> None:
    job = "j" * longest
    assert len(labels.trainer_name(job)) < 52
    assert len(labels.pool_name(job, "p" * 19)) <= 63


# --- the trainer ---------------------------------------------------------------------------------


def test_the_gang_starts_all_at_once_and_never_restarts_for_a_template() -> None:
    spec = trainer({"spec.trainer.replicas": 4})["spec"]
    assert spec["replicas"] == 4
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["serviceName"] == "bad-trainer"


def test_a_worker_reads_the_job_from_its_environment() -> None:
    changes = {"spec.weightSync.bucketSize": "1Mi"}
    config = decode(JobConfig, json.loads(variables(trainer(changes))[pod_contract.CONFIG]))
    assert (config.namespace, config.job, config.uid) == ("team", "bad", "job-uid")
    assert config.weight_sync.bucket_bytes == 1024 * 1024
    assert config.checkpoint is None


def test_the_trainer_knows_how_many_tokens_all_rollouts_take() -> None:
    engines = [{"name": "vllm", "config": {"maxModelLen": length}} for length in (128, 64)]
    pool = good_job()["spec"]["rollouts"][0]
    changes: Changes = {
        "spec.model.path": "/models/qwen",
        "spec.rollouts": [
            {**pool, "name": f"r{number}", "engine": engine}
            for number, engine in enumerate(engines)
        ],
    }
    config = decode(JobConfig, json.loads(variables(trainer(changes))[pod_contract.CONFIG]))
    assert config.rollout_context == 64


def test_a_worker_reads_which_algorithm_trains_it() -> None:
    """The algorithm's name stands for settings, of which the job changes some."""
    changes = {
        "spec.algorithm.name": "gspo",
        "spec.algorithm.settings": {"clipHigh": "2e-3", "dynamicSampling": True},
    }
    config = decode(JobConfig, json.loads(variables(trainer(changes))[pod_contract.CONFIG]))
    settings = config.algorithm.settings
    assert settings == preset("gspo", clip_high=0.002, dynamic_sampling=True)
    assert settings.objective == "gspo"


def test_a_worker_reads_where_its_prompts_come_from() -> None:
    def data(changes: Changes) -> DataConfig:
        child = trainer(changes)
        return decode(JobConfig, json.loads(variables(child)[pod_contract.CONFIG])).data

    assert data({"spec.data.seed": 7}) == DataConfig((DataSource("builtin:reverse"),), seed=7)
    sources = [{"name": "org/sums", "weight": 3, "columns": ["answer"]}, {"name": "/d/a.jsonl"}]
    mixed = data({"spec.data": {"sources": sources, "maxTokens": 512, "tooLong": "Drop"}})
    expected = (DataSource("org/sums", weight=3, columns=("answer",)), DataSource("/d/a.jsonl"))
    assert mixed == DataConfig(expected, max_tokens=512, too_long=TooLong.DROP)


def test_a_worker_reads_which_models_there_are_beside_the_policy() -> None:
    changes = {
        "spec.algorithm.settings": {"klCoefficient": "0.1", "baseline": "critic"},
        "spec.algorithm.settings.normalisation": "batch",
        "spec.reference": {"path": "org/base", "updateEvery": 50},
        "spec.critic": {"learningRate": "2e-3", "warmupSteps": 5},
        "spec.rewardModel": {"path": "org/reward", "weight": "0.5"},
    }
    config = decode(JobConfig, json.loads(variables(trainer(changes))[pod_contract.CONFIG]))
    assert config.reference == ReferenceConfig("org/base", update_every=50)
    assert config.critic == CriticConfig(learning_rate=0.002, warmup_steps=5)
    assert config.reward_model == RewardModelConfig("org/reward", weight=0.5)


@pytest.mark.parametrize(
    ("model", "policy", "critic"),
    [("builtin:reverse-tiny", 1e-3, 1e-3), ("org/model", 1e-6, 1e-5), ("/models/m", 1e-6, 1e-5)],
)
def test_learning_rates_that_are_not_given_suit_the_model(
    model: str, policy: float, critic: float
) -> None:
    def rates(changes: Changes) -> tuple[float, float]:
        config = decode(JobConfig, json.loads(variables(trainer(changes))[pod_contract.CONFIG]))
        return config.algorithm.optimizer.learning_rate, config.critic.learning_rate

    assert rates({"spec.model.path": model}) == (policy, critic)
    given = {
        "spec.model.path": model,
        "spec.algorithm.optimizer": {"learningRate": "2e-4"},
        "spec.critic": {"learningRate": "3e-4"},
    }
    assert rates(given) == (2e-4, 3e-4)


def test_a_job_lasts_for_steps_or_for_epochs() -> None:
    def lasts(changes: Changes) -> tuple[int, int]:
        config = decode(JobConfig, json.loads(variables(trainer(changes))[pod_contract.CONFIG]))
        return config.algorithm.max_steps, config.algorithm.epochs

    assert lasts({"spec.algorithm.maxSteps": 7}) == (7, 0)
    assert lasts({"spec.algorithm.maxSteps": DELETE, "spec.algorithm.epochs": 3}) == (0, 3)


def test_a_worker_reads_what_becomes_of_samples_without_a_reward() -> None:
    changes = {
        "spec.reward.onError": "Zero",
        "spec.reward.maxErrorShare": "0.25",
        "spec.reward.timeoutSeconds": 5,
    }
    config = decode(JobConfig, json.loads(variables(trainer(changes))[pod_contract.CONFIG]))
    assert config.reward_errors == RewardErrorConfig("Zero", 0.25, 5.0)


def test_a_worker_reads_what_is_measured_while_it_trains() -> None:
    changes = {
        "spec.data.maxTokens": 99,
        "spec.health": {"maxSkippedSteps": 3, "maxMismatchKl": "0.01"},
        "spec.evaluation": {
            "everySteps": 10,
            "source": {"name": "/d/held-out.jsonl", "split": "test"},
            "samples": 8,
            "passAt": [1, 8],
        },
        "spec.tracking": {"folder": "/logs"},
        "spec.observe.samples": {"share": "0.25", "allEverySteps": 50},
    }
    config = decode(JobConfig, json.loads(variables(trainer(changes))[pod_contract.CONFIG]))
    assert config.health == HealthConfig(max_skipped_steps=3, max_mismatch_kl=0.01)
    held_out = DataConfig((DataSource("/d/held-out.jsonl", split="test"),), max_tokens=99)
    assert config.evaluation == EvaluationConfig(10, held_out, samples=8, pass_at=(1, 8))
    assert config.tracking == TrackingConfig(folder="/logs")
    assert config.samples == SampleRecordingConfig(share=0.25, all_every_steps=50)


def test_a_worker_reads_what_its_trainer_computes_on() -> None:
    resources = "spec.trainer.template.spec.containers[0].resources"
    changes = {"spec.trainer.replicas": 2, f"{resources}.limits": {"nvidia.com/gpu": 8}}
    config = decode(JobConfig, json.loads(variables(trainer(changes))[pod_contract.CONFIG]))
    assert (config.trainer_processes, config.trainer_ranks) == (8, 16)
    assert config.trainer_device == "auto"
    assert config.trainer_accelerators == {"nvidia.com/gpu": 8}


def test_a_worker_reads_how_weights_reach_it() -> None:
    own = {"interface": "eth1", "operationTimeout": "2.5"}
    sync = {
        "engine": "mooncake",
        "config": own,
        "blocking": True,
        "staging": "Device",
        "everyRankSends": False,
        "delta": {"enabled": True, "maxShare": "0.3", "threads": 8, "blockSize": "64Ki"},
        "groups": [{"name": "npu", "engine": "hccl", "config": {"threads": 4}}],
    }
    child = deployment({"spec.weightSync": sync, "spec.rollouts[0].syncGroup": "npu"})
    config = decode(JobConfig, json.loads(variables(child)[pod_contract.CONFIG])).weight_sync
    assert config.all_groups() == (
        GroupConfig("default", EngineRef("mooncake", own)),
        GroupConfig("npu", EngineRef("hccl", {"threads": 4})),
    )
    assert (config.blocking, config.staging) == (True, "Device")
    assert config.delta == DeltaConfig(max_share=0.3, threads=8, block_bytes=1 << 16)
    assert (config.every_rank_sends, config.profile_path) == (False, "")
    assert json.loads(variables(child)[pod_contract.POOL_CONFIG])["sync_group"] == "npu"


def test_a_worker_reads_how_long_its_peers_wait_in_seconds() -> None:
    child = trainer(
        {
            "spec.membership": {
                "settleSeconds": 3,
                "ackTimeoutSeconds": 13,
                "heartbeatMilliseconds": 500,
                "suspectAfterMilliseconds": 2500,
            },
            "spec.weightSync": {
                "stageTimeoutSeconds": 31,
                "commitTimeoutSeconds": 11,
                "joinTimeoutSeconds": 12,
            },
            "spec.tls.enabled": False,
        }
    )
    config = decode(JobConfig, json.loads(variables(child)[pod_contract.CONFIG]))
    group, sync = config.membership, config.weight_sync
    waits = (group.settle, group.ack_timeout, group.heartbeat, group.suspect_after)
    assert waits == (3.0, 13.0, 0.5, 2.5)
    assert (sync.stage_timeout, sync.commit_timeout, sync.join_timeout) == (31.0, 11.0, 12.0)
    assert config.tls is False


def test_traces_are_written_only_when_asked_for() -> None:
    def path(profile: dict[str, Any]) -> str:
        child = trainer({"spec.weightSync.profile": profile})
        return decode(
            JobConfig, json.loads(variables(child)[pod_contract.CONFIG])
        ).weight_sync.profile_path

    assert path({"path": "/traces"}) == ""
    assert path({"enabled": True, "path": "/traces"}) == "/traces"
    mounts = pod_spec(trainer())["containers"][0]["volumeMounts"]
    assert any(path({"enabled": True}).startswith(mount["mountPath"]) for mount in mounts)


def test_workers_find_the_coordinator_by_name() -> None:
    host = "bad-trainer-0.bad-trainer.team.svc"
    assert variables(trainer())[pod_contract.COORDINATOR] == host
    assert variables(deployment())[pod_contract.COORDINATOR] == host


@pytest.mark.parametrize(
    "volume", [{"emptyDir": {"sizeLimit": "1Gi"}}, {"persistentVolumeClaim": {"claimName": "c"}}]
)
def test_checkpoints_go_to_the_volume_that_was_asked_for(volume: dict[str, Any]) -> None:
    child = trainer({"spec.trainer.checkpoint": {"everySteps": 5, "volume": volume}})
    volumes = {item["name"]: item for item in pod_spec(child)["volumes"]}
    assert volumes["rollcall-checkpoints"] == {"name": "rollcall-checkpoints", **volume}
    mounts = {m["name"]: m["mountPath"] for m in pod_spec(child)["containers"][0]["volumeMounts"]}
    config = decode(JobConfig, json.loads(variables(child)[pod_contract.CONFIG]))
    assert config.checkpoint is not None
    assert config.checkpoint.path == mounts["rollcall-checkpoints"]
    assert config.checkpoint.path == "/var/lib/rollcall/checkpoints"
    assert config.checkpoint.every_steps == 5


def test_each_folder_that_a_worker_looks_into_is_mounted() -> None:
    child = trainer()
    mounts = {m["name"]: m["mountPath"] for m in pod_spec(child)["containers"][0]["volumeMounts"]}
    for variable, volume in {
        pod_contract.TOKEN_DIR: "rollcall-token",
        pod_contract.TLS_DIR: "rollcall-tls",
        pod_contract.TRUST_DIR: "rollcall-trust",
        pod_contract.STATE_DIR: "rollcall-state",
    }.items():
        assert variables(child)[variable] == mounts[volume]
    state = next(v for v in pod_spec(child)["volumes"] if v["name"] == "rollcall-state")
    assert state["emptyDir"] == {"sizeLimit": "64Mi"}


def tokens(child: Any) -> dict[str, str]:
    """The audiences of the tokens that a pod mounts, by file."""
    (volume,) = [v for v in pod_spec(child)["volumes"] if v["name"] == "rollcall-token"]
    assert set(volume) == {"name", "projected"}
    sources = [source["serviceAccountToken"] for source in volume["projected"]["sources"]]
    assert all(source["expirationSeconds"] == 3600 for source in sources)
    return {source["path"]: source["audience"] for source in sources}


def test_every_worker_has_a_token_of_its_own_for_its_job() -> None:
    for child in (trainer(), deployment()):
        assert tokens(child) == {"token": "rollcall.dev/job-uid"}
        assert pod_spec(child)["automountServiceAccountToken"] is False
        assert variables(child)[pod_contract.TOKEN_DIR] == "/var/run/rollcall/token"


def test_a_lent_pool_has_the_identity_of_a_rollout_and_its_own_account() -> None:
    simulator = JobSimulator(OWN_REFERENCE)
    simulator.pools["lent"] = lent_pool({"spec.template.spec.serviceAccountName": "guest"})
    simulator.converge()
    lent = simulator.children["Deployment/lent"]
    assert tokens(lent) == {"token": "rollcall.dev/job-uid"}  # and none for reference pods
    assert pod_spec(lent)["serviceAccountName"] == "guest"
    assert lent["metadata"]["ownerReferences"][0]["uid"] == "lent-uid"


def test_a_lent_pool_that_takes_labels_of_the_job_gets_no_pods() -> None:
    simulator = JobSimulator()
    mine = {labels.ROLE: labels.TRAINER}
    simulator.pools["lent"] = lent_pool({"spec.template.metadata": {"labels": mine}})
    simulator.converge()
    assert "Deployment/lent" not in simulator.children
    assert (
        "is reserved for the operator" in simulator.pool_condition("lent", "Validated")["message"]
    )


def test_keys_are_mounted_apart_from_the_token_whose_renewal_they_must_not_stop() -> None:
    for child in (trainer(), deployment()):
        volumes = {item["name"]: item for item in pod_spec(child)["volumes"]}
        assert volumes["rollcall-trust"]["configMap"] == {"name": "bad-rollcall-trust"}
        assert variables(child)[pod_contract.TRUST_DIR] == "/var/run/rollcall/trust"


# --- rollouts ------------------------------------------------------------------------------------


def test_a_pool_carries_its_entry_of_the_job() -> None:
    simulator = JobSimulator(
        {"spec.rollouts[0].maxReplicas": 8, "spec.rollouts[0].drain.timeoutSeconds": 50}
    )
    simulator.converge()
    spec = simulator.pools["bad-cpu"]["spec"]
    assert spec["jobRef"] == {"name": "bad"}
    assert (spec["replicas"], spec["maxReplicas"]) == (2, 8)
    assert spec["drain"] == {"timeoutSeconds": 50}
    assert "name" not in spec


def test_a_rollout_reads_its_pool_from_its_environment() -> None:
    config = decode(PoolConfig, json.loads(variables(deployment())[pod_contract.POOL_CONFIG]))
    assert (config.pool, config.engine.name, config.drain_timeout) == ("bad-cpu", "tiny", 30.0)


def test_a_rollout_reads_the_accelerators_that_it_asks_for() -> None:
    resources = "spec.rollouts[0].template.spec.containers[0].resources"
    child = deployment({f"{resources}.limits": {"nvidia.com/gpu": 2}})
    config = decode(PoolConfig, json.loads(variables(child)[pod_contract.POOL_CONFIG]))
    assert config.accelerators == {"nvidia.com/gpu": 2}


def test_a_rollout_has_a_gate_and_time_to_drain() -> None:
    spec = pod_spec(deployment({"spec.rollouts[0].drain.timeoutSeconds": 120}))
    assert spec["readinessGates"] == [{"conditionType": pod_contract.READINESS_GATE}]
    assert spec["terminationGracePeriodSeconds"] == 130
    (container,) = spec["containers"]
    own = next(v["value"] for v in container["env"] if v["name"] == pod_contract.POOL_CONFIG)
    assert json.loads(own)["drain_timeout"] == 120.0


def on_server(engine: str, **config: Any) -> dict[str, Any]:
    rollout = {"name": engine, "config": config}
    return {"spec.rollouts[0].engine": rollout, "spec.model.path": "/models/qwen"}


VLLM = on_server("vllm")
SERVERS = pytest.mark.parametrize("engine", ["vllm", "sglang"])
SHARED_MEMORY = {"medium": "Memory", "sizeLimit": "10Gi"}


@SERVERS
def test_processes_of_a_server_share_memory_beyond_a_containers_64_mib(engine: str) -> None:
    spec = pod_spec(deployment(on_server(engine)))
    assert {"name": "rollcall-shm", "emptyDir": SHARED_MEMORY} in spec["volumes"]
    mount = {"name": "rollcall-shm", "mountPath": "/dev/shm"}
    assert mount in spec["containers"][0]["volumeMounts"]


@SERVERS
def test_a_server_has_as_long_to_start_as_its_settings_say(engine: str) -> None:
    slow = on_server(engine, startSeconds=1800)
    for changes, seconds in ((slow, 1860), (on_server(engine), 660), ({}, 300)):
        (container,) = pod_spec(deployment(changes))["containers"]
        probe = container["startupProbe"]
        assert probe["failureThreshold"] * probe["periodSeconds"] == seconds


GPUS = "spec.trainer.template.spec.containers[0].resources"


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({GPUS: {"limits": {"nvidia.com/gpu": 4}}}, True),
        ({GPUS: {"limits": {"nvidia.com/gpu": 1}}}, False),
        ({"spec.trainer.processesPerPod": 2, "spec.trainer.device": "cpu"}, False),
        ({GPUS: {"claims": [{"name": "gpus"}]}, "spec.trainer.processesPerPod": 2}, True),
    ],
)
def test_ranks_of_a_pod_share_memory_beyond_a_containers_64_mib_where_they_have_devices(
    changes: Changes, *, shared: bool
) -> None:
    spec = pod_spec(trainer(changes))
    volume = {"name": "rollcall-shm", "emptyDir": SHARED_MEMORY}
    assert (volume in spec["volumes"]) == shared


def test_shared_memory_of_the_users_own_stays() -> None:
    mount = {"name": "mine", "mountPath": "/dev/shm"}
    path = "spec.rollouts[0].template.spec.containers[0].volumeMounts"
    assert "rollcall-shm" not in str(pod_spec(deployment({**VLLM, path: [mount]})))
    assert "rollcall-shm" not in str(pod_spec(deployment())), "which engine tiny does not need"


def test_a_longer_grace_period_of_the_users_stays() -> None:
    path = "spec.rollouts[0].template.spec.terminationGracePeriodSeconds"
    assert pod_spec(deployment({path: 600}))["terminationGracePeriodSeconds"] == 600


@pytest.mark.parametrize(
    ("number_then", "live", "number_now", "replicas", "guarded"),
    [
        pytest.param(2, 2, 2, 2, True, id="unchanged"),
        pytest.param(2, 5, 2, 5, True, id="kubectl scale or an autoscaler did"),
        pytest.param(2, 0, 2, 0, True, id="scaled to zero"),
        pytest.param(2, 5, 3, 3, False, id="the job's own number changed"),
        pytest.param(2, 3, 3, 3, False, id="it changed to what was there"),
    ],
)
def test_which_owner_decides_on_replicas(
    number_then: int, live: int, number_now: int, replicas: int, *, guarded: bool
) -> None:
    simulator = JobSimulator({"spec.rollouts[0].replicas": number_then})
    simulator.converge()
    simulator.scale("bad-cpu", live)
    simulator.edit({"spec.rollouts[0].replicas": number_now})
    spec = RLJobSpec.model_validate(simulator.job["spec"])  # type: ignore[index]
    assert spec.rollouts is not None
    body = rollout_children.pool(simulator.job, spec.rollouts[0], simulator.pools["bad-cpu"])  # type: ignore[arg-type]
    assert body["spec"]["replicas"] == replicas
    assert body["metadata"]["annotations"][labels.JOB_REPLICAS] == str(number_now)
    assert ("resourceVersion" in body["metadata"]) is guarded


def test_a_scaled_pool_keeps_its_number_when_the_job_is_edited() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.scale("bad-cpu", 6)
    simulator.edit({"spec.rollouts[0].template.spec.containers[0].image": "rollcall/worker:next"})
    simulator.converge()
    assert simulator.pools["bad-cpu"]["spec"]["replicas"] == 6
    assert simulator.children["Deployment/bad-cpu"]["spec"]["replicas"] == 6
    image = pod_spec(simulator.children["Deployment/bad-cpu"])["containers"][0]["image"]
    assert image == "rollcall/worker:next"


def test_nothing_that_changes_while_a_job_runs_is_in_a_template() -> None:
    """Neither scaling nor epochs nor a job's life may restart a pod."""
    simulator = JobSimulator()
    simulator.converge()
    before = copy.deepcopy(
        {key: child.get("spec", {}).get("template") for key, child in simulator.children.items()}
    )
    simulator.to_running()
    simulator.scale("bad-cpu", 5)
    simulator.edit({"spec.failurePolicy.maxRestarts": 7, "spec.activeDeadlineSeconds": 99999})
    simulator.converge(60)
    after = {
        key: child.get("spec", {}).get("template") for key, child in simulator.children.items()
    }
    assert after == before
