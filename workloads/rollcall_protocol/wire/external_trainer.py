"""Messages between a trainer that calls the library `rollcall` and its coordinator's process.

One JSON object a line over a socket that both inherit. The weights themselves lie in a file in
memory that both map. Each request has a number, which its answer repeats.
"""

import typing
from dataclasses import dataclass
from typing import TypeVar

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.json_codec import CodecError, decode, fields_of, parse, to_json
from rollcall_protocol.wire.partial_responses import Response
from rollcall_protocol.wire.weight_manifest import TensorSpec

LONGEST_LINE = 1 << 28
"""Bytes: a manifest of a million tensors, or a prompt of a million tokens, fits well."""


@dataclass(frozen=True, slots=True)
class WithdrawWeights:
    """The file is about to be written: nobody may read it any more. Answer: Done."""

    request: int


@dataclass(frozen=True, slots=True)
class PublishWeights:
    """The first `total_bytes` of the file are the weights of `step`. Answer: Published.

    `step` is the trainer's own count; it may repeat, go back, or be None.
    """

    request: int
    step: int | None
    tensors: tuple[TensorSpec, ...]
    total_bytes: int


@dataclass(frozen=True, slots=True)
class GenerateResponses:
    """`samples` responses to each of `prompts`. Answers: a Generated for each, then Done.

    The seed of sample j of prompt i follows from `seed`, i and j.
    """

    request: int
    prompts: tuple[tuple[int, ...], ...]
    samples: int
    sampling: SamplingConfig
    seed: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Nobody waits for the answer of `cancelled` any more. No answer."""

    cancelled: int


@dataclass(frozen=True, slots=True)
class ReportProgress:
    """The trainer has done `step`; `reward` is the mean of its rollouts' samples. Answer: Done.

    `figures` by the names that `train.step_figures` has, as far as they are the same.
    """

    request: int
    step: int
    reward: float | None
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class FinishTraining:
    """Training is over after `step`. Answer: Done, once the operator knows."""

    request: int
    step: int


@dataclass(frozen=True, slots=True)
class ReadMetrics:
    """Answer: MetricValues."""

    request: int


LibraryMessage = (
    WithdrawWeights
    | PublishWeights
    | GenerateResponses
    | CancelRequest
    | ReportProgress
    | FinishTraining
    | ReadMetrics
)


@dataclass(frozen=True, slots=True)
class CoordinatorReady:
    """The coordinator listens; float32 tensors are to be written as `float32_as` (torch's name)."""

    float32_as: str


@dataclass(frozen=True, slots=True)
class TrainingIsOver:
    """In the place of CoordinatorReady: a process before has finished with `step`."""

    step: int


@dataclass(frozen=True, slots=True)
class Done:
    """A request has been done."""

    request: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A request could not be done; `error` says where, what, and what to do."""

    request: int
    error: str


@dataclass(frozen=True, slots=True)
class Published:
    """Each of `members` (pods) serves `version`, or gets it first when it comes back.

    `left_out`: pods that did not take part to the end, with the reason.
    """

    request: int
    version: int
    members: tuple[str, ...]
    left_out: dict[str, str]
    seconds: float


@dataclass(frozen=True, slots=True)
class Generated:
    """Response number `sample` to prompt number `prompt`."""

    request: int
    prompt: int
    sample: int
    response: Response


@dataclass(frozen=True, slots=True)
class MetricValues:
    """Figures by their names."""

    request: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A rollout `joined`, serves the newest weights (`current`), or was `left out`.

    `version` is the number that it serves. `cause` says why it was left out.
    """

    kind: str
    pod: str
    time: float
    version: int | None = None
    cause: str = ""


CoordinatorMessage = (
    CoordinatorReady
    | TrainingIsOver
    | Done
    | Failed
    | Published
    | Generated
    | MetricValues
    | MemberChange
)

LIBRARY_MESSAGES: tuple[type[LibraryMessage], ...] = typing.get_args(LibraryMessage)
COORDINATOR_MESSAGES: tuple[type[CoordinatorMessage], ...] = typing.get_args(CoordinatorMessage)

M = TypeVar("M")


def to_line(message: LibraryMessage | CoordinatorMessage) -> bytes:
    """One JSON object on one line, with the message's name in `type`."""
    return f"{to_json({'type': type(message).__name__, **fields_of(message)})}\n".encode()


def from_line(line: bytes, expected: tuple[type[M], ...]) -> M:
    """The message, one of the `expected` classes. CodecError names the field that is wrong."""
    body = parse(line)
    name = body.pop("type", None) if isinstance(body, dict) else None
    found = next((cls for cls in expected if cls.__name__ == name), None)
    if found is None:
        raise CodecError(f"type: {name!r} is not one of {[cls.__name__ for cls in expected]}")
    return decode(found, body)
