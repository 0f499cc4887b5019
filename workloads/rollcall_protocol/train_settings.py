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
    """What every engine is asked in the same words: `spec.trainer.engine.config`.

    The ranks are `pipeline_parallel` x (data parallel) x `context_parallel` x `tensor_parallel`;
    data parallel ranks are what is left. docs/reference.md is made of what follows.
    """

    max_gradient_norm: float = 1.0
    """The gradient is scaled down to this norm if its own is larger."""
    weight_decay: Annotated[float, AT_LEAST_0] = 0.0
    """Weight decay of AdamW."""
    beta1: float = 0.9
    """AdamW's share of the old mean of the gradients in the new one."""
    beta2: float = 0.999
    """AdamW's share of the old mean of the squared gradients in the new one."""
    epsilon: float = 1e-8
    """What AdamW adds to the root of the mean of the squared gradients."""
    schedule: Annotated[str, OneOf("constant", "linear", "cosine")] = "constant"
    """Of the learning rate after the warm-up: constant, or falling over decaySteps."""
    warmup_steps: Annotated[int, AT_LEAST_0] = 0
    """Optimizer steps at the start in which the learning rate grows linearly. Policy training makes
    `minibatches` of them for each batch."""
    decay_steps: Annotated[int, AT_LEAST_0] = 0
    """Optimizer steps after the warm-up over which the learning rate falls."""
    min_learning_rate: Annotated[float, AT_LEAST_0] = 0.0
    """Where the learning rate ends, as a share of its highest."""
    tensor_parallel: Annotated[int, AT_LEAST_1] = 1
    """Ranks that share the tensors of a layer."""
    context_parallel: Annotated[int, AT_LEAST_1] = 1
    """Ranks that compute the same rows, each its share of the positions."""
    pipeline_parallel: Annotated[int, AT_LEAST_1] = 1
    """Ranks that share the layers."""
    sequence_parallel: bool = False
    """Whether activations between tensor-parallel regions are sharded, too."""
    replicas: Annotated[int, AT_LEAST_1] = 1
    """Groups of ranks, each of which holds a whole sharded model (HSDP)."""
    precision: Annotated[str, OneOf("fp32", "bf16")] = "fp32"
    """Of the forward and backward pass; with bf16 the optimizer keeps weights in fp32."""
    activation_checkpointing: Annotated[str, OneOf("none", "full")] = "none"
    """full: each layer is computed again in the backward pass, which saves memory."""
    offload: Annotated[str, OneOf("none", "optimizer", "parameters")] = "none"
    """What is kept in host memory: the optimizer's state, or the parameters too."""
    reshard_after_forward: bool = False
    """Whether a layer's weights are freed after the forward pass and gathered again."""
    compile: bool = False
    """Whether the model's layers are compiled."""
    max_tokens_per_microbatch: Annotated[int, AT_LEAST_0] = 0
    """Tokens of one forward pass of a rank. 0: all rows at once."""
    packing: bool = False
    """Whether rows are computed without padding."""
    attention: Annotated[str, OneOf(*Attention)] = Attention.AUTO
    """Of packed rows. sdpa: one sequence after the other. varlen: all at once on a GPU in bf16, by
    torch's own kernel. flash_attention_2: by that of the package flash-attn. auto: varlen where
    that can be, else sdpa."""
    logprob_chunk: Annotated[int, AT_LEAST_0] = 0
    """Positions whose logits are computed at a time. 0: all."""
    lora_rank: Annotated[int, AT_LEAST_0] = 0
    """Rank of the low-rank adapters that are trained in the place of the weights. 0: none."""
    lora_alpha: float = 16.0
    """The adapters' output is scaled by this, divided by loraRank."""
    lora_targets: str = "q_proj,k_proj,v_proj,o_proj"
    """Names of the linear layers that have adapters, separated by commas."""
    lora_export: Annotated[str, OneOf("merged", ADAPTER)] = "merged"
    """What leaves the trainer, for rollouts, checkpoints and the final export: the whole model, or
    the adapters' tensors alone."""
    threads: Annotated[int, AT_LEAST_0] = 1
    """Cores that one operation on a CPU may use. 0: torch's default."""

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
    """Settings beside the engine's that policy training reads."""

    minibatches: Annotated[int, AT_LEAST_1] = 2
    """Optimizer steps for each batch, each on a part of it."""

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
