"""The single process that every training engine is compared with: plain torch, nothing sharded."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rollcall_protocol.job_config import LossConfig, OptimizerConfig
from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from rollcall_runtime.train.batch import Batch
from rollcall_runtime.train.losses import PolicyLoss, policy_loss
from rollcall_runtime.train.process_group import TrainerRendezvous
from rollcall_runtime.train.train_engine import EngineSetup, UpdateStats

SEED = 3
LEARNING_RATE = 1e-3
MINIBATCHES = 2


def setup(rendezvous: TrainerRendezvous | None = None, **config: object) -> EngineSetup:
    """An engine that starts from the reference's weights."""
    return EngineSetup(
        model="builtin:reverse-tiny",
        optimizer=OptimizerConfig("adamw", LEARNING_RATE),
        config=config,
        seed=SEED,
        rendezvous=rendezvous or TrainerRendezvous(),
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

    def logprobs(self, batch: Batch) -> Tensor:
        logits = self.model(batch.tokens[:, :-1])
        found: Tensor = logits.log_softmax(-1).gather(-1, batch.tokens[:, 1:, None])[..., 0]
        return found

    def update(self, parts: Sequence[Batch]) -> UpdateStats:
        """One optimizer step on the rows of all `parts`, the minibatches of as many ranks.

        Proximal log-probabilities must be there.
        """
        sums = [loss()(self.logprobs(part), part) for part in parts]
        tokens = sum(int(part.mask.sum()) for part in parts)
        total = torch.stack([part.loss for part in sums]).sum() / tokens
        self._optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        metrics = {
            name: sum(float(part.metrics[name]) for part in sums) / tokens
            for name in sums[0].metrics
        }
        return UpdateStats(float(total.detach()), float(norm), tokens, metrics)

    def train(self, ranks: Sequence[Batch]) -> list[UpdateStats]:
        """What `ranks`, each with its batch, must do together in MINIBATCHES steps."""
        with torch.no_grad():
            ready = [batch.with_proximal(self.logprobs(batch)) for batch in ranks]
        steps = zip(*(batch.split(MINIBATCHES) for batch in ready), strict=True)
        return [self.update(parts) for parts in steps]
