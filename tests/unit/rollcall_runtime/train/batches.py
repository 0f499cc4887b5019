"""Batches of random samples for the tests of this folder."""

import math
import random

from rollcall_protocol.wire.messages import Sample
from rollcall_runtime.tasks.reverse import prompt
from rollcall_runtime.train.algorithms.advantages import sample_advantages
from rollcall_runtime.train.policy_batch import policy_batch
from rollcall_runtime.train.train_batch import TrainBatch


def random_batch(*, seed: int, prompts: int = 4, group_size: int = 4) -> TrainBatch:
    """Responses of one to six tokens, with behaviour near a uniform policy's."""
    rng = random.Random(seed)

    def sample() -> Sample:
        count = rng.randint(1, 6)
        return Sample(
            tokens=tuple(rng.randrange(13) for _ in range(count)),
            logprobs=tuple(-math.log(13) + rng.uniform(-0.2, 0.2) for _ in range(count)),
            versions=(seed,) * count,
            reward=rng.random(),
        )

    tokens = [prompt(index, seed=seed) for index in range(prompts)]
    groups = [[sample() for _ in range(group_size)] for _ in tokens]
    batch = policy_batch(tokens, groups, version=seed)
    advantages = sample_advantages(
        batch.extras["rewards"],
        batch.extras["groups"],
        baseline="group-mean",
        normalisation="group-std",
    )
    return batch.with_extras(advantages=advantages)
