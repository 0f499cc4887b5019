"""The engine `megatron`: megatron-core's GPTModel, data-parallel wrapper and Adam.

Pipeline, data, tensor and sequence parallelism, in float32 or mixed precision. Outside of the
engine tensors have the names and the layout of Hugging Face. megatron-core needs CUDA devices.
This has been run on CPUs alone, where tests replace what it calls of CUDA.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.utils import get_attr_wrapped_model
from torch import nn
from transformers import AutoConfig

from rollcall_plugins.trainers.megatron import hf_config, hf_mapping
from rollcall_plugins.trainers.megatron.hf_weights import HfWeights, set_parameter
from rollcall_plugins.trainers.megatron.model_provider import ModelOptions, ModelProvider
from rollcall_plugins.trainers.megatron.pipeline import Pipeline
from rollcall_plugins.trainers.megatron.sharded_adam import MOMENTS, ShardedAdam
from rollcall_plugins.trainers.megatron.shared_groups import ParallelGroups, shared_groups
from rollcall_plugins.trainers.megatron.vocabulary_logprobs import (
    entropy_of,
    hide_padding,
    target_logprobs,
)
from rollcall_protocol.train_settings import BUILT_IN
from rollcall_runtime.models.hugging_face import HuggingFaceSource
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.distributed_save import (
    check_same_tensors,
    load_rng_states,
    load_tensors,
    prepare_save,
    use_rng_states,
)
from rollcall_runtime.train.engines.common.microbatched_engine import MicrobatchedEngine
from rollcall_runtime.train.train_engine import FIELD, BatchResult
from rollcall_runtime.train.train_loss import ModelOutput
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor

    from rollcall_plugins.trainers.megatron.hf_config import Architecture
    from rollcall_plugins.trainers.megatron.hf_mapping import HfTensor
    from rollcall_runtime.models.model_source import Head
    from rollcall_runtime.models.weight_loading import WeightReader
    from rollcall_runtime.train.engines.common.loss_totals import LossTotals
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import EngineSetup, WeightInfo, WeightShard


T = TypeVar("T")


class MegatronEngine(MicrobatchedEngine):
    """See TrainEngine. `provider` builds the model; derived engines may have another one."""

    settings_known: ClassVar[frozenset[str]] = BUILT_IN["megatron"]
    devices: ClassVar[frozenset[str]] = frozenset({"cuda"})
    library: ClassVar[str] = "megatron.core"
    heads: ClassVar[frozenset[Head]] = frozenset(
        {"language-model", "value", "sequence-classification"}
    )
    provider: ClassVar[ModelProvider] = ModelProvider()

    _model: nn.Module
    _weights: HfWeights
    _architecture: Architecture
    _groups: ParallelGroups
    _pipeline: Pipeline

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        if setup.own_settings:
            key = min(setup.own_settings)
            raise SpecError(f"{FIELD}.config.{key}", "unknown setting of the engine megatron")
        self._owned = ExitStack()
        self._adam: ShardedAdam | None = None
        self._on_host: set[str] = set()

    def initialize(self) -> None:
        settings = self.setup.settings
        if settings.threads:
            torch.set_num_threads(settings.threads)
        torch.use_deterministic_algorithms(self.setup.deterministic)
        source = open_model(self.setup.model)
        if not isinstance(source, HuggingFaceSource):
            problem = f"{self.setup.model!r} is no Hugging Face model: use the engine fsdp2 for it"
            raise SpecError(hf_config.FIELD, problem)
        config = AutoConfig.for_model(**source.values).to_dict()
        self._architecture = self.provider.architecture(config)
        hf_config.check_parallel(
            self._architecture,
            tensor=settings.tensor_parallel,
            pipeline=settings.pipeline_parallel,
        )
        reader = source.weights(head=self.setup.head, seed=self.setup.seed)
        with ExitStack() as undo:
            ranks = self.setup.ranks
            self._groups = shared_groups.acquire(
                ranks, tensor=settings.tensor_parallel, pipeline=settings.pipeline_parallel
            )
            undo.callback(shared_groups.release)
            self._build()
            self._weights.fill(lambda tensor, part: _read(reader, tensor, part))
            self._owned = undo.pop_all()

    def _build(self) -> None:
        settings, head = self.setup.settings, self.setup.head
        options = ModelOptions(
            tensor_parallel=settings.tensor_parallel,
            sequence_parallel=settings.sequence_parallel and settings.tensor_parallel > 1,
            precision=settings.precision,
            recompute=settings.activation_checkpointing == "full",
            deterministic=self.setup.deterministic,
            pipeline_parallel=settings.pipeline_parallel,
            stage=self._groups.stage,
        )
        model = self.provider.build(self._architecture, options, head=head)
        mappings = self.provider.mappings(
            self._architecture,
            head=head,
            rank=self._groups.tensor_rank,
            size=self._groups.tensor_size,
            first_layer=options.first_layer(self._architecture),
        )
        self._weights = HfWeights(model, mappings, groups=self._groups, ranks=self.setup.ranks)
        self._model = model
        if self.setup.optimizer is not None:
            self._adam = ShardedAdam(model, self._weights, settings)
            self._model = self._adam.model
            self._optimizer = self._adam.optimizer
        self._set_training(training=False)
        self._pipeline = Pipeline(self._model, self._groups)

    def close(self) -> None:
        self._owned.close()
        self._adam = self._optimizer = None
        if hasattr(self, "_model"):
            del self._model, self._weights, self._pipeline
            # It remembers its last results, and with them each module, which has a group.
            RotaryEmbedding.forward.cache_clear()
            gc.collect()  # Megatron's modules refer to each other, and to groups with threads

    def _set_training(self, training: bool) -> bool:
        before = self._model.training
        self._model.train(training)
        # By this flag of its own, not of its layers, the block decides whether to recompute them.
        get_attr_wrapped_model(self._model, "decoder").training = True
        return before

    # --- computing -------------------------------------------------------------------------------

    def _forward(self, batch: TrainBatch, *, entropy: bool) -> ModelOutput:
        self._need_on_worker("model")
        found = self._pipeline.forward(self._tokens(batch))
        output = None if found is None else self._output(found, batch, entropy=entropy)
        return self._of_last_stage(output, batch, entropy=entropy)

    def _add_gradients(
        self,
        microbatches: Sequence[TrainBatch],
        loss_of: Callable[[int, ModelOutput], Tensor],
        *,
        entropy: bool,
    ) -> None:
        self._need_on_worker("model", "gradients")
        if self._groups.stages == 1:
            super()._add_gradients(microbatches, loss_of, entropy=entropy)
            return
        self._pipeline.forward_backward(
            [self._tokens(microbatch) for microbatch in microbatches],
            lambda number, found: loss_of(
                number, self._output(found, microbatches[number], entropy=entropy)
            ),
        )

    def _result(self, totals: LossTotals, denominator: float, tokens: int) -> BatchResult:
        if self._groups.stages == 1:
            return super()._result(totals, denominator, tokens)
        own = asdict(super()._result(totals, denominator, tokens)) if self.holds_outputs else None
        found = self.setup.ranks.gather(own)
        return BatchResult(**next(result for result in found if result is not None))

    def _tokens(self, batch: TrainBatch) -> Tensor:
        """With as much padding as it takes for ranks to share the positions evenly."""
        divided = self.setup.settings.sequence_parallel
        multiple = self._groups.tensor_size if divided else 1
        return nn.functional.pad(batch.tokens, (0, -batch.tokens.shape[1] % multiple))

    def _output(self, logits: Tensor, batch: TrainBatch, *, entropy: bool) -> ModelOutput:
        """From what the model's last layer gives, which may be longer than the rows."""
        if logits.shape[1] > batch.tokens.shape[1]:
            logits = logits[:, : batch.tokens.shape[1]].contiguous()
        if self.setup.head != "language-model":
            values = logits[..., 0].float()
            if self.setup.head == "value":
                return ModelOutput(values=values.masked_fill(~batch.mask, 0))
            last = (batch.lengths - 1).clamp(min=0)
            return ModelOutput(scores=values.gather(1, last[:, None])[:, 0])
        if self.setup.temperature != 1.0:
            logits = logits.float() / self.setup.temperature
        logits = hide_padding(logits, own_rows=self._own_vocabulary())
        spread = entropy_of(logits, self._groups.tensor_group) if entropy else None
        return ModelOutput(
            logprobs=target_logprobs(logits, batch.targets).masked_fill(~batch.mask, 0),
            entropy=None if spread is None else spread.masked_fill(~batch.mask, 0),
        )

    def _of_last_stage(
        self, output: ModelOutput | None, batch: TrainBatch, *, entropy: bool
    ) -> ModelOutput:
        """Collective. The output of the last pipeline stage, on all of them."""
        if self._groups.stages == 1 and output is not None:
            return output
        names = {"value": ["values"], "sequence-classification": ["scores"]}.get(
            self.setup.head, ["logprobs", "entropy"] if entropy else ["logprobs"]
        )
        found: dict[str, Tensor] = {}
        for name in names:
            own: Tensor | None = getattr(output, name, None)
            shape = batch.lengths.shape if name == "scores" else batch.tokens.shape
            tensor = torch.empty(shape, device=batch.tokens.device) if own is None else own
            found[name] = self._groups.broadcast_from(self._groups.stages - 1, tensor.contiguous())
        return ModelOutput(**found)

    def _own_vocabulary(self) -> int:
        """How many of this rank's logits belong to tokens that exist."""
        size, rank = self._groups.tensor_size, self._groups.tensor_rank
        chunk = -(-self._architecture.vocabulary // size)
        return max(min(self._architecture.vocabulary - rank * chunk, chunk), 0)

    def _clip_gradients(self, max_norm: float) -> float:
        self._need_on_worker("model", "optimizer", "gradients")
        return self._trained().reduce_and_clip(max_norm)

    def _apply_gradients(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        self._trained().step()

    def zero_grad(self) -> None:
        if self._adam is not None:
            self._adam.zero_gradients()

    def _trained(self) -> ShardedAdam:
        if self._adam is None:
            raise RuntimeError("this engine was made without an optimizer")
        return self._adam

    # --- weights ---------------------------------------------------------------------------------

    def weight_info(self) -> list[WeightInfo]:
        return self._weights.info()

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        self._need_weights_on_worker()
        return self._weights.whole()

    def weight_shards(self) -> Iterator[WeightShard]:
        self._need_weights_on_worker()
        return self._weights.pieces()

    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        self._need_weights_on_worker()
        self._expect(weights)
        self._weights.fill_from_rank_0(weights)

    def _expect(self, weights: Mapping[str, Tensor] | None) -> None:
        problem = ""
        if self.setup.ranks.rank == 0:
            wanted = {info.name: info.shape for info in self.weight_info()}
            given = {name: tuple(tensor.shape) for name, tensor in (weights or {}).items()}
            wrong = sorted({name for name, _ in wanted.items() ^ given.items()})
            problem = f"not this model's: {', '.join(wrong[:3])}" if wrong else ""
        problem = self.setup.ranks.broadcast_value(problem)
        if problem:
            raise ValueError(problem)

    # --- checkpoints -----------------------------------------------------------------------------

    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        self._need_on_worker("model", "optimizer")
        tensors: dict[str, Any] = {"model": self._tensors()}
        if self._adam is not None and self._steps:
            tensors["optimizer"] = self._optimizer_state()
        state = self._checkpoint_state(state)
        return prepare_save(self.setup.ranks, path, tensors=tensors, state=state)

    def load_checkpoint(self, path: Path) -> dict[str, Any]:
        self._need_on_worker("model", "optimizer")
        saved = files.read_state(path)
        whole = {info.name: info for info in self.weight_info()}
        names = check_same_tensors(path, self._with_tied(whole), prefix="model")
        loaded: dict[str, Any] = {"model": _copied(self._tensors())}
        if self._adam is not None and any(name.startswith("optimizer.state.") for name in names):
            loaded["optimizer"] = {"state": _copied(self._optimizer_state()["state"])}
        loaded |= load_rng_states(self.setup.ranks, path)
        load_tensors(self.setup.ranks, loaded, path)
        state = self._take_checkpoint_state(saved)
        self._take(loaded["model"], loaded.get("optimizer", {}).get("state"))
        use_rng_states(self.setup.ranks, loaded)
        return state

    def _tensors(self) -> dict[str, DTensor]:
        return self._with_tied({tensor.name: value for tensor, value in self._weights.sharded()})

    def _with_tied(self, tensors: dict[str, T]) -> dict[str, T]:
        """As torch names the parameters of such a model: a tied output layer is named, too."""
        embedding = tensors.get(hf_mapping.EMBEDDING)
        if embedding is None or not self._architecture.tied or self.setup.head != "language-model":
            return tensors
        return {**tensors, hf_mapping.OUTPUT_LAYER: embedding}

    def _optimizer_state(self) -> dict[str, Any]:
        """In the form of `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`.

        So the engines fsdp and fsdp2 can read it, and this engine reads theirs.
        """
        adam = self._trained()
        state: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for moment in MOMENTS:
            for tensor, value in self._weights.sharded(partial(adam.moment, name=moment)):
                state[tensor.name][moment] = value
        for tensor_state in state.values():
            tensor_state["step"] = torch.tensor(float(self._steps))
        group = {name: adam.optimizer.param_groups[0][name] for name in adam.optimizer.defaults}
        names = [info.name for info in self.weight_info()]
        return {"state": dict(state), "param_groups": [{**group, "params": names}]}

    def _take(
        self, model: Mapping[str, DTensor], moments: Mapping[str, Mapping[str, DTensor]] | None
    ) -> None:
        """Set parameters and moments; without moments they begin at 0."""
        for parameter, mapping in self._weights.parameters():
            names = [tensor.name for tensor in mapping.tensors]
            set_parameter(parameter, mapping.join([model[name].to_local() for name in names]))
            if self._adam is not None:
                for moment in MOMENTS:
                    value = self._adam.moment(parameter, moment)
                    if moments is None:
                        value.zero_()
                    else:
                        parts = [moments[name][moment].to_local() for name in names]
                        value.copy_(mapping.join(parts))
        if self._adam is not None:
            self._adam.set_steps(self._steps if moments is not None else 0)

    # --- placement -------------------------------------------------------------------------------

    def to(
        self,
        device: Literal["worker", "host"],
        *,
        model: bool = True,
        optimizer: bool = True,
        gradients: bool = True,
    ) -> None:
        worker = self.setup.ranks.device
        if worker.type == "cpu":
            return  # both places are the same
        target = torch.device("cpu") if device == "host" else worker
        wanted = {"model": model, "optimizer": optimizer, "gradients": gradients}
        parts = {name for name, moved in wanted.items() if moved}
        parts = parts - self._on_host if device == "host" else parts & self._on_host
        self._on_host ^= parts
        if "model" in parts:
            for parameter, _ in self._weights.parameters():
                parameter.data = parameter.data.to(target)
        if "optimizer" in parts and self._adam is not None:
            self._adam.move_state(target)
        if "gradients" in parts and self._adam is not None:
            self._adam.move_gradients(keep=device == "host")

    def _need_on_worker(self, *parts: str) -> None:
        for part in parts:
            if part in self._on_host:
                raise RuntimeError(f'the {part} is in host memory: call to("worker") first')

    def _need_weights_on_worker(self) -> None:
        """In mixed precision the optimizer holds the float32 weights."""
        mixed = self.setup.settings.precision != "fp32" and self._adam is not None
        self._need_on_worker("model", *(("optimizer",) if mixed else ()))

    # --- parallelism -----------------------------------------------------------------------------

    @property
    def data_parallel_rank(self) -> int:
        return self._groups.data_rank

    @property
    def data_parallel_size(self) -> int:
        return self._groups.data_size

    @property
    def data_parallel_group(self) -> ProcessGroup:
        return self._groups.data_group

    @property
    def holds_outputs(self) -> bool:
        return self._groups.stage == self._groups.stages - 1


def _read(reader: WeightReader, tensor: HfTensor, part: tuple[slice, ...]) -> Tensor:
    """The part of a tensor in the model's files. Of rows only these are read."""
    if tensor.dim == 0:
        return reader.read(tensor.name, (part[0].start, part[0].stop))
    return reader.read(tensor.name)[part]


def _copied(tensors: Any) -> Any:
    """Tensors that a checkpoint may be read into while the engine's own stay as they are."""
    if isinstance(tensors, dict):
        return {name: _copied(value) for name, value in tensors.items()}
    return tensors.clone()
