"""The tiny models of the suite are what transformers makes of their directories."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollcall_runtime.tasks import reverse
from tests.process.engines.tiny_models import (
    ARCHITECTURES,
    LETTERS,
    Architecture,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
    write_tiny_model,
)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_loads_a_directory_as_the_model_that_was_made(
    tmp_path: Path, architecture: Architecture, tied: bool
) -> None:
    write_tiny_model(tmp_path / "m", architecture, tied=tied, seed=3)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    made = tiny_model(tiny_config(architecture, tied=tied), seed=3)
    tokens = torch.arange(20)[None]
    assert torch.equal(loaded(tokens).logits, made(tokens).logits)
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert ("lm_head.weight" in stored) is not tied


def test_the_seed_decides_the_weights_and_leaves_torchs_alone() -> None:
    state = torch.random.get_rng_state()
    one, same, other = (tiny_model(tiny_config(), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.lm_head.weight, same.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_every_tensor_is_random() -> None:
    for name, parameter in tiny_model(tiny_config("qwen2", tied=False)).named_parameters():
        assert parameter.std() > 0.01, name


def test_the_tokenizer_gives_back_any_printable_text(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "A cat's {hat}:  2 spaces\nand <s> is no text"
    tokens = tokenizer.encode("A cat's {hat}:  2 spaces\n", add_special_tokens=False)
    assert tokenizer.decode(tokens) == "A cat's {hat}:  2 spaces\n"
    assert len(tokens) == len("A cat's {hat}:  2 spaces\n")
    assert tokenizer.bos_token_id in tokenizer.encode(text)


def test_the_chat_template_ends_each_turn_and_begins_the_next() -> None:
    text = tiny_tokenizer().apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_with_letters_its_tokens_are_those_of_the_task_reverse() -> None:
    tokenizer = tiny_tokenizer(LETTERS)
    assert tokenizer.bos_token_id == reverse.BOS
    assert tokenizer.eos_token_id == reverse.EOS
    symbols = range(reverse.FIRST_SYMBOL, reverse.VOCABULARY)
    assert "".join(tokenizer.convert_ids_to_tokens(list(symbols))) == LETTERS


def test_weights_are_split_into_files_when_asked(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "m", shard_bytes=100_000)
    assert len(list((tmp_path / "m").glob("model-*.safetensors"))) > 2
    assert (tmp_path / "m" / "model.safetensors.index.json").is_file()
