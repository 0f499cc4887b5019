"""A trainer that records responses in every second block of steps alone.

`python -m hack.bench.local_jobs.alternating_trainer`, in the place of `rollcall-trainer`: what
recording costs shows between neighbouring blocks of one run, on a machine whose speed varies.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from rollcall_runtime.cli import trainer_program
from rollcall_runtime.train import trainer_rank
from rollcall_runtime.train.samples.sample_choice import chosen_groups

BLOCK = 7  # steps; checkpoints, each 20 steps, fall upon both kinds alike


def records(step: int) -> bool:
    """Whether responses of this step are recorded."""
    return step // BLOCK % 2 == 1


def ratios(ended: Mapping[int, float]) -> list[float]:
    """Speed of each block that records to that of the two around it.

    `ended`: when each step ended, in seconds, without gaps.
    """
    first, last = min(ended), max(ended)
    blocks = range(-(-(first + 1) // BLOCK), (last + 1) // BLOCK)
    took = {
        number: ended[BLOCK * (number + 1) - 1] - ended[BLOCK * number - 1] for number in blocks
    }
    return [
        (took[number - 1] + took[number + 1]) / 2 / took[number]
        for number in blocks[1:-1]
        if records(BLOCK * number)
    ]


def main() -> None:
    def alternating(recording: Any, *, step: int, prompts: Sequence[int]) -> list[bool]:
        if records(step):
            return chosen_groups(recording, step=step, prompts=prompts)
        return [False] * len(prompts)

    with patch.object(trainer_rank, "chosen_groups", alternating):
        trainer_program()


if __name__ == "__main__":
    main()
