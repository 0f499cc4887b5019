"""Packed rows against padded ones, of lengths that vary by 8: tokens a second, padding not counted.

    python -m hack.bench.packing_against_padding [--rows 16] [--steps 6] [--microbatch 2048]

Logarithms of the lengths are uniformly distributed. Three engines fsdp2 on one rank, with as many
threads as the machine has cores, train the same Qwen3 of 20 million parameters in turn, step by
step:

- whole_batch: the default settings; all rows are padded to the longest of the batch.
- like_lengths: maxTokensPerMicrobatch, with which the engine sorts rows by length before it cuts
  them into micro-batches.
- packed: the same with packing.

It fails if the losses differ. The last line is JSON; step_time_ratio is how many times as long as
the packed step a padded one takes, which is also how many times fewer tokens a second it trains on.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from hack.bench.run_record import finish, run_record
from hack.bench.training.comparison import compare
from hack.bench.training.random_models import SHAPES, write_random_model
from hack.bench.training.random_rows import RandomRows
from hack.bench.training.side_processes import Side

SHAPE = "qwen3-20m"
SHORTEST, LONGEST = 64, 512
TOLERANCE = 1e-4


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench.packing_against_padding")
    parser.add_argument("--rows", type=int, default=16, help="of a batch")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--microbatch", type=int, default=2048, help="positions at most")
    options = parser.parse_args()
    run = run_record(vars(options))
    shape = SHAPES[SHAPE]
    rows = RandomRows(options.rows, SHORTEST, LONGEST, shape["vocab_size"])
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_random_model(Path(folder), SHAPE)
        whole = Side(folder, shape["model_type"], engine="fsdp2", threads=options.threads)
        bounded = {"max_tokens_per_microbatch": options.microbatch}
        sides = {
            "whole_batch": whole,
            "like_lengths": replace(whole, settings=bounded),
            "packed": replace(whole, settings={**bounded, "packing": True}),
        }
        figures = compare(sides, rows, steps=options.steps, tolerance=TOLERANCE)
    finish("packing-against-padding", run, {"parameters": parameters, "sides": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
