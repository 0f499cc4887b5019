"""A training engine to start from, for one PyTorch module: fill the places marked FILL.

The base class opens the model, computes micro-batches and losses, makes optimizer steps, and writes
checkpoints. An engine that is not of this kind derives from `train.train_engine.TrainEngine`.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from torch import Tensor, nn

from rollcall_protocol.train_settings import COMMON
from rollcall_runtime.models.weight_loading import WeightReader
from rollcall_runtime.train.engines.common import sharded_weights
from rollcall_runtime.train.engines.common.module_engine import ModuleEngine
from rollcall_runtime.train.engines.common.sharded_weights import ExportedWeight
from rollcall_runtime.train.train_engine import WeightInfo, WeightShard


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

    # Weights out and in, by the names of the model's source. This serves parameters that are whole
    # on every rank, or DTensors.

    def _weights(self) -> list[ExportedWeight]:
        state = self._model.state_dict(keep_vars=True)
        return sharded_weights.exported_weights(state, self.setup.settings)

    def weight_info(self) -> list[WeightInfo]:
        return [weight.info for weight in self._weights()]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return sharded_weights.whole_weights(self._weights())

    def weight_shards(self) -> Iterator[WeightShard]:
        return sharded_weights.own_shards(self._weights(), rank=self.setup.ranks.rank)

    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        own = self._weights()
        sharded_weights.expect_weights([one.info for one in own], weights, self.setup.ranks)
        sharded_weights.replace_weights(own, weights, self.setup.ranks)
