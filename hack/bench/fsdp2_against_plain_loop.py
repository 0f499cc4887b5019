"""The engine fsdp2 on one rank against a bare PyTorch loop: step time.

    python -m hack.bench.fsdp2_against_plain_loop [--rows 4] [--length 128] [--steps 10]

Both train a model of SmolLM2-135M's shape with the same tokens, cross-entropy, clipping and AdamW,
in turn, step by step; the loop is what a user writes with transformers and torch. Each is a process
with as many threads as the machine has cores. It fails if the sides' losses differ. The last line
is JSON.
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

SHAPE = "llama-135m"
TOLERANCE = 1e-4


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench.fsdp2_against_plain_loop")
    parser.add_argument("--rows", type=int, default=4, help="of a batch")
    parser.add_argument("--length", type=int, default=128, help="positions of a row")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    run = run_record(vars(options))
    shape = SHAPES[SHAPE]
    rows = RandomRows(options.rows, options.length, options.length, shape["vocab_size"])
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_random_model(Path(folder), SHAPE)
        loop = Side(folder, shape["model_type"], threads=options.threads)
        sides = {"fsdp2": replace(loop, engine="fsdp2"), "plain_loop": loop}
        figures = compare(sides, rows, steps=options.steps, tolerance=TOLERANCE)
    finish("fsdp2-against-plain-loop", run, {"parameters": parameters, "sides": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
