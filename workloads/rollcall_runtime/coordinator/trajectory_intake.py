"""Takes agents' trajectories from the front, each once, and gives whole groups to the ledger."""

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.prompts.trajectory_groups import TrajectoryGroups, as_samples
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.json_codec import decode, parse
from rollcall_protocol.wire.messages import Sample
from rollcall_protocol.wire.partial_responses import Response
from rollcall_protocol.wire.trajectories import (
    DONE,
    LATER,
    MAX_TRAJECTORY_NAME,
    MOST_PARTS,
    FinishedTrajectory,
    TrajectoryPart,
    TrajectoryVerdict,
)
from rollcall_runtime.coordinator.posted_body import read_posted
from rollcall_runtime.coordinator.turn_keeper import TurnKeeper

AT_ONCE = 8  # bodies that are read, of all fronts
OPEN_SECONDS = 3600.0  # for a group to become whole

TakeGroup = Callable[[tuple[int, ...], tuple[Sample, ...], Version], None]
"""Gives a group's common tokens, samples and oldest version to the ledger."""


class TrajectoryIntake:
    """Belongs to one event loop. `refused` counts by kind what does not count.

    `newest` is the newest version that rollouts may serve, None before the first; `room` says
    whether the ledger takes another group, and `oldest` the lowest number of a version that is not
    too stale. `wanted`: the job trains on trajectories. `turns` keeps those without a reward.
    """

    def __init__(
        self,
        *,
        job_uid: str,
        wanted: bool,
        bounds: SampleBounds,
        groups: TrajectoryGroups,
        newest: Callable[[], Version | None],
        oldest: Callable[[], int],
        room: Callable[[], bool],
        take: TakeGroup,
        refused: Callable[[str], None],
    ) -> None:
        self._job_uid, self._wanted, self._bounds, self.groups = job_uid, wanted, bounds, groups
        self._newest, self._oldest, self._room, self._take = newest, oldest, room, take
        self._refused = refused
        self._reading = 0
        self.turns = TurnKeeper(
            job_uid=job_uid, wanted=wanted, bounds=bounds, counted=groups.counted, refused=refused
        )

    def count(self, finished: FinishedTrajectory) -> TrajectoryVerdict:
        """Count a trajectory, or decide why not."""
        for _ in range(self.groups.expire(time.monotonic(), oldest=self._oldest())):
            self._refused("expired_trajectory")
        verdict = self._verdict(finished)
        if verdict not in LATER | {TrajectoryVerdict.WRONG_JOB}:
            self.turns.kept.end(finished.trajectory)
        if verdict is not TrajectoryVerdict.COUNTED:
            self._refused(f"{verdict.value}_trajectory")
            return verdict
        group = self.groups.add(finished, time.monotonic())
        if group is not None:
            tokens, samples = as_samples(group)
            self._take(tokens, samples, min(one.oldest for one in group))
        return verdict

    async def handle(self, request: web.Request) -> web.Response:
        """POST of a FinishedTrajectory: 200 counted, 409 dropped for good, 503 later. Idempotent.

        400 for one that is malformed, 413 for one too long, 408 for one that comes slowly.
        """
        if self._reading >= AT_ONCE:
            self._refused("too_many_trajectories")
            return web.json_response({"error": "too many trajectories"}, status=503)
        self._reading += 1
        try:
            finished = await read_posted(request, _read, refused=self._refused)
        finally:
            self._reading -= 1
        if isinstance(finished, web.Response):
            return finished
        verdict = self.count(finished)
        status = 200 if verdict in DONE else 503 if verdict in LATER else 409
        return web.json_response({"verdict": verdict.value}, status=status)

    def _verdict(self, finished: FinishedTrajectory) -> TrajectoryVerdict:
        if finished.job_uid != self._job_uid:
            return TrajectoryVerdict.WRONG_JOB
        if not self._wanted:
            return TrajectoryVerdict.NOT_WANTED
        if self.groups.knows(finished.trajectory):
            return TrajectoryVerdict.DUPLICATE
        newest = self._newest()
        if newest is None or not self._room():
            return TrajectoryVerdict.FULL
        return self._of_new(finished, newest)

    def _of_new(self, finished: FinishedTrajectory, newest: Version) -> TrajectoryVerdict:
        if finished.oldest.lineage != newest.lineage:
            return TrajectoryVerdict.ABANDONED_LINEAGE
        if self._is_bad(finished, newest):
            return TrajectoryVerdict.BAD_SAMPLE
        if finished.oldest.number < self._oldest():
            return TrajectoryVerdict.STALE
        if not self.groups.fits(finished):
            return TrajectoryVerdict.OTHER_BEGINNING
        return TrajectoryVerdict.COUNTED

    def _is_bad(self, finished: FinishedTrajectory, newest: Version) -> bool:
        names = (finished.trajectory, finished.group)
        if not finished.trajectory or max(map(len, names)) > MAX_TRAJECTORY_NAME:
            return True
        rewards = {part.sample.reward for part in finished.parts}
        if not 0 < len(finished.parts) <= MOST_PARTS or len(rewards) > 1:
            return True
        return any(self._is_bad_part(part, finished.oldest, newest) for part in finished.parts)

    def _is_bad_part(self, part: TrajectoryPart, oldest: Version, newest: Version) -> bool:
        sampled = [version for version in part.sample.versions if version >= 0]
        if not sampled or not 0 <= oldest.number <= min(sampled):
            return True
        bounds, before = self._bounds, len(part.prompt)
        return (
            bounds.check_request(part.prompt, Response()) is not None
            or bounds.check_sample(part.sample, before=before, newest=newest) is not None
        )


async def _read(body: bytes) -> FinishedTrajectory:
    return await asyncio.to_thread(_decode, body)


def _decode(body: bytes) -> FinishedTrajectory:
    return decode(FinishedTrajectory, parse(body), path="trajectory")
