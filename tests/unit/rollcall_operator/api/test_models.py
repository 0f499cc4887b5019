"""The models: defaults, and the rules as Python applies them."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from rollcall_operator.api.algorithm import AlgorithmSettingsSpec, AlgorithmSpec
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.rolloutpool import RolloutPoolSpec
from rollcall_operator.api.rules import VALIDATIONS
from rollcall_operator.api.scalars import JOB_NAME_MAX, dns_label
from rollcall_protocol.algorithm_settings import PRESETS, AlgorithmSettings
from tests.apiserver.bad_manifests.manifests import Changes, changed, job, pool


def read(changes: Changes | None = None) -> RLJobSpec:
    return RLJobSpec.model_validate(changed(job(), changes or {})["spec"])


def test_a_short_job_gets_sensible_defaults() -> None:
    spec = read()
    assert spec.algorithm is not None
    assert spec.rollouts is not None
    assert spec.suspend is False
    assert (spec.trainer.replicas, spec.trainer.engine.name) == (1, "fsdp2")
    assert (spec.algorithm.group_size, spec.algorithm.prompts_per_step) == (16, 16)
    assert (spec.algorithm.name, spec.algorithm.settings.clip_low) == ("grpo", None)
    assert (spec.trainer.processes_per_pod, spec.trainer.device) == (None, "auto")
    assert (spec.weight_sync.engine, spec.weight_sync.bucket_size) == ("auto", "64Mi")
    assert spec.weight_sync.enabled is True
    assert (spec.membership.settle_seconds, spec.membership.min_rollouts) == (1, 1)
    assert (spec.failure_policy.max_restarts, spec.clean_pod_policy) == (3, "All")
    assert spec.rollouts[0].drain.timeout_seconds == 30


def test_the_schema_has_the_same_defaults() -> None:
    schema = RLJobSpec.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    assert schema["properties"]["weightSync"]["default"] == {}
    assert definitions["WeightSyncSpec"]["properties"]["bucketSize"]["default"] == "64Mi"
    assert definitions["AlgorithmSpec"]["properties"]["settings"]["default"] == {}


@pytest.mark.parametrize("name", ["tiny", "example.com/fast", "acme.engine", "acme.tools/engine_2"])
def test_engines_are_builtin_or_have_a_qualified_name(name: str) -> None:
    rollouts = read({"spec.rollouts[0].engine.name": name}).rollouts
    assert rollouts is not None
    assert rollouts[0].engine.name == name


@pytest.mark.parametrize("name", ["", "Tiny", "fast", "acme.", ".acme", "a..b", "a b"])
def test_other_engines_are_unknown(name: str) -> None:
    with pytest.raises(ValidationError):
        read({"spec.rollouts[0].engine.name": name})


@pytest.mark.parametrize("value", ["0.2", "2e-1", "1", "0.000001", "1E-2", "0", "0.0"])
def test_decimal_strings(value: str) -> None:
    algorithm = read({"spec.algorithm.settings.clipLow": value}).algorithm
    assert algorithm is not None
    assert algorithm.settings.clip_low == value


@pytest.mark.parametrize("value", [0.2, 1, "", ".2", "0,2", "1e", "-0.1", "1.1", "0x1", " 1"])
def test_other_decimals_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        read({"spec.algorithm.settings.clipLow": value})


@pytest.mark.parametrize("value", ["0", "0.0", "0e1", "11"])
def test_a_learning_rate_is_above_0(value: str) -> None:
    with pytest.raises(ValidationError):
        read({"spec.algorithm.optimizer.learningRate": value})


def test_the_algorithms_and_their_settings_are_those_of_the_workers() -> None:
    names = get_args(AlgorithmSpec.model_fields["name"].annotation)
    assert set(names) == set(PRESETS)
    assert (
        AlgorithmSettingsSpec.model_fields.keys() == AlgorithmSettings.__dataclass_fields__.keys()
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"objective": "trpo"}, "Input should be 'ppo', 'gspo', 'cispo' or 'policy-gradient'"),
        ({"discount": "1.1"}, "must be a decimal string from 0.0 to 1.0"),
        ({"klCoefficient": "1001"}, "must be a decimal string from 0.0 to 1000.0"),
        ({"correctionCap": "0.9"}, "must be a decimal string from 1.0 to 1000.0"),
        ({"dynamicSamplingLimit": 1001}, "less than or equal to 1000"),
        ({"dynamicSampling": "yes"}, "valid boolean"),
    ],
)
def test_a_setting_outside_of_the_workers_range_is_refused(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        read({"spec.algorithm.settings": settings})


@pytest.mark.parametrize("value", ["4Ki", "64Mi", "1Gi", "1e6", "1048576", "4Gi"])
def test_bucket_sizes(value: str) -> None:
    assert read({"spec.weightSync.bucketSize": value}).weight_sync.bucket_size == value


@pytest.mark.parametrize("value", ["64MB", "64", "5Gi", "0.5", "4096.5", "-64Mi", 64])
def test_other_bucket_sizes_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        read({"spec.weightSync.bucketSize": value})


@pytest.mark.parametrize(
    "path", ["builtin:reverse-tiny", "/models/mine", "Qwen/Qwen3-0.6B", "gpt2"]
)
def test_model_paths(path: str) -> None:
    assert read({"spec.model.path": path}).model.path == path


@pytest.mark.parametrize(
    "name",
    [
        *("builtin:reverse", "/data/a.jsonl", "/data/v1.2/a.parquet", "/data/saved", "org/prompts"),
        *("/data/a.jsonl.gz", "/data/a.json", "/data/a.csv", "/data/a.csv.gz", "/data/a.ndjson"),
    ],
)
def test_sources_of_prompts(name: str) -> None:
    data = read({"spec.data.prompts": name}).data
    assert data is not None
    assert data.prompts == name


@pytest.mark.parametrize(
    "name", ["", "data.jsonl.gz/", "/data/a.txt", "/data/a.parquet.gz", "./a.jsonl", "a/b/c"]
)
def test_other_sources_of_prompts_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        read({"spec.data.prompts": name})


@pytest.mark.parametrize("function", ["a.b:c", "rewards:score", "math-verify", "mathverify"])
def test_reward_functions(function: str) -> None:
    reward = read({"spec.reward.function": function}).reward
    assert reward is not None
    assert reward.function == function


@pytest.mark.parametrize(
    ("low", "number", "high", "fine"),
    [
        (None, 3, None, True),
        (1, 1, 1, True),
        (0, 0, 5, True),
        (2, 1, None, False),
        (None, 3, 2, False),
        (3, 3, 2, False),
    ],
)
def test_bounds_of_replicas(low: int | None, number: int, high: int | None, *, fine: bool) -> None:
    bounds = {"spec.minReplicas": low, "spec.maxReplicas": high}
    given = {path: value for path, value in bounds.items() if value is not None}
    body = changed(pool(), {"spec.replicas": number, **given})["spec"]
    if fine:
        assert RolloutPoolSpec.model_validate(body).replicas == number
    else:
        with pytest.raises(ValidationError):
            RolloutPoolSpec.model_validate(body)


def test_nothing_is_coerced() -> None:
    for wrong in ({"spec.suspend": "true"}, {"spec.trainer.replicas": "1"}):
        with pytest.raises(ValidationError):
            read(wrong)


@pytest.mark.parametrize("name", ["a", "a-1", "a" * JOB_NAME_MAX])
def test_labels(name: str) -> None:
    dns_label(JOB_NAME_MAX, "w").check(name)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "1a", "a" * (JOB_NAME_MAX + 1)])
def test_other_labels_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at most 43 characters"):
        dns_label(JOB_NAME_MAX, "w").check(name)


def test_what_the_trainer_is_made_of_does_not_change_while_it_runs() -> None:
    all_rules = RLJobSpec.model_json_schema(by_alias=True)[VALIDATIONS]
    rules = [rule for rule in all_rules if "oldSelf" in rule["rule"]]
    frozen = {rule["fieldPath"] for rule in rules}
    assert frozen == {
        ".model",
        ".trainer.engine.name",
        ".trainer.kind",
        ".data",
        ".reward",
        ".environment",
        ".trainer.replicas",
        ".trainer.processesPerPod",
        ".trainer.device",
        ".trainer.checkpoint",
        ".trainer.recoverFrom",
        ".reference.path",
        ".reference.updateEvery",
        ".reference.template",
        ".front",
        ".critic",
        ".rewardModel",
        ".health",
        ".evaluation",
        ".tracking",
        ".observe",
        ".algorithm",
        ".supervised",
        ".weightSync",
        ".membership",
        ".tls.enabled",
        ".tls.secretName",
    }
    for_good = {rule["fieldPath"] for rule in rules if "oldSelf.suspend" not in rule["rule"]}
    assert for_good == {".model", ".trainer.engine.name", ".trainer.kind"}
