"""How often a changed status is written.

| change | written within |
|---|---|
| phase, epoch, validity, end of the job | 0 s |
| a problem, a session, a condition that flips | 1 s |
| numbers only, such as the step | 10 s; with more than 50 jobs that train, 0.2 s for each |
| numbers only, while the job starts | 30 s |

A status that differs in nothing but its time stamp is not written. A pool's numbers go with those
of its job, or half that time later where its job's do not change.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from rollcall_operator.api.status import RLJobStatus, RolloutPoolStatus
from rollcall_operator.plan.timestamps import from_time

IMMEDIATELY, WITHIN_A_SECOND, WHILE_STARTING = 0.0, 1.0, 30.0

S = TypeVar("S", RLJobStatus, RolloutPoolStatus)


@dataclass(frozen=True, slots=True)
class StatusWrite(Generic[S]):
    """`status` to write now, None for nothing; `wait`: reconcile again in so many seconds."""

    status: S | None = None
    wait: float | None = None


def throttled(old: S, new: S, *, interval: float, now: float) -> StatusWrite[S]:
    """Write `new` if it differs and the last write is at least `interval` seconds ago."""
    if without_times(old) == without_times(new):
        return StatusWrite()
    since = last_write(old)
    left = 0.0 if since is None else min(since + interval - now, interval)
    return StatusWrite(status=new) if left <= 0 else StatusWrite(wait=left)


def without_times(status: S) -> S:
    """The status without the time of its last write."""
    if isinstance(status, RolloutPoolStatus):
        return status.model_copy(update={"last_update": None})
    progress = status.progress
    if progress is not None:
        progress = progress.model_copy(update={"last_update": ""})
    return status.model_copy(update={"progress": progress})


def last_write(status: RLJobStatus | RolloutPoolStatus) -> float | None:
    """Unix seconds of the last write; None when there was none."""
    if isinstance(status, RolloutPoolStatus):
        stamp = status.last_update
    else:
        stamp = status.progress.last_update if status.progress else None
    return from_time(stamp) if stamp else None
