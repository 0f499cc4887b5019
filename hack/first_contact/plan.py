"""The steps, in their order, and the seconds that each may take: nine minutes in all."""

from __future__ import annotations

from dataclasses import dataclass

MOST_SECONDS = 540


@dataclass(frozen=True, slots=True)
class Step:
    """`name`: its module in `hack.first_contact.steps`. `asks`: what its verdict answers."""

    name: str
    asks: str
    seconds: int


STEPS = (
    Step("versions", "which device, driver and libraries there are", 60),
    Step("graphs", "captured graphs read each version that is copied into what serves", 90),
    Step("snapshots", "weights reach device and host memory whole, at how many GB/s", 60),
    Step("training", "a step in bf16 on the device is that of the CPU", 60),
    Step("attention", "packed rows are attended to as on the CPU, and how fast", 40),
    Step("communicator", "NCCL or HCCL: one rank, abort, and two ranks on one card", 60),
    Step("serving", "vLLM: updates under load, its pauses, and what it then answers", 170),
)
