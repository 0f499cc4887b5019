"""Settings of training engines: `spec.trainer.engine.config`, and which built-in engine has which.

The operator refuses a setting that a built-in engine lacks before a pod starts; the worker refuses
the rest, those of third parties' engines included.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from math import prod
from typing import Annotated

from rollcall_protocol.setting_ranges import AT_LEAST_0, AT_LEAST_1, OneOf, check_ranges
from rollcall_protocol.settings_reader import SettingError, camel_case

ADAPTER = "adapter"
MAX_LORA_RANK = 512
"""vLLM serves adapters up to this rank."""
MAX_LEARNING_RATE = 1.0
"""Above 0 and at most this. AdamW moves each weight by about the learning rate in a step, and those
of language models are below 1: with a higher one a step would replace what was learnt."""


class Attention(StrEnum):
    """How packed rows are attended to."""

    AUTO = "auto"
    SDPA = "sdpa"
    VARLEN = "varlen"
    FLASH = "flash_attention_2"


KERNELS_OF_PACKED_ROWS = frozenset({Attention.VARLEN, Attention.FLASH})


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What every engine is asked in the same words.

    Optimizer: `max_gradient_norm` clips; `weight_decay`, `beta1`, `beta2`, `epsilon` are AdamW's.
    `schedule` of the learning rate: after `warmup_steps` of linear growth constant, or falling over
    `decay_steps` to `min_learning_rate` times the learning rate. These are optimizer steps, of
    which a batch of policy training makes `LoopSettings.minibatches`.

    Device mesh: the ranks are `pipeline_parallel` x (data parallel) x `context_parallel` x
    `tensor_parallel`; data parallel ranks are what is left. Context parallel ranks compute the same
    rows, each its share of the positions. With `replicas` above 1 the ranks are as many groups,
    each of which holds a whole sharded model (HSDP). `sequence_parallel` shards activations between
    tensor-parallel regions too.

    Memory: `precision` of the forward and backward pass, where bf16 keeps fp32 weights in the
    optimizer; `activation_checkpointing` full recomputes each layer; `offload` keeps the
    optimizer's state, or parameters too, in host memory; `reshard_after_forward` gathers a layer
    again in the backward pass. `compile` compiles the model's layers.

    Batches: `max_tokens_per_microbatch` bounds what one forward pass of a rank computes (0: all
    rows at once); `packing` removes the padding; `attention` of packed rows computes one sequence
    after the other (sdpa), or all at once on a GPU in bf16, by torch's own kernel (varlen) or by
    that of the package flash-attn (flash_attention_2); auto is varlen where that can be, else sdpa;
    `logprob_chunk` computes logits of so many positions at a time (0: all).

    `lora_rank` above 0 trains low-rank adapters of `lora_targets` (names of linear layers,
    separated by commas) with scale `lora_alpha` / `lora_rank`, and no other weights. With
    `lora_export` merged the whole model leaves the trainer, for rollouts, checkpoints and the final
    export; with adapter the adapters' tensors alone do.

    `threads` is how many cores one operation on a CPU may use; 0 leaves torch's default.
    """

    max_gradient_norm: float = 1.0
    weight_decay: Annotated[float, AT_LEAST_0] = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    schedule: Annotated[str, OneOf("constant", "linear", "cosine")] = "constant"
    warmup_steps: Annotated[int, AT_LEAST_0] = 0
    decay_steps: Annotated[int, AT_LEAST_0] = 0
    min_learning_rate: Annotated[float, AT_LEAST_0] = 0.0
    tensor_parallel: Annotated[int, AT_LEAST_1] = 1
    context_parallel: Annotated[int, AT_LEAST_1] = 1
    pipeline_parallel: Annotated[int, AT_LEAST_1] = 1
    sequence_parallel: bool = False
    replicas: Annotated[int, AT_LEAST_1] = 1
    precision: Annotated[str, OneOf("fp32", "bf16")] = "fp32"
    activation_checkpointing: Annotated[str, OneOf("none", "full")] = "none"
    offload: Annotated[str, OneOf("none", "optimizer", "parameters")] = "none"
    reshard_after_forward: bool = False
    compile: bool = False
    max_tokens_per_microbatch: Annotated[int, AT_LEAST_0] = 0
    packing: bool = False
    attention: Annotated[str, OneOf(*Attention)] = Attention.AUTO
    logprob_chunk: Annotated[int, AT_LEAST_0] = 0
    lora_rank: Annotated[int, AT_LEAST_0] = 0
    lora_alpha: float = 16.0
    lora_targets: str = "q_proj,k_proj,v_proj,o_proj"
    lora_export: Annotated[str, OneOf("merged", ADAPTER)] = "merged"
    threads: Annotated[int, AT_LEAST_0] = 1

    def __post_init__(self) -> None:
        """ValueError says which setting is out of its range, by the name that a user gives it."""
        check_ranges(self)
        for name in ("max_gradient_norm", "epsilon", "lora_alpha"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{camel_case(name)} must be positive")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{camel_case(name)} must be at least 0 and below 1")
        if not self.min_learning_rate <= 1:
            raise ValueError("minLearningRate is a share of the learning rate: at most 1")
        if self.schedule != "constant" and not self.decay_steps:
            raise ValueError(f"decaySteps must be positive when schedule is {self.schedule}")
        if self.attention in KERNELS_OF_PACKED_ROWS and not self.packing:
            raise ValueError(f"attention {self.attention} is for packed rows: set packing to true")
        _check_adapters(self)


