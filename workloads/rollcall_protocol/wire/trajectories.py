"""A trajectory of an agent: all that the front sampled for it as one sample, with its reward."""

from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import Sample

MAX_TRAJECTORY_NAME = 128  # characters


@dataclass(frozen=True, slots=True)
class FinishedTrajectory:
    """From the front to the coordinator; idempotent by `trajectory`.

    `prompt` has the tokens before the first sampled one, `sample` all others: sampled, or given by
    the agent between its requests (version NOT_SAMPLED). `oldest` is the oldest sampled token's
    version. Trajectories of one `group` are compared; without a name those of the same prompt.
    """

    job_uid: str
    trajectory: str
    group: str
    prompt: tuple[int, ...]
    sample: Sample
    oldest: Version


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
