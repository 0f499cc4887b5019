"""Messages between a trainer that calls the library `rollcall` and its coordinator's process.

Lines as `library_link` has them. The weights lie in a file in memory that both map.
"""

import typing
from dataclasses import dataclass

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.ids import check_counts
from rollcall_protocol.wire.library_link import CancelRequest, Done, Failed
from rollcall_protocol.wire.partial_responses import Response
from rollcall_protocol.wire.roster import EpochCause, RosterMember
from rollcall_protocol.wire.weight_manifest import TensorSpec


@dataclass(frozen=True, slots=True)
class WithdrawWeights:
    """The trainer is about to write the file, which is read no more. Answer: WeightsWithdrawn."""

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

    def __post_init__(self) -> None:
        """The step is the user's, and goes into the job's status."""
        check_counts(step=self.step)


@dataclass(frozen=True, slots=True)
class PublishPart:
    """As PublishWeights, in a rank other than 0 that sends its own part. Answer: Done.

    Rank 0 has said with WeightsWithdrawn which `number` the publication has.
    """

    request: int
    number: int
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
class ReportProgress:
    """The trainer has done `step`; `reward` is the mean of its rollouts' samples. Answer: Done.

    `figures` by the names that `train.step_figures` has, as far as they are the same.
    """

    request: int
    step: int
    reward: float | None
    figures: dict[str, float]

    def __post_init__(self) -> None:
        """The step is the user's, and goes into the job's status."""
        check_counts(step=self.step)


@dataclass(frozen=True, slots=True)
class TakeMembers:
    """Where there is no operator: these rollouts, and no others, may be members. Answer: Done."""

    request: int
    members: tuple[RosterMember, ...]
    cause: EpochCause


@dataclass(frozen=True, slots=True)
class FinishTraining:
    """Training is over after `step`. Answer: Done, once the operator knows, if there is one."""

    request: int
    step: int
    operator: bool

    def __post_init__(self) -> None:
        """The step is the user's, and goes into the job's status."""
        check_counts(step=self.step)


@dataclass(frozen=True, slots=True)
class ReadMetrics:
    """Answer: MetricValues."""

    request: int


LibraryMessage = (
    WithdrawWeights
    | PublishWeights
    | PublishPart
    | GenerateResponses
    | CancelRequest
    | ReportProgress
    | TakeMembers
    | FinishTraining
    | ReadMetrics
)


@dataclass(frozen=True, slots=True)
class CoordinatorReady:
    """The coordinator listens; float32 tensors are to be written as `float32_as` (torch's name).

    `port`: where, outside of pods.
    """

    float32_as: str
    port: int = 0


@dataclass(frozen=True, slots=True)
class TrainingIsOver:
    """In the place of CoordinatorReady: a process before has finished with `step`."""

    step: int


@dataclass(frozen=True, slots=True)
class WeightsWithdrawn:
    """The file may be written. `number` is that of the next publication, for ranks that send parts;
    rank 0 alone knows it.
    """

    request: int
    number: int = 0


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
    | WeightsWithdrawn
    | Published
    | Generated
    | MetricValues
    | MemberChange
)

LIBRARY_MESSAGES: tuple[type[LibraryMessage], ...] = typing.get_args(LibraryMessage)
COORDINATOR_MESSAGES: tuple[type[CoordinatorMessage], ...] = typing.get_args(CoordinatorMessage)
