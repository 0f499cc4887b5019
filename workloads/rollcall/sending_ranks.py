"""The trainer's ranks, as torch.distributed has them, where each sends its part of the weights."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from rollcall.errors import RollcallError
from rollcall_runtime.sync import rank_values
from rollcall_runtime.sync.weights.sharded_rows import own_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Rank 0 may wait for rollouts without bound; that a rank has died ends a wait at once.
_PATIENCE = timedelta(days=365)


class SendingRanks:
    """The process among them. Its methods are collective: all ranks call them in one order."""

    def __init__(self) -> None:
        """RollcallError if the process has no ranks, or does not know its place in the pod."""
        if not dist.is_available() or not dist.is_initialized():
            raise RollcallError(
                "Trainer: every_rank_sends is for the ranks of torch.distributed; call its "
                "init_process_group before, in a program that torchrun starts"
            )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._local_rank, self._local_size = _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE")
        # A group of its own, by gloo: whatever moves the model's tensors stays undisturbed.
        self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Rank, ranks, and both within the pod."""
        return self.rank, self.size, self._local_rank, self._local_size

    def together(self, call: str, do: Callable[[], Any]) -> list[Any]:
        """What `do`, a small value of JSON, returned in each rank; an error in one is raised in
        all.
        """
        found, failed = None, None
        try:
            found = do()
        except Exception as error:  # noqa: BLE001 - raised below, when the others know
            failed = error
        problem = "" if failed is None else str(failed) or type(failed).__name__
        answers = self._gather(call, [problem, found])
        if failed is not None:
            raise failed
        for rank, (other, _) in enumerate(answers):
            if other:
                raise RollcallError(f"{call}: rank {rank} of the trainer: {other}")
        return [value for _, value in answers]

    def parts(self, pairs: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """What this rank sends of the tensors, which are the same in all ranks."""
        for number, (name, tensor) in enumerate(pairs):
            part = tensor  # what is no tensor is refused where it would be written
            if isinstance(tensor, torch.Tensor):
                try:
                    part = own_part(number, tensor, rank=self.rank, ranks=self.size)
                except ValueError as error:
                    raise RollcallError(f"publish: tensor {name!r} {error}") from error
                if part is None:
                    continue
            yield name, part

    def _gather(self, call: str, value: Any) -> list[Any]:
        try:
            return rank_values.gather(value, ranks=self.size, group=self._group)
        except (RuntimeError, ValueError) as error:
            raise RollcallError(
                f"{call}: another rank of the trainer has ended, or calls something else ({error})"
            ) from error


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    if not text.isdecimal():
        raise RollcallError(
            f"Trainer: every_rank_sends needs {variable}, the {_MEANING[variable]}; torchrun and "
            "accelerate set it"
        )
    return int(text)


_MEANING = {
    "LOCAL_RANK": "number of this process in its pod",
    "LOCAL_WORLD_SIZE": "number of processes in each pod",
}
