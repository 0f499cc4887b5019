"""The process of the job's coordinator, which the trainer starts, asks, and ends."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rollcall.child_process import ChildProcess
from rollcall_protocol.wire.external_trainer import (
    COORDINATOR_MESSAGES,
    CoordinatorReady,
    Generated,
    MemberChange,
    TrainingIsOver,
)

MOST_EVENTS = 10_000  # kept until they are read; the oldest are dropped first


class CoordinatorProcess(ChildProcess):
    """Its environment are `variables`; it reads weights from the file of descriptor `weights`.

    `place`: rank, ranks, and both within the pod, of a trainer whose ranks all send.
    """

    def __init__(
        self, variables: Mapping[str, str], *, weights: int, place: Sequence[int] = ()
    ) -> None:
        self.events: deque[MemberChange] = deque(maxlen=MOST_EVENTS)
        super().__init__(
            "the coordinator's process",
            "rollcall_runtime.external",
            variables,
            answers=COORDINATOR_MESSAGES,
            arguments=[str(weights), *map(str, place)],
            descriptors=[weights],
        )

    def take(self, message: Any) -> None:
        """An event, a piece of an answer, or an answer."""
        if isinstance(message, MemberChange):
            self.events.append(message)
        elif isinstance(message, (CoordinatorReady, TrainingIsOver)):
            self.is_ready(message)
        elif isinstance(message, Generated):
            self.take_piece(message)
        else:
            super().take(message)
