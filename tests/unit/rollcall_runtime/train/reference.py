"""The single process that every training engine is compared with: plain torch, nothing sharded."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rollcall_protocol.algorithm_settings import AlgorithmSettings
from rollcall_protocol.job_config import OptimizerConfig
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from rollcall_runtime.train.algorithms.policy_loss import PolicyLoss
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.roles.actor import Actor
from rollcall_runtime.train.roles.model_update import ModelUpdate
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_engine import EngineSetup, TrainEngine
from rollcall_runtime.train.train_loss import ModelOutput

SEED = 3
LEARNING_RATE = 1e-3
MINIBATCHES = 2


def setup(
    ranks: TrainerProcessGroup, *, learning_rate: float = LEARNING_RATE, **settings: Any
) -> EngineSetup:
    """An engine that starts from the reference's weights."""
    return EngineSetup(
        model="builtin:reverse-tiny",
        ranks=ranks,
        optimizer=OptimizerConfig("adamw", learning_rate),
        settings=EngineSettings(**settings),
        seed=SEED,
    )


def loss() -> PolicyLoss:
    return PolicyLoss(AlgorithmSettings())


def update_policy(
    engine: TrainEngine, batch: TrainBatch, *, minibatches: int = MINIBATCHES
) -> list[ModelUpdate]:
    """Collective. What the actor does with a batch, on an engine."""
    return Actor(engine, AlgorithmSettings(), minibatches=minibatches).update(batch)


class Reference:
    """Model and optimizer of the comparison."""

    def __init__(self) -> None:
        self.model = TinyDecoder.seeded(TinyConfig(), seed=SEED)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0
        )

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return self.model.state_dict()

    def logprobs(self, batch: TrainBatch) -> Tensor:
        logits = self.model(batch.tokens)
        found: Tensor = logits.log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0]
        return found

    def update(self, batch: TrainBatch) -> ModelUpdate:
        """One optimizer step. Proximal log-probabilities must be there."""
        sums = loss()(ModelOutput(logprobs=self.logprobs(batch)), batch)
        tokens = int(batch.mask.sum())
        total = sums.loss / tokens
        self._optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        metrics = {name: float(value / count) for name, (value, count) in sums.metrics.items()}
        metrics |= {name: float(value) for name, value in sums.maxima.items()}
        return ModelUpdate(float(total.detach()), float(norm), LEARNING_RATE, tokens, metrics)

    def train(self, batch: TrainBatch) -> list[ModelUpdate]:
        """What all ranks must do together with `batch` in MINIBATCHES steps."""
        with torch.no_grad():
            ready = [
                part.with_extras(proximal_logprobs=self.logprobs(part))
                for part in batch.split(MINIBATCHES)
            ]
        return [self.update(part) for part in ready]


def assert_trained_alike(name: str, found: Tensor, expected: Tensor) -> None:
    """AssertionError unless a parameter of TinyDecoder came out of the same steps.

    Biases of keys are left out: the same number added to all scores of a query changes no
    attention, so that their gradient is zero but for rounding, which AdamW divides by its own size.
    """
    if name.endswith("qkv.bias"):
        found, expected = (torch.cat([t.chunk(3)[0], t.chunk(3)[2]]) for t in (found, expected))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
