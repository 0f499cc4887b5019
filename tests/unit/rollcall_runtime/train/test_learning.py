"""The reverse task is learnt, and only because the rollouts get the new weights.

All in one process: the tiny engine samples, fsdp2 trains. Reward is that of those
samples, never the trainer's own, which would rise without any weight sync.
"""

from collections import deque
from dataclasses import dataclass

import pytest

from rollcall_protocol.algorithm_settings import AlgorithmSettings
from rollcall_protocol.job_config import OptimizerConfig
from rollcall_protocol.wire.messages import Sample
from rollcall_runtime.rollout.engines.tiny_engine import TinyEngine
from rollcall_runtime.tasks import reverse
from rollcall_runtime.tasks.reward_function import load_reward
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.policy_batch import policy_batch
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.roles.build_roles import build_policy_step
from rollcall_runtime.train.roles.policy_step import PolicyStep
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_engine import EngineSetup
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.rollout.engine_driver import EngineDriver

PROMPTS, GROUP_SIZE, STEPS = 16, 16, 130
MODEL = "builtin:reverse-tiny"
reward = load_reward("rollcall_runtime.tasks.reverse:reward")


@dataclass(frozen=True)
class Run:
    """Mean reward of each step's samples, and the staleness that batches had in training."""

    rewards: list[float]
    staleness: set[int]

    @property
    def final(self) -> float:
        """Mean over the last ten steps."""
        return sum(self.rewards[-10:]) / 10


def sample(rollout: EngineDriver, step: int, seed: int) -> tuple[TrainBatch, float, int]:
    """A batch, its mean reward, and the version that the rollout sampled it with."""
    numbers = range(step * PROMPTS, (step + 1) * PROMPTS)
    prompts = [reverse.prompt(number, seed=seed) for number in numbers]
    groups = [
        [Sample(g.tokens, g.logprobs, g.versions, reward(prompt, g.tokens)) for g in generations]
        for prompt, generations in zip(
            prompts,
            rollout.sample(prompts, group_size=GROUP_SIZE, seed=step),
            strict=True,
        )
    ]
    mean = sum(s.reward for group in groups for s in group) / (PROMPTS * GROUP_SIZE)
    (version,) = {version for group in groups for s in group for version in s.versions}
    return policy_batch(prompts, groups, version=step), mean, version


def policy(ranks: TrainerProcessGroup, settings: AlgorithmSettings, seed: int) -> PolicyStep:
    """The roles that the settings need, with engines of this process."""
    job = job_config(algorithm={"settings": settings}, model=MODEL)
    setup = EngineSetup(MODEL, ranks, OptimizerConfig("adamw", 1e-3), seed=seed)
    return build_policy_step(job, setup, Fsdp2Engine, minibatches=2)


def learn(
    *,
    staleness: int,
    sync: bool = True,
    steps: int = STEPS,
    seed: int = 0,
    settings: AlgorithmSettings | None = None,
) -> Run:
    """Train on batches that are `staleness` versions old, two minibatches each."""
    ranks = TrainerProcessGroup()
    step_of = policy(ranks, settings or AlgorithmSettings(), seed)
    trainer = step_of.actor.engine
    rollout = EngineDriver(TinyEngine(model=MODEL))
    waiting: deque[tuple[int, TrainBatch]] = deque()
    rewards: list[float] = []
    found: set[int] = set()
    for engine in step_of.engines:
        engine.initialize()
    try:
        version = 0
        rollout.load_weights(trainer.named_weights(), version=version)
        for step in range(steps):
            batch, mean, served = sample(rollout, step, seed)
            rewards.append(mean)
            waiting.append((served, batch))
            if len(waiting) > staleness:
                sampled, batch = waiting.popleft()
                found.add(version - sampled)
                step_of.run(batch, step=version)
                version += 1
                if sync:
                    rollout.load_weights(trainer.named_weights(), version=version)
    finally:
        rollout.close()
        for engine in step_of.engines:
            engine.close()
        ranks.close()
    return Run(rewards, found)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 2])
def test_the_rollouts_samples_reach_the_reward(staleness: int) -> None:
    run = learn(staleness=staleness)
    assert run.rewards[0] < 0.15
    assert max(run.staleness) == staleness
    assert run.final >= 0.9


@pytest.mark.slow
def test_without_new_weights_the_rollouts_learn_nothing() -> None:
    run = learn(staleness=0, sync=False)
    assert max(run.staleness) == STEPS - 1
    assert run.final < 0.3
