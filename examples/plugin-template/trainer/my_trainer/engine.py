"""A training engine to start from, for one PyTorch module: fill the places marked FILL.

The base class opens the model, computes micro-batches and losses, makes optimizer steps, and writes
checkpoints. It sends and loads weights that are whole on every rank, or DTensors: one that divides
them otherwise overrides `named_weights` and what stands beside it. An engine that is not of
this kind derives from `train.train_engine.TrainEngine`.
"""

from typing import ClassVar

from torch import nn

from rollcall_protocol.train_settings import COMMON
from rollcall_runtime.models.weight_loading import WeightReader
from rollcall_runtime.train.engines.common.module_engine import ModuleEngine


class MyTrainer(ModuleEngine):
    """`settings_known`: settings that this engine heeds; it refuses any other by name."""

    settings_known: ClassVar[frozenset[str]] = COMMON | {"activation_checkpointing"}

    def _shard(self, module: nn.Module, weights: WeightReader) -> nn.Module:
        """Give `module` to this rank, whole or a part of it, on `self.setup.ranks.device`.

        Its parameters are empty, and get the values of `weights`, which has the names of
        `module.model`. `self.gradient_scale` is what a loss is multiplied by before its backward
        pass: the number of ranks, if your library takes the mean of their gradients.
        """
        raise NotImplementedError("FILL 1: put the model on this rank's device")

    def _clip_gradients(self, max_norm: float) -> float:
        """Make the gradients of `self._parameters` the sum over all ranks; clip their norm.

        Returns the norm before.
        """
        raise NotImplementedError("FILL 2: add the ranks' gradients, and clip them")

    def _free_gathered(self) -> None:
        """Free what a forward pass has gathered from other ranks: nothing, if nothing is."""
