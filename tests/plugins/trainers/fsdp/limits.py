"""What FSDP1 cannot do."""

from tests.process.engines.limits import Limits

LIMITS = Limits(
    lacks=frozenset({"tensor_parallel", "pipeline_parallel", "sequence_parallel", "compile"}),
    refuses=frozenset({("offload", "parameters")}),
)
