"""What the engine `megatron` cannot do."""

from tests.process.engines.limits import Limits

LIMITS = Limits(
    lacks=frozenset(
        {
            "attention",
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
    )
)
