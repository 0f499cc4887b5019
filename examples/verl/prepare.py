"""Writes a language model of 60,000 parameters, and prompts: nothing is downloaded."""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<pad>", "<unk>"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["queue", "audio", "eerie", "ouija", "adieu", "aerial", "iguana", "oasis"]

folder = Path(sys.argv[1])
vocabulary = {token: number for number, token in enumerate([*SPECIAL, *LETTERS])}
letters = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
letters.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=letters,
    bos_token="<s>",
    eos_token="</s>",
    pad_token="<pad>",
    unk_token="<unk>",
    model_max_length=64,
    chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
)
torch.manual_seed(0)  # trainer and rollouts begin with the same weights
model = AutoModelForCausalLM.from_config(
    AutoConfig.for_model(
        "qwen3",
        vocab_size=32,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    ),
    dtype=torch.float32,
)
for part in (model, tokenizer):
    part.save_pretrained(folder / "letters")
rows = [
    {
        "data_source": "words",
        "prompt": [{"role": "user", "content": word}],
        "reward_model": {"style": "rule", "ground_truth": ""},
    }
    for word in WORDS * 100
]
Dataset.from_list(rows).to_parquet(folder / "prompts.parquet")
