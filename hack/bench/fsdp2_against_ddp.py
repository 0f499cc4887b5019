"""The engine fsdp2 on two ranks against torch's DistributedDataParallel: step time and memory.

    python -m hack.bench.fsdp2_against_ddp [--rows 8] [--length 128] [--steps 12]

Both train the same Qwen3 of 20 million parameters with the same tokens, cross-entropy, clipping and
AdamW, in turn, step by step; the plain side is what a user writes with transformers. Each rank is a
process with one thread. Memory is the most that was resident at once, in all and beyond what the
imports take. It fails if the sides' losses differ. The last line is JSON.
"""

import argparse
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
RANKS = 2
TOLERANCE = 1e-4


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench.fsdp2_against_ddp")
    parser.add_argument("--rows", type=int, default=8, help="of a batch, for all ranks together")
    parser.add_argument("--length", type=int, default=128, help="positions of a row")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    run = run_record(vars(options))
    rows = RandomRows(options.rows, options.length, options.length, SHAPES[SHAPE]["vocab_size"])
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_random_model(Path(folder), SHAPE)
        ddp = Side(folder, SHAPES[SHAPE]["model_type"], ranks=RANKS)
        fsdp2 = replace(ddp, engine="fsdp2")
        again = replace(fsdp2, settings={"reshard_after_forward": True})
        sides = {"fsdp2": fsdp2, "fsdp2_reshard_after_forward": again, "ddp": ddp}
        figures = compare(sides, rows, steps=options.steps, tolerance=TOLERANCE)
    finish("fsdp2-against-ddp", run, {"parameters": parameters, "sides": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
