"""One step of policy training: the role that knows about proximal policies, on any engine."""

from rollcall_runtime.train.batch import Batch
from rollcall_runtime.train.losses import PolicyLoss
from rollcall_runtime.train.train_engine import TrainEngine, UpdateStats


def update_policy(
    engine: TrainEngine, batch: Batch, *, loss: PolicyLoss, minibatches: int
) -> list[UpdateStats]:
    """Collective. Train on `batch` (this rank's rows) in `minibatches` optimizer steps.

    The proximal policy is the one before the first step. For the first minibatch that is the policy
    in training itself, so only the others cost another forward pass.
    """
    first, *others = batch.split(minibatches)
    if loss.uses_proximal and others:
        rest = batch.slice(first.rows, batch.rows)
        others = rest.with_proximal(engine.infer(rest)).split(len(others))
    return engine.train_batch([first, *others], loss)
