"""What an engine cannot do it refuses by the name of the setting, before any step."""

from typing import Any

import pytest

from rollcall_protocol.settings_reader import camel_case
from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import CONFIG, EngineOnRanks, Model, refusal

NOT_DEFAULT: dict[str, Any] = {
    "tensor_parallel": 2,
    "context_parallel": 2,
    "pipeline_parallel": 2,
    "sequence_parallel": True,
    "replicas": 2,
    "precision": "bf16",
    "activation_checkpointing": "full",
    "offload": "optimizer",
    "reshard_after_forward": True,
    "compile": True,
    "packing": True,
    "attention": "sdpa",
    "logprob_chunk": 8,
    "lora_rank": 2,
}


@pytest.mark.meshes(meshes.DP2)
@pytest.mark.parametrize("setting", NOT_DEFAULT)
def test_a_setting_that_the_engine_lacks(engine: EngineOnRanks, model: Model, setting: str) -> None:
    if setting in engine.facts().settings:
        pytest.skip(f"{engine.name} has {camel_case(setting)}")
    values = {setting: NOT_DEFAULT[setting]}
    error = refusal(lambda: engine.open_anyway(model("qwen3"), learning_rate=1e-3, **values))
    assert (error.type, error.field) == ("SpecError", f"{CONFIG}.{camel_case(setting)}")


@pytest.mark.meshes(meshes.DP2)
@pytest.mark.parametrize("setting", ["tensor_parallel", "context_parallel", "replicas"])
def test_ranks_that_do_not_divide_into_the_mesh(
    engine: EngineOnRanks, model: Model, setting: str
) -> None:
    if setting not in engine.facts().settings:
        pytest.skip(f"{engine.name} has no {camel_case(setting)}")
    values = {setting: 3}
    error = refusal(lambda: engine.open_anyway(model("qwen3"), learning_rate=1e-3, **values))
    assert error.type == "SpecError"
    assert error.field.startswith(CONFIG)
    assert camel_case(setting) in error.message


@pytest.mark.meshes(meshes.DP2)
@pytest.mark.parametrize("head", ["value", "sequence-classification"])
def test_a_head_that_the_engine_lacks(engine: EngineOnRanks, model: Model, head: str) -> None:
    if head in engine.facts().heads:
        pytest.skip(f"{engine.name} has the head {head}")
    error = refusal(lambda: engine.open_anyway(model("qwen3"), head=head))
    assert error.type == "SpecError"
    assert head in error.message


@pytest.mark.meshes(meshes.DP2)
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"optimizer": "sgd", "learning_rate": 0.1}, "spec.algorithm.optimizer.name"),
        ({"learning_rate": 0.0}, "spec.algorithm.optimizer.learningRate"),
    ],
)
def test_an_optimizer_that_does_not_exist(
    engine: EngineOnRanks, model: Model, wrong: dict[str, Any], field: str
) -> None:
    engine.facts()
    error = refusal(lambda: engine.open_anyway(model("qwen3"), **wrong))
    assert (error.type, error.field) == ("SpecError", field)


@pytest.mark.meshes(meshes.DP2)
def test_a_model_that_is_not_there(engine: EngineOnRanks, model: Model) -> None:
    engine.facts()
    error = refusal(lambda: engine.open_anyway(model("qwen3") / "absent", learning_rate=1e-3))
    assert (error.type, error.field) == ("SpecError", "spec.model.path")


@pytest.mark.meshes(meshes.DP2)
@pytest.mark.parametrize("targets", ["no_such", "embed_tokens"])
def test_adapters_of_layers_that_the_model_lacks(
    engine: EngineOnRanks, model: Model, targets: str
) -> None:
    if "lora_rank" not in engine.facts().settings:
        pytest.skip(f"{engine.name} has no loraRank")
    values: dict[str, Any] = {"lora_rank": 2, "lora_targets": targets}
    error = refusal(lambda: engine.open_anyway(model("qwen3"), learning_rate=1e-3, **values))
    assert (error.type, error.field) == ("SpecError", f"{CONFIG}.loraTargets")
    assert targets in error.message
