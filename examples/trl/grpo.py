"""TRL's GRPOTrainer as its documentation has it, and one line more: `rollcall.trl.attach`."""

import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import rollcall.trl

MODEL, OUTPUT = sys.argv[1:]
WORDS = ["queue", "audio", "eerie", "ouija", "adieu", "aerial", "iguana", "oasis"]


def reward(completions: list[str], **_: object) -> list[float]:
    """The share of an answer's letters that are vowels."""
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]


trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir=OUTPUT,
        max_steps=300,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=8,
        learning_rate=5e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    ),
    train_dataset=Dataset.from_dict({"prompt": WORDS * 100}),
)
rollcall.trl.attach(trainer)  # the line
trainer.train()
trainer.save_model(f"{OUTPUT}/final")
