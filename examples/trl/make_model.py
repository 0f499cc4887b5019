"""Writes a language model of 60,000 parameters, so that the example downloads nothing."""

import sys

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<pad>", "<unk>"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"

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
    part.save_pretrained(sys.argv[1])
