"""The ways in which the suite lays out ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Mesh:
    """`world` ranks under these settings, by the names of EngineSettings."""

    name: str
    world: int
    settings: Mapping[str, int] = field(default_factory=dict)


ONE = Mesh("1", 1)
DP2 = Mesh("DP2", 2)
TP2 = Mesh("TP2", 2, {"tensor_parallel": 2})
DP4 = Mesh("DP4", 4)
DP2_TP2 = Mesh("DP2xTP2", 4, {"tensor_parallel": 2})
HSDP = Mesh("HSDP2x2", 4, {"replicas": 2})
CP2 = Mesh("CP2", 2, {"context_parallel": 2})
CP4 = Mesh("CP4", 4, {"context_parallel": 4})
DP2_CP2 = Mesh("DP2xCP2", 4, {"context_parallel": 2})

ALL = (ONE, DP2, TP2, DP4, DP2_TP2, HSDP, CP2, CP4, DP2_CP2)
PAIRS = (DP2, TP2)
"""What suffices where nothing depends on the number of ranks."""
