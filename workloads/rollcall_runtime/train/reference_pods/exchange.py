"""What a trainer rank and a reference pod send each other: rows, and their log-probabilities.

Both bodies are safetensors files, whose header names dtypes and shapes. Neither end trusts the
other's: what does not fit is refused with what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from rollcall_protocol.wire.trajectories import MOST_PARTS
from rollcall_runtime.train.train_batch import TrainBatch

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_protocol.job_config import JobConfig
    from rollcall_runtime.models.model_source import ModelSource

REQUEST_POSITIONS = 8192
"""Positions of a request, padding included; a row that is longer is a request of its own."""
LONGEST_ROW = 1 << 20
"""Where the model itself does not bound a row."""
HEADER_BYTES = 4096
_REQUEST = {
    "tokens": torch.int32,
    "targets": torch.int32,
    "mask": torch.uint8,
    "lengths": torch.int32,
}
_POSITION_BYTES, _ROW_BYTES = 9, 4


class ExchangeError(ValueError):
    """A body that is not what was agreed on; says what is wrong."""


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """What a reference pod takes: rows, positions with padding, of a row, and token numbers."""

    rows: int
    positions: int
    longest_row: int
    vocabulary: int

    @classmethod
    def of(cls, job: JobConfig, model: ModelSource) -> RequestBounds:
        """A request holds rows of one step, of which each fits into the model's context."""
        longest = model.positions or LONGEST_ROW
        parts = MOST_PARTS if job.data.from_front else 1
        return cls(
            rows=job.algorithm.prompts_per_step * job.algorithm.group_size * parts,
            positions=max(REQUEST_POSITIONS, longest),
            longest_row=longest,
            vocabulary=model.vocabulary,
        )

    @property
    def request_bytes(self) -> int:
        """Of the longest body."""
        return HEADER_BYTES + _POSITION_BYTES * self.positions + _ROW_BYTES * self.rows


def encode_request(batch: TrainBatch) -> bytes:
    """The rows, as a pod computes on them; extras stay here."""
    return save(
        {
            "tokens": batch.tokens.int(),
            "targets": batch.targets.int(),
            "mask": batch.mask.to(torch.uint8),
            "lengths": batch.lengths.int(),
        }
    )


def decode_request(body: bytes, bounds: RequestBounds) -> TrainBatch:
    """The rows of a request. ExchangeError if they are not within `bounds`."""
    found = _tensors(body, _REQUEST)
    tokens, lengths = found["tokens"], found["lengths"]
    if tokens.ndim != 2:
        raise ExchangeError(f"tokens is {list(tokens.shape)}, not [rows, length]")
    rows, length = tokens.shape
    _expect(1 <= rows <= bounds.rows, f"{rows} rows; a request has 1 to {bounds.rows}")
    _expect(
        1 <= length <= bounds.longest_row,
        f"a row of {length} tokens; the reference's model takes 1 to {bounds.longest_row}",
    )
    _expect(
        rows * length <= bounds.positions,
        f"{rows * length} positions; a request has {bounds.positions} at most",
    )
    for name in ("targets", "mask"):
        shape = list(found[name].shape)
        _expect(shape == [rows, length], f"{name} is {shape}, not {[rows, length]}")
    shape = list(lengths.shape)
    _expect(shape == [rows], f"lengths is {shape}, not {[rows]}")
    _expect(
        bool(((lengths >= 1) & (lengths <= length)).all()), f"lengths are not from 1 to {length}"
    )
    for name in ("tokens", "targets"):
        low, high = (int(value) for value in found[name].aminmax())
        _expect(
            low >= 0 and high < bounds.vocabulary,
            f"{name} are from {low} to {high}; the reference's model knows 0 to "
            f"{bounds.vocabulary - 1}",
        )
    mask = found["mask"] != 0
    padding = torch.arange(length) >= lengths[:, None]
    _expect(not bool((mask & padding).any()), "the mask is true in the padding")
    return TrainBatch(
        tokens=tokens.long(), targets=found["targets"].long(), mask=mask, lengths=lengths.long()
    )


def encode_answer(logprobs: Tensor) -> bytes:
    """Float32 log-probabilities, [rows, length]."""
    return save({"logprobs": logprobs.contiguous()})


def answer_bytes(batch: TrainBatch) -> int:
    """Of the longest body that answers a request for `batch`."""
    return HEADER_BYTES + 4 * batch.tokens.numel()


def decode_answer(body: bytes, batch: TrainBatch) -> Tensor:
    """Log-probabilities of the targets of `batch`, [rows, length]; 0 outside the mask.

    ExchangeError if that is not what the body holds.
    """
    found = _tensors(body, {"logprobs": torch.float32})["logprobs"]
    wanted = list(batch.mask.shape)
    _expect(list(found.shape) == wanted, f"logprobs is {list(found.shape)}, not {wanted}")
    counted = found[batch.mask]
    _expect(bool(counted.isfinite().all()), "log-probabilities are not finite")
    _expect(bool((counted <= 0).all()), "log-probabilities are above 0")
    return torch.where(batch.mask, found, 0.0)


def _tensors(body: bytes, dtypes: dict[str, torch.dtype]) -> dict[str, Tensor]:
    try:
        found = load(body)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ExchangeError(f"the body is no safetensors file: {error}") from error
    _expect(found.keys() == dtypes.keys(), f"the body has {sorted(found)}, not {sorted(dtypes)}")
    for name, dtype in dtypes.items():
        _expect(found[name].dtype == dtype, f"{name} is {found[name].dtype}, not {dtype}")
    return found


def _expect(holds: bool, problem: str) -> None:
    if not holds:
        raise ExchangeError(problem)
