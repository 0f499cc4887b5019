"""Whether what was learnt stays: many more steps than it takes to learn. The last line is JSON.

`python -m hack.bench.learning_stability [--seeds N] [--steps N]`, one process, batches two versions
old; reward is that of the rollout's own samples.
"""

import argparse

from hack.bench.run_record import finish, run_record
from tests.unit.rollcall_runtime.train.test_learning import learn

LEARNT = 500  # steps until it surely is
GOOD = 0.9


def main() -> None:
    """Of each seed: steps after the first LEARNT whose samples were not good, and the worst."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench.learning_stability")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    run = run_record(vars(arguments))
    found = {}
    for seed in range(arguments.seeds):
        later = learn(staleness=2, steps=arguments.steps, seed=seed).rewards[LEARNT:]
        bad = sum(reward < GOOD for reward in later)
        found[seed] = {"steps": len(later), "not_good": bad, "worst": round(min(later), 3)}
        print(seed, found[seed], flush=True)
    finish("learning-stability", run, {"seeds": found})


if __name__ == "__main__":
    main()
