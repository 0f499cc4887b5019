"""Builds a decoder of torchtitan, sharded over the ranks, without weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.config.configs import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import parallel_dims
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.distributed.utils import set_spmd_backend

from rollcall_runtime.train.train_engine import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from torchtitan.distributed.parallel_dims import ParallelDims
    from torchtitan.models.common.decoder import Decoder
    from torchtitan.protocols.model_spec import ModelSpec

    from rollcall_protocol.train_settings import EngineSettings
    from rollcall_runtime.train.process_group import TrainerProcessGroup

# torchtitan has three ways to describe placements. CPUs can run this one: parameters are DTensors
# over the tensor-parallel ranks, and FSDP2 shards them.
_PLACEMENTS = "partial_dtensor"
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


_meshes: WeakKeyDictionary[TrainerProcessGroup, dict[tuple[int, int], ParallelDims]] = (
    WeakKeyDictionary()
)


def device_mesh(settings: EngineSettings, ranks: TrainerProcessGroup) -> ParallelDims:
    """Collective. How the ranks are arranged, with a process group for each dimension.

    Made once for each arrangement, since the groups and their threads stay until `ranks` close.
    """
    set_spmd_backend(_PLACEMENTS)
    made = _meshes.setdefault(ranks, {})
    key = (settings.replicas, settings.tensor_parallel)
    if key not in made:
        made[key] = _made_mesh(settings, ranks=ranks.size, device=ranks.device)
    return made[key]


def _made_mesh(settings: EngineSettings, *, ranks: int, device: torch.device) -> ParallelDims:
    # torchtitan takes the machine's accelerator, whatever device this worker is to train on.
    parallel_dims.device_type = device.type
    found = parallel_dims.ParallelDims(
        dp_replicate=settings.replicas,
        dp_shard=ranks // (settings.replicas * settings.tensor_parallel),
        cp=1,
        tp=settings.tensor_parallel,
        pp=1,
        ep=1,
        world_size=ranks,
        spmd_backend=_PLACEMENTS,
    )
    found.build_mesh()
    return found


def build_decoder(
    spec: ModelSpec, mesh: ParallelDims, settings: EngineSettings, *, device: torch.device
) -> Decoder:
    """The sharded decoder in fp32 on `device`; its parameters hold nothing yet.

    SpecError if the model cannot be divided among the tensor-parallel ranks.
    """
    _check_divisible(spec.model, settings.tensor_parallel)
    positions = spec.model.max_seq_len
    for layer in spec.model.layers:
        # torchtitan gives each layer rotary embeddings of its own, for all positions.
        layer.attention.rope = replace(layer.attention.rope, max_seq_len=1)
    with torch.device("meta"):
        model = spec.model.build()
    model = spec.parallelize_fn(
        model,
        parallel_dims=mesh,
        training=TrainingConfig(mixed_precision_param=_DTYPES[settings.precision]),
        parallelism=ParallelismConfig(
            spmd_backend=_PLACEMENTS,
            fsdp_reshard_after_forward="always" if settings.reshard_after_forward else "never",
        ),
        compile_config=CompileConfig(enable=settings.compile, components=["model"]),
        ac_config=FullAC.Config() if settings.activation_checkpointing == "full" else None,
        dump_folder="",
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # torchtitan sums gradients by a mean with divisor 1, which gloo does not have.
            module.set_force_sum_reduction_for_comms(True)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights()
    _share_rotations(model, positions)
    return model


def _check_divisible(model: Decoder.Config, tensor_parallel: int) -> None:
    attention, feed_forward = model.first_attention, model.layers[0].feed_forward
    for name, size in (
        ("num_attention_heads", attention.n_heads),
        ("num_key_value_heads", attention.n_kv_heads),
        ("intermediate_size", feed_forward.w1.out_features),
        ("vocab_size", model.vocab_size),
    ):
        if size % tensor_parallel:
            raise SpecError(
                f"{FIELD}.config.tensorParallel",
                f"{tensor_parallel} ranks cannot share the model's {name} of {size}",
            )


def _share_rotations(model: Decoder, positions: int) -> None:
    """Compute the rotary embeddings once, for all layers together."""
    first, *others = [layer.attention.rope for layer in model.layers.values()]
    first.config = replace(first.config, max_seq_len=positions)
    first.init_states()
    for rope in others:
        rope.cache = first.cache
