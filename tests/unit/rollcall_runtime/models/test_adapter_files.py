"""Adapters are written as PEFT reads them, with the tensors that a model's layers want."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForCausalLM

from rollcall_protocol.adapter_config import AdapterConfig
from rollcall_runtime.models.adapter_files import CONFIG_FILE, adapter_shapes, write_adapter
from rollcall_runtime.models.open_model import open_model
from tests.process.engines.tiny_models import write_tiny_model

# peft asks transformers by a former name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
TOKENS = torch.randint(0, 100, (2, 9), generator=torch.Generator().manual_seed(0))


TARGETS = ["q_proj", "down_proj", "self_attn.v_proj", "layers.1.mlp.up_proj"]


@pytest.mark.parametrize("target", TARGETS)
def test_the_tensors_are_those_that_peft_makes(tmp_path: Path, target: str) -> None:
    directory = write_tiny_model(tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(directory)
    made = get_peft_model(model, LoraConfig(r=3, target_modules=[target]))
    expected = {name: tuple(t.shape) for name, t in get_peft_model_state_dict(made).items()}
    config = AdapterConfig(3, 6.0, (target,))
    assert adapter_shapes(open_model(str(directory)).weights().shapes, config) == expected


def test_a_layer_is_meant_by_whole_names() -> None:
    shapes = {"a.gate_up_proj.weight": (8, 4), "a.up_proj.bias": (8,), "norm_up_proj.weight": (8,)}
    assert adapter_shapes(shapes, AdapterConfig(2, 2.0, ("up_proj",))) == {}


def test_peft_loads_what_is_written(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m")
    source, config = open_model(str(directory)), AdapterConfig(3, 4.5, ("q_proj", "o_proj"))
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.3
        for name, shape in adapter_shapes(source.weights().shapes, config).items()
    }
    (tmp_path / "out").mkdir()
    write_adapter(tmp_path / "out", tensors, config, base="org/model")
    merged = source.build().requires_grad_(requires_grad=False)
    plain = merged(TOKENS).logits
    for name, down in tensors.items():
        if ".lora_A." in name:
            layer = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            up = tensors[name.replace(".lora_A.", ".lora_B.")]
            merged.get_parameter(layer).add_(4.5 / 3 * (up @ down))
    library = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(directory), tmp_path / "out"
    )
    found = library(input_ids=TOKENS).logits
    torch.testing.assert_close(found, merged(TOKENS).logits, atol=1e-5, rtol=0)
    assert not torch.allclose(found, plain, atol=1e-2)
    values = json.loads((tmp_path / "out" / CONFIG_FILE).read_text())
    assert values["base_model_name_or_path"] == "org/model"
