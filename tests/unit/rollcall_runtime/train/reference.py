"""The single process that every training engine is compared with: plain torch, nothing sharded."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rollcall_protocol.job_config import LossConfig, OptimizerConfig
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from rollcall_runtime.train.losses import PolicyLoss, policy_loss
from rollcall_runtime.train.policy_update import UpdateStats
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_engine import EngineSetup
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
    return policy_loss(LossConfig(type="decoupled", clip=0.2, is_cap=5.0))


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

    def update(self, batch: TrainBatch) -> UpdateStats:
        """One optimizer step. Proximal log-probabilities must be there."""
        sums = loss()(ModelOutput(logprobs=self.logprobs(batch)), batch)
        tokens = int(batch.mask.sum())
        total = sums.loss / tokens
        self._optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        metrics = {name: float(value / count) for name, (value, count) in sums.metrics.items()}
        return UpdateStats(float(total.detach()), float(norm), tokens, metrics)

    def train(self, batch: TrainBatch) -> list[UpdateStats]:
        """What all ranks must do together with `batch` in MINIBATCHES steps."""
        with torch.no_grad():
            ready = [
                part.with_extras(proximal_logprobs=self.logprobs(part))
                for part in batch.split(MINIBATCHES)
            ]
        return [self.update(part) for part in ready]
