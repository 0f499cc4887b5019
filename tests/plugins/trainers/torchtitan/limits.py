"""What the engine `torchtitan` cannot do."""

from tests.process.engines.limits import Limits

LIMITS = Limits(
    lacks=frozenset(
        {
            "attention",
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
    refuses=frozenset({("offload", "parameters")}),
)
