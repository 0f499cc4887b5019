"""A researcher's script: TRL's GRPOTrainer as its documentation has it, and one line more."""

# mypy: disable-error-code="attr-defined,arg-type,misc,union-attr,call-arg,operator"

import json
import sys

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

import rollcall.trl

MODEL, OUTPUT, SETTINGS = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
OWN_ROLLOUTS = SETTINGS.pop("own_rollouts", False)
ATTACH = SETTINGS.pop("attach", True)
KIND, LORA = SETTINGS.pop("kind", "GRPO"), SETTINGS.pop("lora", False)
CONFIGS = {"GRPO": GRPOConfig, "RLOO": RLOOConfig}
TRAINERS = {"GRPO": GRPOTrainer, "RLOO": RLOOTrainer}
PROMPTS = ["abcde", "bcdef", "cdefg", "defgh"]


def reward(completions: list[str], **_: object) -> list[float]:
    """The share of a's."""
    return [text.count("a") / max(1, len(text)) for text in completions]


def own_rollouts(prompts: list[str], trainer: GRPOTrainer) -> dict[str, object]:
    """A `rollout_func`, as those of environments are."""
    tokens = trainer.processing_class(text=prompts)["input_ids"]
    _, completions, logprobs, _ = trainer.vllm_generation.generate(
        prompts=tokens, images=None, num_generations=trainer.num_generations
    )
    sampled = [[first for first, *_ in sample] for sample in logprobs]
    return {"prompt_ids": tokens, "completion_ids": completions, "logprobs": sampled}


def main() -> None:
    arguments = {
        "output_dir": OUTPUT,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    trainer = TRAINERS[KIND](
        model=MODEL,
        reward_funcs=reward,
        args=CONFIGS[KIND](**(arguments | SETTINGS)),
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * 100}),
        **({"rollout_func": own_rollouts} if OWN_ROLLOUTS else {}),
        peft_config=LoraConfig(r=4, target_modules="all-linear") if LORA else None,
    )
    if ATTACH:
        rollcall.trl.attach(trainer)
    trainer.train()
    trainer.save_model(f"{OUTPUT}/final")


if __name__ == "__main__":
    main()
