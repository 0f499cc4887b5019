"""A trajectory of an agent: its turns as the front sampled them, and its samples with a reward."""

from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import Sample
from rollcall_protocol.wire.partial_responses import Response

MAX_TRAJECTORY_NAME = 128  # characters
MOST_PARTS = 64  # of a trajectory
MAX_END = 256  # characters of the token that ends an answer
DIGEST = 64  # characters of a SHA-256


@dataclass(frozen=True, slots=True)
class Digest:
    """The first `length` characters, or messages, of something, by their SHA-256; length 0: none.

    So a long conversation is found again without being kept.
    """

    length: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class TrajectoryTurn:
    """From the front to the coordinator, which keeps it: answer `number` of a trajectory, from 0.

    Its prompt is the first `known` tokens of the sequence so far, then `given`. `oldest` is the
    oldest sampled token's version. `usual`: sampled as the job's own rollouts sample. `said` is the
    text, and `messages` are the messages, of prompt and answer; the chat template writes `end`, the
    text of the response's last token, too. Kept for `seconds`, unless another turn comes.
    """

    job_uid: str
    trajectory: str
    number: int
    known: int
    given: tuple[int, ...]
    response: Response
    oldest: Version
    usual: bool
    said: Digest
    end: str
    messages: Digest
    seconds: float

    @property
    def tokens(self) -> int:
        """How long prompt and response are."""
        return self.known + len(self.given) + len(self.response.tokens)


class TurnVerdict(StrEnum):
    """What the coordinator answers about the turns of a trajectory."""

    KEPT = "kept"
    BEHIND = "behind"  # another turn of this number is kept
    BAD_TURN = "bad_turn"  # no model and no front gives it
    WRONG_JOB = "wrong_job"
    NOT_WANTED = "not_wanted"  # the job's data is not builtin:front
    ENDED = "ended"  # the trajectory has its reward
    LOST = "lost"  # earlier turns were kept, and are not any more


@dataclass(frozen=True, slots=True)
class TrajectoryPart:
    """Answers that are one sequence: `prompt` has the tokens before the first sampled one, `sample`
    all others: sampled, or given by the agent between its requests (version NOT_SAMPLED).
    """

    prompt: tuple[int, ...]
    sample: Sample


@dataclass(frozen=True, slots=True)
class FinishedTrajectory:
    """From the front to the coordinator; idempotent by `trajectory`.

    Each of its `parts` has its reward. `oldest` is the oldest sampled token's version. Trajectories
    of one `group` are compared; without a name those whose first prompt is the same.
    """

    job_uid: str
    trajectory: str
    group: str
    parts: tuple[TrajectoryPart, ...]
    oldest: Version

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before its first answer."""
        return self.parts[0].prompt

    @property
    def tokens(self) -> int:
        """How many tokens all parts have."""
        return sum(len(part.prompt) + len(part.sample.tokens) for part in self.parts)


class TrajectoryVerdict(StrEnum):
    """What the coordinator decided about a trajectory."""

    COUNTED = "counted"  # its group is trained on once it is whole
    DUPLICATE = "duplicate"  # it was counted before
    FULL = "full"  # not now: the trainer has more than it may train on
    NOT_WANTED = "not_wanted"  # the job's data is not builtin:front
    WRONG_JOB = "wrong_job"
    BAD_SAMPLE = "bad_sample"  # it cannot be trained on
    ABANDONED_LINEAGE = "abandoned_lineage"  # sampled by weights that a restart has abandoned
    STALE = "stale"  # sampled by weights that are too old
    OTHER_BEGINNING = "other_beginning"  # it shares not even the first token with its group


LATER = frozenset({TrajectoryVerdict.FULL})
DONE = frozenset({TrajectoryVerdict.COUNTED, TrajectoryVerdict.DUPLICATE})
