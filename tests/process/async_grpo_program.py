"""TRL's AsyncGRPOTrainer, through its own plug-in points alone."""

# mypy: disable-error-code="attr-defined,arg-type,assignment"

import sys
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoTokenizer
from trl.chat_template_utils import qwen3_chat_template
from trl.experimental.async_grpo import (
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    async_grpo_trainer,
    async_rollout_worker,
    packing,
)

import rollcall.trl


def attend(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, starts_k: Tensor, *_: int, **how: Any
) -> Tensor:
    """In the place of flash-attn's kernel for GPUs."""
    groups, found = query.shape[1] // key.shape[1], []
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    for n in range(len(starts) - 1):
        q = query[starts[n] : starts[n + 1]]
        k, v = (x[starts_k[n] : starts_k[n + 1]] for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", q, k) * how["softmax_scale"]
        before = torch.ones(scores.shape[1:], dtype=torch.bool).tril(len(k) - len(q))
        weights = scores.masked_fill(~before, float("-inf")).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(found)


# It asks a GPU how fast it is, and for vLLM's package, of which it then uses nothing here.
async_grpo_trainer.get_peak_flops_per_device = lambda *_: 1e12
async_rollout_worker.is_vllm_available = lambda *_, **__: True
packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attend)

MODEL, OUTPUT, FRONT = sys.argv[1:]
PROMPTS = [[{"role": "user", "content": text}] for text in ("abcde", "bcdef", "cdefg", "defgh")]


def reward(completions: list[list[dict[str, str]]], **_: object) -> list[float]:
    """The share of letters."""
    texts = [messages[-1]["content"] for messages in completions]
    return [sum(map(str.isalpha, text)) / max(1, len(text)) for text in texts]


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.chat_template = qwen3_chat_template  # one that TRL knows how to read answers of
    trainer = AsyncGRPOTrainer(
        model=MODEL,
        processing_class=tokenizer,
        reward_funcs=reward,
        args=AsyncGRPOConfig(
            output_dir=OUTPUT,
            max_steps=40,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            learning_rate=1e-2,
            vllm_server_base_url=FRONT,
            report_to="none",
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * 100}),
        weight_transfer=rollcall.trl.WeightTransfer(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
