"""When a changed status is worth a write.

What people wait for is written at once, what may flap at most once a second, mere progress every
ten seconds, and less often while a job starts, which has few writes until it runs. A status that
only differs in its time stamp is not written at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollcall_operator.plan.model import Manifest
from rollcall_operator.plan.timestamps import from_time

AT_ONCE, SOON, LAZY, STARTING = 0.0, 1.0, 10.0, 30.0


@dataclass(frozen=True, slots=True)
class StatusWrite:
    """`status` is None when nothing is to be written now; `wait`: look again in so many seconds."""

    status: Manifest | None = None
    wait: float | None = None


def write(old: Mapping[str, Any], new: Manifest, *, interval: float, now: float) -> StatusWrite:
    """The new status if it differs and the last write is `interval` seconds ago."""
    if without_times(old) == without_times(new):
        return StatusWrite()
    since = last_write(old)
    left = 0.0 if since is None else min(since + interval - now, interval)
    return StatusWrite(status=new) if left <= 0 else StatusWrite(wait=left)


def without_times(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status less the time of its last write."""
    body = {key: value for key, value in status.items() if key != "lastUpdate"}
    if "progress" in body:
        progress = body["progress"]
        body["progress"] = {k: v for k, v in progress.items() if k != "lastUpdate"}
    return body


def last_write(status: Mapping[str, Any]) -> float | None:
    """Unix seconds of the last write, None when there was none."""
    stamp = status.get("lastUpdate") or (status.get("progress") or {}).get("lastUpdate")
    return from_time(stamp) if stamp else None
