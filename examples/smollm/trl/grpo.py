"""TRL's GRPOTrainer on SmolLM2 as its documentation has it, and one line more.

The model learns to write a word's first letter.
"""

import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import rollcall.trl

MODEL, OUTPUT = sys.argv[1:]
ANIMALS = ["ant", "bear", "cow", "dog", "eagle", "fox", "goat", "horse", "iguana", "jackal"]
FRUIT = ["kiwi", "lemon", "mango", "nectarine", "olive", "peach", "quince", "raisin"]
WORDS = [*ANIMALS, *FRUIT]


def first_letter(completions: list[str], word: list[str], **_: object) -> list[float]:
    """Whether a completion's first line is the word's first letter."""
    lines = [text.strip().partition("\n")[0] for text in completions]
    return [float(line == word[0]) for line, word in zip(lines, word, strict=True)]


trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=first_letter,
    args=GRPOConfig(
        output_dir=OUTPUT,
        max_steps=30,
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=3,
        learning_rate=1e-5,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,  # the rollouts serve float32
    ),
    train_dataset=Dataset.from_dict(
        {"prompt": [f"cat: c\nhouse: h\n{word}:" for word in WORDS] * 20, "word": WORDS * 20}
    ),
)
rollcall.trl.attach(trainer)  # the line
trainer.train()
