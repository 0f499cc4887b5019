"""A rank other than 0 of the user's own trainer, which sends its part of the weights."""

import asyncio
import logging
from dataclasses import dataclass, replace

from rollcall_protocol.wire.external_trainer import (
    CoordinatorReady,
    LibraryMessage,
    PublishPart,
    WeightsWithdrawn,
    WithdrawWeights,
)
from rollcall_protocol.wire.library_link import CancelRequest, Done, Failed
from rollcall_runtime.external.connection import LibraryConnection
from rollcall_runtime.external.weights_file import WeightsFile
from rollcall_runtime.membership.part_sender import SenderRank
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.worker.environment import TrainerEnvironment
from rollcall_runtime.worker.errors import SpecError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which of `ranks` the program's process is, and which of `local_ranks` of its pod."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int

    def within(self, environment: TrainerEnvironment) -> TrainerEnvironment:
        """The environment of this rank. SpecError if it cannot be one of the job's trainer pods."""
        job, pod = environment.job, environment.rank
        if self.ranks != job.trainer_replicas * self.local_ranks:
            raise SpecError(
                "rollcall.Trainer",
                f"{self.ranks} ranks are not those of {job.trainer_replicas} pods with "
                f"{self.local_ranks} each; start as many in each pod of the trainer",
            )
        if self.rank != pod * self.local_ranks + self.local_rank:
            raise SpecError(
                "rollcall.Trainer",
                f"rank {self.rank} is not process {self.local_rank} of pod {pod}, where each has "
                f"{self.local_ranks}; let torchrun take its NODE_RANK from the pod's variables",
            )
        job = replace(job, trainer_processes=self.local_ranks)
        return replace(environment, job=job, rank=self.rank, local_rank=self.local_rank)


class PartService:
    """Does what the program asks in this rank. Belongs to one event loop."""

    def __init__(
        self,
        *,
        rank: int,
        sender: SenderRank,
        connection: LibraryConnection[LibraryMessage],
        file: WeightsFile,
        float32_as: str,
    ) -> None:
        self._rank, self._sender, self._connection = rank, sender, connection
        self._file, self._float32_as = file, float32_as

    async def run(self) -> None:
        """Answer until the program's process ends or closes the library."""
        self._connection.send(CoordinatorReady(self._float32_as))
        async for message in self._connection.messages():
            if isinstance(message, CancelRequest):
                continue  # requests are short here
            try:
                await self._do(message)
            except (SyncError, OSError, RuntimeError, ValueError) as error:
                log.warning("%s failed: %s", type(message).__name__, error)
                self._connection.send(Failed(message.request, str(error) or type(error).__name__))

    async def _do(self, message: LibraryMessage) -> None:
        match message:
            case WithdrawWeights():
                self._sender.withdraw()
                await self._file.unused()
                self._connection.send(WeightsWithdrawn(message.request))
            case PublishPart():
                make = self._file.snapshot
                part = await asyncio.to_thread(make, message.tensors, message.total_bytes)
                await self._sender.offer(message.number, part)
                self._connection.send(Done(message.request))
            case _:
                name = type(message).__name__
                raise RuntimeError(f"{name}: this is rank {self._rank}; rank 0 alone is asked that")
