"""The reference in pods of its own, as the trainer's ranks see it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import torch
from torch import distributed

from rollcall_runtime.train.data_parallel_rows import share_rows
from rollcall_runtime.train.engines.common.microbatches import cut_into_microbatches
from rollcall_runtime.train.reference_pods.client import Inquiry
from rollcall_runtime.train.reference_pods.exchange import REQUEST_POSITIONS
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_runtime.train.process_group import TrainerProcessGroup
    from rollcall_runtime.train.reference_pods.client import ReferenceClient
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine

log = logging.getLogger(__name__)

ROUND_SECONDS = 30.0
"""Ranks tell each other how far they are this often: a collective waits 600 s for a rank."""
WAIT_SECONDS = 3600.0
"""After that the trainer fails, and starts again at its last checkpoint."""


class RemoteReference:
    """Every rank asks for its share of a batch's rows; see Reference.

    `waited`: the seconds that the last batch took.
    """

    engine: TrainEngine | None = None
    moves = False

    def __init__(
        self,
        pods: ReferenceClient,
        *,
        ranks: TrainerProcessGroup,
        round_seconds: float = ROUND_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._pods, self._ranks = pods, ranks
        self._round_seconds, self._wait_seconds = round_seconds, wait_seconds
        self.waited: float | None = None

    def logprobs(self, batch: TrainBatch) -> Tensor:
        """Collective. Log-probabilities of the targets, [rows, length]; 0 outside the mask.

        Waits while no pod answers: RuntimeError on all ranks after WAIT_SECONDS, SpecError if the
        pods refuse what is asked.
        """
        began, ranks = time.monotonic(), self._ranks
        own = share_rows(batch.lengths.tolist(), ranks=ranks.size)[ranks.rank]
        lengths = batch.lengths[own].tolist()
        cut = cut_into_microbatches(lengths, max_tokens=REQUEST_POSITIONS, packing=False)
        rows = [[own[place] for place in part] for part in cut]
        inquiry = Inquiry([batch.select(part) for part in rows])
        while self._round(inquiry, until=began + self._wait_seconds):
            pass
        everywhere = torch.zeros(batch.mask.shape)
        for part, answer in zip(rows, inquiry.answers, strict=True):
            if answer is not None:
                everywhere[part, : answer.shape[1]] = answer
        if ranks.size > 1:
            # Every row was asked for by one rank, and is 0 on the others.
            distributed.all_reduce(everywhere)
        self.waited = time.monotonic() - began
        return everywhere

    def step_ended(self, actor: TrainEngine, step: int) -> None:
        """Its weights stay as they are."""

    def _round(self, inquiry: Inquiry, *, until: float) -> bool:
        """Collective. Ask for a while; whether any rank has to ask again."""
        refused = problem = ""
        try:
            problem = self._pods.ask(inquiry, seconds=self._round_seconds)
        except SpecError as error:
            refused = error.problem
        late = time.monotonic() >= until
        found = self._ranks.gather({"refused": refused, "problem": problem, "late": late})
        for other in found:
            if other["refused"]:
                raise SpecError("spec.reference", other["refused"])
        waiting = [other for other in found if other["problem"]]
        if not waiting:
            return False
        first = f"{waiting[0]['problem']} ({self._pods.host})"
        if any(other["late"] for other in waiting):
            raise RuntimeError(f"no answer of the reference in {self._wait_seconds:.0f} s: {first}")
        if self._ranks.rank == 0:
            log.warning("training waits for the reference: %s", first)
        return True
