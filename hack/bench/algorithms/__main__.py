"""Algorithms on the reverse task: reward of the rollouts' own samples, step by step.

`python -m hack.bench.algorithms [--names grpo,ppo] [--seeds N] [--steps N] [--chart FILE]`, without
a cluster, batches two versions old, each algorithm with its default settings (only the length that
dr-grpo divides by is that of the task). The last line is JSON.
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from hack.bench.algorithms.chart import draw
from hack.bench.algorithms.learning_curve import learning_curve
from hack.bench.run_record import caption, finish, run_end, run_record
from hack.svg_file import save
from rollcall_protocol.algorithm_settings import preset

NAMES = ("grpo", "dr-grpo", "rloo", "reinforce++", "ppo", "gspo", "cispo")
GOAL = 0.95
LAST = 10  # steps that the final reward is the mean of


def main() -> None:
    """Run each algorithm with each seed, and print what it reached."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench.algorithms")
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--chart", type=Path, help="an SVG file to write")
    arguments = parser.parse_args()
    names = arguments.names.split(",")
    for name in names:
        preset(name)  # an unknown one is refused before anything runs
    run = run_record({key: str(value) for key, value in vars(arguments).items()})
    runs = [(name, seed) for name in names for seed in range(arguments.seeds)]
    curves: dict[str, list[list[float]]] = {name: [] for name in names}
    with ProcessPoolExecutor(
        arguments.processes, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        found = pool.map(learning_curve, runs, [arguments.steps] * len(runs))
        for (name, seed), curve in zip(runs, found, strict=True):
            curves[name].append(curve)
            print(name, seed, describe(curve), flush=True)
    if arguments.chart is not None:
        save(draw(curves, goal=GOAL, caption=caption(run | run_end())), arguments.chart)
    finals = {name: [round(final(curve), 3) for curve in seeds] for name, seeds in curves.items()}
    reached = all(value >= GOAL for values in finals.values() for value in values)
    finish("algorithms", run, {"final_reward": finals, "goal": GOAL, "reached": reached})


def final(curve: list[float]) -> float:
    """Mean over the last steps."""
    return sum(curve[-LAST:]) / len(curve[-LAST:])


def describe(curve: list[float]) -> str:
    """What was reached, and when the goal first was."""
    first = next((step for step, reward in enumerate(curve) if reward >= GOAL), None)
    return f"{final(curve):.3f} at the end, {GOAL:g} first at step {first}"


if __name__ == "__main__":
    main()
