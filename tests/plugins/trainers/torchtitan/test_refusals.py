"""What the engine torchtitan refuses before it builds anything."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import Qwen3Config

from rollcall_plugins.trainers.torchtitan.decoder import build_decoder
from rollcall_plugins.trainers.torchtitan.engine import TorchtitanEngine
from rollcall_plugins.trainers.torchtitan.model_config import model_spec
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.train_engine import EngineSetup
from rollcall_runtime.worker.errors import SpecError

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("changed", "tensor_parallel", "named"),
    [
        ({}, 3, "num_attention_heads of 4"),
        ({}, 4, "num_key_value_heads of 2"),
        ({"intermediate_size": 65}, 2, "intermediate_size of 65"),
        ({"vocab_size": 49}, 2, "vocab_size of 49"),
    ],
)
def test_ranks_that_cannot_share_the_model_are_refused(
    changed: dict[str, int], tensor_parallel: int, named: str
) -> None:
    spec = model_spec(Qwen3Config(**cast("Any", SIZES | changed)).to_dict())
    settings = EngineSettings(tensor_parallel=tensor_parallel)
    with pytest.raises(SpecError, match=f"config.tensorParallel: .* cannot share .* {named}"):
        build_decoder(spec, None, settings, device=CPU)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"offload": "parameters"}, "config.offload: .* fsdp2 offloads parameters"),
        ({"context_parallel": 2}, "config.contextParallel"),
        ({"packing": True}, "config.packing"),
        ({"lora_rank": 4}, "config.loraRank"),
    ],
)
def test_a_setting_that_the_engine_lacks_is_refused(settings: dict[str, Any], named: str) -> None:
    ranks: Any = SimpleNamespace(size=2, device=CPU)
    setup = EngineSetup("unused", ranks, None, settings=EngineSettings(**settings))
    with pytest.raises(SpecError, match=named):
        TorchtitanEngine(setup)
