"""Keeps the turns of agents' trajectories for the fronts, of which any pod goes on with any one."""

import time
from collections.abc import Callable, Collection

from aiohttp import web

from rollcall_protocol.prompts.kept_turns import KeptTurns
from rollcall_protocol.prompts.sample_check import MAX_POSITIONS, MAX_SECONDS, SampleBounds
from rollcall_protocol.wire.generation import NewTokens
from rollcall_protocol.wire.json_codec import CodecError, decode, parse
from rollcall_protocol.wire.trajectories import (
    DIGEST,
    MAX_END,
    MAX_TRAJECTORY_NAME,
    Digest,
    TrajectoryTurn,
    TurnVerdict,
)
from rollcall_runtime.coordinator.posted_body import read_posted
from rollcall_runtime.membership.long_messages import parsed

AT_ONCE = 64  # bodies that are read, of all fronts
_TURN_BYTES, _TOKEN_BYTES = 2**16, 64  # as JSON: all else, and a token with what is said of it
MOST_TURNS = 1 << 20  # the highest number of a turn
LONGEST_TEXT = 1 << 30  # characters of what prompt and answer say
_STATUS = {TurnVerdict.KEPT: 200, TurnVerdict.BEHIND: 409, TurnVerdict.BAD_TURN: 400}
_GONE = 410  # for what stays so


class TurnKeeper:
    """Belongs to one event loop. `refused` counts by kind what is not kept.

    `wanted`: the job trains on trajectories, of which `counted` have their reward already.
    """

    def __init__(
        self,
        *,
        job_uid: str,
        wanted: bool,
        bounds: SampleBounds,
        counted: Collection[str],
        refused: Callable[[str], None],
    ) -> None:
        self._job_uid, self._wanted, self._bounds = job_uid, wanted, bounds
        self._refused = refused
        self._longest = _TURN_BYTES + _TOKEN_BYTES * (bounds.positions or MAX_POSITIONS)
        self.kept = KeptTurns(counted)
        self._reading = 0

    async def give(self, request: web.Request) -> web.Response:
        """GET of `trajectory` from turn `since` on: 200 and a turn a line; 410 ENDED or LOST.

        400 for a query that is malformed.
        """
        name, since = request.query.get("trajectory", ""), request.query.get("since", "0")
        if not 0 < len(name) <= MAX_TRAJECTORY_NAME or not since.isdecimal() or len(since) > 7:
            self._refused("malformed")
            return web.json_response({"error": "trajectory and since are needed"}, status=400)
        self._forget()
        verdict, turns = self.kept.since(name, int(since))
        if verdict is not TurnVerdict.KEPT:
            return self._answer(verdict)
        return web.Response(body=b"".join(turn + b"\n" for turn in turns))

    async def take(self, request: web.Request) -> web.Response:
        """POST of a TrajectoryTurn: 200 KEPT, 409 BEHIND, 410 it never will be. Idempotent.

        400 for one that is malformed or bad, 413 for one too long, 408 for one that comes slowly,
        503 beyond AT_ONCE.
        """
        if self._reading >= AT_ONCE:
            self._refused("too_many_turns")
            return web.json_response({"error": "too many turns"}, status=503)
        self._reading += 1
        try:
            bounded = request.clone(client_max_size=self._longest)
            found = await read_posted(bounded, _read, refused=self._refused)
        finally:
            self._reading -= 1
        return found if isinstance(found, web.Response) else self._answer(self.add(*found))

    async def drop(self, request: web.Request) -> web.Response:
        """DELETE of `trajectory`, which cannot be trained on. Idempotent."""
        name = request.query.get("trajectory", "")
        if 0 < len(name) <= MAX_TRAJECTORY_NAME:
            self.kept.end(name)
        return web.json_response({})

    def add(self, turn: TrajectoryTurn, written: bytes) -> TurnVerdict:
        """Keep a turn, or decide why not."""
        self._forget()
        if turn.job_uid != self._job_uid:
            return TurnVerdict.WRONG_JOB
        if not self._wanted:
            return TurnVerdict.NOT_WANTED
        if self._is_bad(turn):
            return TurnVerdict.BAD_TURN
        return self.kept.add(turn, written, time.monotonic())

    def _forget(self) -> None:
        for _ in range(self.kept.forget(time.monotonic())):
            self._refused("forgotten_trajectory")

    def _answer(self, verdict: TurnVerdict) -> web.Response:
        if verdict not in {TurnVerdict.KEPT, TurnVerdict.BEHIND, TurnVerdict.ENDED}:
            self._refused(f"{verdict.value}_turn")
        status = _STATUS.get(verdict, _GONE)
        return web.json_response({"verdict": verdict.value}, status=status)

    def _is_bad(self, turn: TrajectoryTurn) -> bool:
        """Which versions there are is checked with the reward."""
        bounds, response = self._bounds, turn.response
        before = turn.known + len(turn.given)
        sampled = NewTokens(response.tokens, response.logprobs, response.versions)
        return not (
            0 < len(turn.trajectory) <= MAX_TRAJECTORY_NAME
            and 0 <= turn.number < MOST_TURNS
            and 0 < before <= (bounds.positions or MAX_POSITIONS)
            and all(0 <= token < bounds.vocabulary for token in turn.given)
            and bounds.check_new(sampled, before=before) is None
            and bool(response.tokens)
            and 0 <= turn.oldest.number <= min(response.versions)
            and len(turn.end) <= MAX_END
            and all(map(_is_digest, (turn.said, turn.messages)))
            and 0 < turn.seconds <= MAX_SECONDS
        )


def _is_digest(digest: Digest) -> bool:
    return 0 <= digest.length <= LONGEST_TEXT and len(digest.sha256) <= DIGEST


async def _read(body: bytes) -> tuple[TrajectoryTurn, bytes]:
    return await parsed(body, _decode), body


def _decode(body: bytes) -> TrajectoryTurn:
    if b"\n" in body:
        raise CodecError("turn: it is not on one line")
    return decode(TrajectoryTurn, parse(body), path="turn")