_MESH = ("tensor_parallel", "context_parallel", "pipeline_parallel", "replicas")

# Settings that every engine has: they are the optimizer's, or of how batches are cut.
COMMON = frozenset(
    {
        "max_gradient_norm",
        "weight_decay",
        "beta1",
        "beta2",
        "epsilon",
        "schedule",
        "warmup_steps",
        "decay_steps",
        "min_learning_rate",
        "max_tokens_per_microbatch",
        "threads",
    }
)
_SHARDED = COMMON | {
    "context_parallel",
    "replicas",
    "precision",
    "activation_checkpointing",
    "offload",
    "reshard_after_forward",
    "packing",
    "attention",
    "logprob_chunk",
    "lora_rank",
    "lora_alpha",
    "lora_targets",
    "lora_export",
}
BUILT_IN: Mapping[str, frozenset[str]] = {
    "fsdp2": _SHARDED | {"compile"},
    "fsdp": _SHARDED,
    "megatron": COMMON
    | {
        "tensor_parallel",
        "pipeline_parallel",
        "sequence_parallel",
        "precision",
        "activation_checkpointing",
    },
    "torchtitan": COMMON
    | {
        "tensor_parallel",
        "sequence_parallel",
        "replicas",
        "precision",
        "activation_checkpointing",
        "offload",
        "reshard_after_forward",
        "compile",
    },
}


def _check_adapters(settings: EngineSettings) -> None:
    if settings.lora_rank > MAX_LORA_RANK:
        raise ValueError(f"loraRank must be at most {MAX_LORA_RANK}")
    if settings.lora_rank:
        lora_targets(settings.lora_targets)
    elif settings.lora_export == ADAPTER:
        raise ValueError("loraRank must be at least 1 when loraExport is adapter")


def lora_targets(text: str) -> tuple[str, ...]:
    """The names in `loraTargets`; ValueError unless they can be names of layers."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(part.isidentifier() or part.isdecimal() for n in names for part in n.split(".")):
        problem = "must be names of linear layers, separated by commas, such as q_proj,v_proj"
        raise ValueError(f"loraTargets {problem}, not {text!r}")
    return names


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings beside the engine's that policy training reads: optimizer steps for each batch."""

    minibatches: Annotated[int, AT_LEAST_1] = 2

    def __post_init__(self) -> None:
        """ValueError says which setting is out of its range, by the name that a user gives it."""
        check_ranges(self)


def check_known(settings: EngineSettings, known: Collection[str], *, engine: str) -> None:
    """SettingError names a setting that is not at its default and that is not in `known`."""
    for item in fields(settings):
        if item.name in known or getattr(settings, item.name) == item.default:
            continue
        having = sorted(name for name, names in BUILT_IN.items() if item.name in names)
        others = f"these have it: {', '.join(having)}" if having else "no built-in engine has it"
        problem = f"engine {engine} does not have this setting; {others}"
        raise SettingError(camel_case(item.name), problem)


def check_mesh(settings: EngineSettings, *, ranks: int) -> None:
    """SettingError if the device mesh does not fit into this number of ranks."""
    sizes = {name: getattr(settings, name) for name in _MESH if getattr(settings, name) > 1}
    product = prod(sizes.values())
    if ranks % product:
        text = " x ".join(f"{camel_case(name)} {size}" for name, size in sizes.items())
        equals = f" = {product}" if len(sizes) > 1 else ""
        raise SettingError("", f"{text}{equals} does not divide the number of ranks, {ranks}")
