"""Writes prompts.jsonl: a thousand prompts of five symbols. Run `python make_prompts.py`."""

import json
import random
from pathlib import Path

BOS, SEP = 0, 1
SYMBOLS = range(3, 13)  # the token numbers that builtin:reverse-tiny knows besides BOS, SEP and EOS
PROMPTS = 1000
LENGTH = 5


def prompts() -> list[str]:
    """The lines of the file, always the same."""
    generator = random.Random(0)
    return [
        json.dumps({"tokens": [BOS, *generator.choices(SYMBOLS, k=LENGTH), SEP]})
        for _ in range(PROMPTS)
    ]


if __name__ == "__main__":
    Path(__file__).with_name("prompts.jsonl").write_text("\n".join(prompts()) + "\n")
