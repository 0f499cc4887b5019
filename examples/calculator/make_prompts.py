"""Writes prompts.jsonl: all pairs of digits whose sum is a digit. Run `python make_prompts.py`."""

import json
from pathlib import Path

BOS, SEP, FIRST_DIGIT = 0, 1, 3  # of builtin:reverse-tiny


def prompts() -> list[str]:
    """The lines of the file, always the same."""
    return [
        json.dumps(
            {"tokens": [BOS, FIRST_DIGIT + a, FIRST_DIGIT + b, SEP], "first": a, "second": b}
        )
        for a in range(10)
        for b in range(10 - a)
    ]


if __name__ == "__main__":
    Path(__file__).with_name("prompts.jsonl").write_text("\n".join(prompts()) + "\n")
