"""Tiny language models in Hugging Face's format, made on the spot from a configuration and a seed.

Nothing is downloaded. All weights are random, norms and biases too, so that a tensor in the wrong
place shows in the logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from pathlib import Path

Architecture = Literal["qwen3", "qwen2", "llama"]
ARCHITECTURES: tuple[Architecture, ...] = ("qwen3", "qwen2", "llama")

# The first three have the numbers of BOS, SEP and EOS in `tasks.reverse`, so that with LETTERS the
# task's ten symbols are the letters a to j.
SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>")
LETTERS = "abcdefghij"
PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"
POSITIONS = 256

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] + '\n' + message['content'] }}<|im_end|>{{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\n' }}{%- endif -%}
"""


def tiny_tokenizer(characters: str = PRINTABLE) -> PreTrainedTokenizerFast:
    """One token a character; ends a turn with <|im_end|>, which is its end of a response, too."""
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *characters))}
    vocabulary |= {"<pad>": len(vocabulary), "<unk>": len(vocabulary) + 1}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token in (*SPECIAL, "<pad>", "<unk>")
        ]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def tiny_config(
    architecture: Architecture = "qwen3", *, tied: bool = True, vocabulary: int = 104
) -> Any:
    """Two layers of width 64, four query heads on two key and value heads.

    Heads of Qwen3 have width 32, more than width / heads, as in its small models on the hub.
    """
    own: dict[str, Any] = {"head_dim": 32} if architecture == "qwen3" else {}
    return AutoConfig.for_model(
        architecture,
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=None,
        **own,
    )


def tiny_model(config: Any, *, seed: int = 0, spread: float = 0.1) -> Any:
    """A language model in fp32; weights vary by `spread` around 0, those of norms around 1."""
    with torch.random.fork_rng(devices=[]):
        model = cast("Any", AutoModelForCausalLM).from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # a tied parameter comes once
            centre = 1.0 if "norm" in name else 0.0
            parameter.normal_(centre, spread, generator=generator)
    return model.eval()


def write_tiny_model(
    directory: Path,
    architecture: Architecture = "qwen3",
    *,
    tied: bool = True,
    seed: int = 0,
    spread: float = 0.1,
    characters: str = PRINTABLE,
    dtype: torch.dtype = torch.float32,
    shard_bytes: int | None = None,
) -> Path:
    """Write model, configuration, tokenizer and chat template; returns `directory`.

    The vocabulary is the tokenizer's, rounded up to a multiple of 8. `shard_bytes` writes several
    files with an index, none larger than this unless a tensor is. `spread` 0.02 makes a first
    policy that is nearly uniform, as training from nothing needs it.
    """
    tokenizer = tiny_tokenizer(characters)
    vocabulary = -(-len(tokenizer) // 8) * 8
    config = tiny_config(architecture, tied=tied, vocabulary=vocabulary)
    model = tiny_model(config, seed=seed, spread=spread).to(dtype)
    size = {} if shard_bytes is None else {"max_shard_size": shard_bytes}
    model.save_pretrained(directory, **size)
    tokenizer.save_pretrained(directory)
    return directory


def write_model(directory: Path, architecture: str, **own: Any) -> Path:
    """Write a tiny model of any architecture that transformers knows, with 16 tokens."""
    sizes: dict[str, Any] = {
        "vocab_size": 16,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    tiny_model(AutoConfig.for_model(architecture, **sizes | own)).save_pretrained(directory)
    return directory
