"""What the built-in engines cannot do: the only cases that the suite may skip for them.

An engine of another distribution needs no row here: its cases are skipped as it says.
"""

from collections.abc import Mapping

LACKS: Mapping[str, frozenset[str]] = {
    "fsdp": frozenset(
        {
            "tensor_parallel",
            "pipeline_parallel",
            "sequence_parallel",
            "compile",
        }
    ),
    "fsdp2": frozenset({"tensor_parallel", "pipeline_parallel", "sequence_parallel"}),
    "megatron": frozenset(
        {
            "context_parallel",
            "replicas",
            "offload",
            "reshard_after_forward",
            "compile",
            "packing",
            "logprob_chunk",
            "lora_rank",
            "lora_alpha",
            "lora_targets",
            "lora_export",
        }
    ),
    "torchtitan": frozenset(
        {
            "context_parallel",
            "logprob_chunk",
            "lora_alpha",
            "lora_rank",
            "lora_export",
            "lora_targets",
            "packing",
            "pipeline_parallel",
        }
    ),
}
"""Settings and heads that the engine does not have at all."""

REFUSES: Mapping[str, frozenset[tuple[str, object]]] = {
    "fsdp": frozenset({("offload", "parameters")}),
    "torchtitan": frozenset({("offload", "parameters")}),
}
"""Values of settings that the engine has, but refuses on a CPU."""
