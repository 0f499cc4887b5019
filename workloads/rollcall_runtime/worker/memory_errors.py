"""Memory that ran out, of a device or of the host, and which fields of the spec help."""

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rollcall_runtime.worker.errors import SpecError

# torch has a class for devices of CUDA alone: torch_npu and the allocator of CPUs raise plain
# RuntimeErrors.
_OF_HOST = re.compile(r"DefaultCPUAllocator|can(?:no|')t allocate memory", re.IGNORECASE)
_OF_DEVICE = re.compile(r"\bout of memory\b", re.IGNORECASE)
_AMOUNT = re.compile(r"tried to allocate (\d+ bytes|[\d.]+ [KMGT]iB)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MemoryAdvice:
    """What a worker can do: `field` is the path of a setting, the others begin "lower it, ..."."""

    field: str
    device: str
    host: str

    def explain(self, error: BaseException) -> SpecError | None:
        """`error` in the words of the spec; None if neither it nor its cause is of this kind."""
        for cause in _causes(error):
            text = str(cause)
            if _is_of_host(cause):
                where, advice = "the memory of the container or its node", self.host
            elif isinstance(cause, RuntimeError) and _OF_DEVICE.search(text):
                where, advice = "the device's memory", self.device
            else:
                continue
            amount = _AMOUNT.search(text)
            more = f" ({amount[1]} more were asked for)" if amount else ""
            return SpecError(self.field, f"{where} does not suffice{more}: {advice}")
        return None


TRAINER_MEMORY = MemoryAdvice(
    "spec.trainer.engine.config.maxTokensPerMicrobatch",
    device="lower it (0 computes all rows at once), or set activationCheckpointing: full or "
    "offload: optimizer beside it, or share the model among more ranks (spec.trainer.replicas)",
    host="lower it (0 computes all rows at once), or set activationCheckpointing: full and "
    "offload: none beside it, or raise resources.limits.memory in spec.trainer.template",
)
ROLLOUT_MEMORY = MemoryAdvice(
    "spec.rollouts[].engine.config.concurrency",
    device="lower it, lower the engine's maxTokens, or use a device with more memory",
    host="lower it, or raise resources.limits.memory in the pool's template",
)
REFERENCE_MEMORY = MemoryAdvice(
    "spec.trainer.engine.config.maxTokensPerMicrobatch",
    device="lower it (0 computes all rows at once), or use a device with more memory",
    host="lower it (0 computes all rows at once), or raise resources.limits.memory in "
    "spec.reference.template",
)
FRONT_MEMORY = MemoryAdvice(
    "spec.front.maxTokens",
    device="lower it",
    host="lower it, lower maxRunning beside it, or raise resources.limits.memory in "
    "spec.front.template",
)


def _is_of_host(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _OF_HOST.search(str(error)) is not None
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, and what it was raised from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__
