"""The reference: the policy that a KL term keeps the actor near to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcall_runtime.train.roles.gathered_outputs import gathered_outputs

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine


class Reference:
    """A second engine on the same ranks, without an optimizer.

    Its weights are those of its own source, such as the actor's before training. With
    `update_every` it `moves`: it takes the actor's after every so many steps, and checkpoints keep
    them. A trainer that recovers weights of a later step than its checkpoint's from the rollouts
    has the checkpoint's reference until the next time.
    """

    waited: float | None = None
    """It waits for no pod; see RemoteReference."""

    def __init__(self, engine: TrainEngine, *, update_every: int = 0) -> None:
        self.engine = engine
        self._update_every = update_every

    @property
    def moves(self) -> bool:
        """Whether its weights change."""
        return self._update_every > 0

    def logprobs(self, batch: TrainBatch) -> Tensor:
        """Collective. Log-probabilities of the targets, [rows, length]; 0 outside the mask."""
        return gathered_outputs(self.engine, batch, lambda output: output.logprobs)

    def step_ended(self, actor: TrainEngine, step: int) -> None:
        """Collective. Take the actor's weights, if they are due after `step`.

        Rank 0 holds a whole copy of them in host memory meanwhile.
        """
        if not self._update_every or step % self._update_every:
            return
        leads = actor.setup.ranks.rank == 0
        weights = {}
        for name, tensor in actor.named_weights():
            if leads:
                weights[name] = tensor.detach().to("cpu", copy=True)
        self.engine.load_weights(weights if leads else None)
