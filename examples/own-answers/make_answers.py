"""Writes answers.jsonl: a thousand prompts of five symbols, each sorted."""

import json
import random
from pathlib import Path

BOS, SEP, EOS = 0, 1, 2
SYMBOLS = range(3, 13)  # the token numbers that builtin:reverse-tiny knows besides BOS, SEP and EOS
ANSWERS = 1000
LENGTH = 5


def answers() -> list[str]:
    """The lines of the file, always the same."""
    generator = random.Random(0)
    drawn = [generator.choices(SYMBOLS, k=LENGTH) for _ in range(ANSWERS)]
    return [
        json.dumps({"tokens": [BOS, *symbols, SEP], "completion": [*sorted(symbols), EOS]})
        for symbols in drawn
    ]


if __name__ == "__main__":
    Path(__file__).with_name("answers.jsonl").write_text("\n".join(answers()) + "\n")
