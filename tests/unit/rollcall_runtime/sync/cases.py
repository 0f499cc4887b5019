"""The engines that the conformance suite runs, each with settings that keep its tests short."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """An engine, its settings as in an RLJob, and what its processes find in the environment."""

    engine: str
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


SHORT = {"operationTimeout": 2, "maxAbandoned": 3}

CASES = [
    Case("gloo", SHORT),
]
