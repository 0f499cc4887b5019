"""Single settings of verl, as fields of an RLJob."""

from typing import Any

import pytest

from rollcall_local.convert.job import Converted, convert
from rollcall_local.convert.manifest import mistakes

BASE = {
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.model.path": "org/model",
    "algorithm.adv_estimator": "grpo",
    "trainer.total_training_steps": 10,
}
ACTOR, ROLLOUT, CORRECTION = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "algorithm.rollout_correction",
)


def converted(**changes: Any) -> Converted:
    return convert({**BASE, **changes}, "job")


def settings(**changes: Any) -> dict[str, Any]:
    found = converted(**changes)
    assert mistakes(found.body) == ()
    result = found.body["spec"]["algorithm"]["settings"]
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"algorithm.norm_adv_by_std_in_grpo": False}, {"normalisation": "none"}),
        ({f"{ACTOR}.clip_ratio_high": 0.28}, {"clipHigh": "0.28"}),
        ({f"{ACTOR}.clip_ratio_low": None, f"{ACTOR}.clip_ratio": 0.1}, {"clipLow": "0.1"}),
        ({f"{ACTOR}.entropy_coeff": 0.01}, {"entropyCoefficient": "0.01"}),
        (
            {
                f"{ACTOR}.policy_loss.loss_mode": "gspo",
                f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
            },
            {"objective": "gspo", "aggregation": "sequence-mean", "dualClip": None},
        ),
        (
            {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", "data.max_response_length": 700},
            {"aggregation": "sequence-sum", "aggregationLength": 700},
        ),
        (
            {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "mse"},
            {"klCoefficient": "0.001", "klEstimator": "k2", "klTerm": None},
        ),
        (
            {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.5},
            {"klCoefficient": "0.5", "klEstimator": "k1", "klTerm": "reward"},
        ),
        (
            {f"{CORRECTION}.rollout_is": "sequence", f"{CORRECTION}.rollout_is_threshold": 2.0},
            {"correction": None, "correctionLevel": "sequence", "correctionCap": "2"},
        ),
        (
            {f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.rollout_is_threshold": "0.5_5.0"},
            {"correction": "masked", "correctionFloor": "0.5", "correctionCap": None},
        ),
        ({f"{CORRECTION}.bypass_mode": True}, {"correction": "none", "ratioBase": "behaviour"}),
        (
            {
                "algorithm.filter_groups.enable": True,
                "algorithm.filter_groups.max_num_gen_batches": 10,
            },
            {"dynamicSampling": True, "dynamicSamplingLimit": 9},
        ),
        (
            {
                "reward_model.overlong_buffer.enable": True,
                "reward_model.overlong_buffer.len": 128,
                "reward_model.overlong_buffer.penalty_factor": 0.5,
                "data.max_response_length": 2048,
            },
            {"overlongLimit": 2048, "overlongBuffer": 128, "overlongPenalty": "0.5"},
        ),
        ({"algorithm.adv_estimator": "rloo"}, {"objective": "ppo", "aggregation": "token-mean"}),
        (
            {"algorithm.adv_estimator": "reinforce_plus_plus_baseline"},
            {"baseline": "group-mean", "normalisation": None},
        ),
    ],
)
def test_settings_of_the_algorithm(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    found = settings(**changes)
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize("estimator", ["remax", "opo", "grpo_passk", "gpg", "gdpo", "my_own"])
def test_an_estimator_that_is_not_there_makes_no_other_job(estimator: str) -> None:
    found = converted(**{"algorithm.adv_estimator": estimator})
    assert any("spec.algorithm.name" in line for line in mistakes(found.body))


def test_an_asynchronous_job_has_its_bound() -> None:
    found = converted(
        **{
            "trainer.v1.trainer_mode": "separate_async",
            "trainer.v1.sampler.max_off_policy_threshold": 3,
            "trainer.v1.separate_async.parameter_sync_step": 2,
            f"{ROLLOUT}.nnodes": 2,
            f"{ROLLOUT}.n_gpus_per_node": 4,
            f"{ROLLOUT}.tensor_model_parallel_size": 1,
        }
    )
    assert mistakes(found.body) == ()
    spec = found.body["spec"]
    assert spec["algorithm"]["maxStaleness"] == 2
    assert spec["weightSync"] == {"triggerParameterSyncStep": 2}
    assert spec["rollouts"][0]["replicas"] == 8


def test_a_reward_of_ones_own_is_found_by_its_module() -> None:
    path = "~/code/my_reward.py"
    changes = {"custom_reward_function.path": path, "custom_reward_function.name": "grade"}
    found = converted(**changes)
    assert mistakes(found.body) == ()
    assert found.body["spec"]["reward"] == {"function": "my_reward:grade", "style": "verl"}
    (container,) = found.body["spec"]["rollouts"][0]["template"]["spec"]["containers"]
    assert {"name": "PYTHONPATH", "value": "/code"} in container["env"]
    assert "/code" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_a_schedule_counts_optimizer_steps() -> None:
    optim = f"{ACTOR}.optim"
    changes = {f"{optim}.lr_scheduler_type": "cosine", f"{optim}.lr_warmup_steps_ratio": 0.2}
    found = converted(**changes, **{f"{optim}.min_lr_ratio": 0.1})
    assert mistakes(found.body) == ()
    config = found.body["spec"]["trainer"]["engine"]["config"]
    assert config["schedule"] == "cosine"
    assert config["warmupSteps"] == 2 * 4
    assert config["decaySteps"] == 8 * 4
    assert config["minLearningRate"] == 0.1


def test_an_engine_gets_what_it_has_alone() -> None:
    found = converted(
        **{
            "model_engine": "megatron",
            f"{ACTOR}.megatron.tensor_model_parallel_size": 2,
            f"{ACTOR}.megatron.pipeline_model_parallel_size": 4,
            f"{ACTOR}.megatron.context_parallel_size": 2,
        }
    )
    assert mistakes(found.body) == ()
    engine = found.body["spec"]["trainer"]["engine"]
    assert engine["name"] == "megatron"
    assert engine["config"]["tensorParallel"] == 2
    assert engine["config"]["pipelineParallel"] == 4
    assert "packing" not in engine["config"]
    said = {left.key: left.why for left in found.ending.left}
    assert "does not have contextParallel" in said[f"{ACTOR}.megatron.context_parallel_size"]


def test_several_files_and_a_column() -> None:
    files = ["/data/a.parquet", "~/data/b.parquet"]
    found = converted(**{"data.train_files": files, "data.prompt_key": "question"})
    assert mistakes(found.body) == ()
    assert found.body["spec"]["data"]["sources"] == [
        {"name": "/data/a.parquet", "column": "question"},
        {"name": "/data/b.parquet", "column": "question"},
    ]


def test_a_value_of_another_setting_is_looked_up() -> None:
    changes = {"data.max_response_length": "${oc.select:data.other,96}", "data.seed": "${data.n}"}
    spec = converted(**changes, **{"data.n": 7}).body["spec"]
    assert spec["algorithm"]["sampling"]["maxTokens"] == 96
    assert spec["data"]["seed"] == 7


@pytest.mark.parametrize(
    ("experiment", "name"),
    [("Qwen2.5_3b", "qwen2-5-3b"), ("7b", "b"), ("-", "verl"), ("x" * 60, "x" * 43)],
)
def test_the_name_is_one_of_a_job(experiment: str, name: str) -> None:
    found = convert({**BASE, "trainer.experiment_name": experiment})
    assert found.body["metadata"]["name"] == name
    assert mistakes(found.body) == ()
