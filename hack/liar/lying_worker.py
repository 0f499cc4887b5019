"""Makes a rollout lie in one of LIE_KINDS, after it has been honest for a while.

Import it before the program. Variables of the process: LIE is the kind, SEED chooses what is
random, RECORD names a file that gets a line of JSON for each lie, and for each answer to a
completion.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import signal
import time
from collections import deque
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.attacks.lying_rollout import LIES
from rollcall_protocol.wire.messages import Completion, GenerationProgress, PromptCredit
from rollcall_protocol.wire.partial_responses import PartialReport, Response

if TYPE_CHECKING:
    import aiohttp

    from rollcall_protocol.wire.messages import PromptLease

LIE, SEED, RECORD = "LIAR_LIE", "LIAR_SEED", "LIAR_RECORD"
HONEST_SECONDS = (2.0, 6.0)  # after its first completion
SOFT_SECONDS = 5.0  # of a lie that excludes no rollout, before bad completions follow
FLOOD = 200  # messages at once
HOSTILE_WAYS = ("redirects", "stalls", "truncates", "compresses")
ELSEWHERE = "http://127.0.0.1:9/"


class LieKind(StrEnum):
    """What it does. The kinds of SOFT go on to BAD_COMPLETIONS after SOFT_SECONDS."""

    BAD_COMPLETIONS = "bad-completions"
    BAD_REPORTS = "bad-reports"
    WRONG_WEIGHTS = "wrong-weights"
    HOSTILE_ANSWERS = "hostile-answers"
    REPLAYS = "replays"
    SILENCE = "silence"
    FLOODS = "floods"


OF_DONORS = frozenset({LieKind.WRONG_WEIGHTS, LieKind.HOSTILE_ANSWERS})
"""Lies to newcomers that fetch weights."""
SOFT = OF_DONORS | {LieKind.REPLAYS}
"""A completion sent again is dropped, and a donor's answer is refused, without an exclusion."""


class Liar:
    """The state of one liar: since when it lies, and its record."""

    def __init__(self, kind: LieKind, seed: int, record: str) -> None:
        self.kind, self.random = kind, random.Random(seed)
        self._record = Path(record).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._honest = self.random.uniform(*HONEST_SECONDS)
        self._first: float | None = None
        self._soft_since: float | None = None
        self.sent: deque[Completion] = deque(maxlen=20)

    def write(self, what: str, **fields: Any) -> None:
        """A line of the record."""
        self._record.write(json.dumps({"time": time.time(), "what": what, **fields}) + "\n")

    @property
    def lies(self) -> bool:
        """Whether it has been honest for long enough."""
        if self._first is None:
            self._first = time.monotonic()
        return time.monotonic() - self._first >= self._honest

    def now(self) -> LieKind:
        """The kind of its next lie; a soft one gives way to bad completions."""
        since = self._soft_since
        if since is not None and time.monotonic() - since >= SOFT_SECONDS:
            return LieKind.BAD_COMPLETIONS
        return self.kind

    def lied(self, kind: LieKind, detail: str = "") -> None:
        """Record a lie with its time; the first of the kinds in SOFT starts their time limit."""
        if kind in SOFT and self._soft_since is None:
            self._soft_since = time.monotonic()
        self.write("lie", kind=kind, detail=detail)


def _completions(liar: Liar) -> None:
    """Send lies in place of completions, and others beside them; record what is answered."""
    from rollcall_runtime.rollout.completion_sender import CompletionSender  # noqa: PLC0415

    offer, deliver = CompletionSender.offer, CompletionSender._deliver
    names = [name for name in LIES if name != "everything_twice"]
    lies: dict[int, Completion] = {}  # by identity, and so kept

    def offer_lies(sender: CompletionSender, honest: Completion) -> None:
        kind = liar.now() if liar.lies else None
        if kind is LieKind.BAD_COMPLETIONS:
            name = liar.random.choice(names)
            for lie in LIES[name](honest):
                lies[id(lie)] = lie
                liar.lied(kind, name)
                offer(sender, lie)
            return
        offer(sender, honest)
        if kind is LieKind.REPLAYS:
            for again in (honest, honest, *liar.sent):
                liar.lied(kind)
                offer(sender, replace(again))
        liar.sent.append(honest)

    async def deliver_and_record(
        sender: CompletionSender, session: aiohttp.ClientSession, completion: Completion
    ) -> str:
        outcome = await deliver(sender, session, completion)
        false = lies.pop(id(completion), None) is not None
        liar.write("answer", lease=completion.lease_id, false=false, outcome=outcome)
        return outcome

    setattr(CompletionSender, "offer", offer_lies)  # noqa: B010 - the program's own methods
    setattr(CompletionSender, "_deliver", deliver_and_record)  # noqa: B010


def _leases(liar: Liar) -> None:
    """On a lease: report false tokens, flood the coordinator, or fall silent."""
    from rollcall_runtime.rollout.agent import Agent  # noqa: PLC0415

    take = Agent._take

    def take_and_lie(agent: Agent, lease: PromptLease) -> None:
        take(agent, lease)
        if not liar.lies:
            return
        kind = liar.now()
        if kind is LieKind.BAD_REPORTS:
            liar.lied(kind)
            false = Response((10**9,), (-1.0,), (0,))
            agent._stream.send(GenerationProgress((_report(agent, lease, false),)))
        elif kind is LieKind.FLOODS:
            liar.lied(kind)
            for _ in range(FLOOD):
                agent._stream.send(PromptCredit(4096))
        elif kind is LieKind.SILENCE:
            liar.lied(kind)
            os.kill(os.getpid(), signal.SIGSTOP)

    setattr(Agent, "_take", take_and_lie)  # noqa: B010 - the program's own method


def _report(agent: Any, lease: PromptLease, false: Response) -> PartialReport:
    zeros = (0,) * lease.group_size
    return PartialReport(
        lease.lease_id, agent._driver.machine.held, zeros, (false,) * lease.group_size
    )


def _weights(liar: Liar) -> None:
    """Change a byte of each chunk that a newcomer gets."""
    from rollcall_runtime.sync.weights import catch_up  # noqa: PLC0415

    read = catch_up._read

    async def read_and_change(*arguments: Any) -> memoryview:
        chunk = await read(*arguments)
        if not liar.lies:
            return chunk
        liar.lied(LieKind.WRONG_WEIGHTS)
        changed = bytearray(chunk)
        changed[0] ^= 1
        return memoryview(changed)

    setattr(catch_up, "_read", read_and_change)  # noqa: B010 - the program's own function


def _answers(liar: Liar) -> None:
    """Have its endpoint redirect a request, stop in mid-answer, cut it off, or compress it."""
    from aiohttp import web  # noqa: PLC0415

    from rollcall_runtime.rollout.agent_server import AgentServer  # noqa: PLC0415

    make = AgentServer.__init__

    @web.middleware
    async def answer(request: web.Request, handler: Any) -> web.StreamResponse:
        if not liar.lies or liar.now() is not LieKind.HOSTILE_ANSWERS:
            found: web.StreamResponse = await handler(request)
            return found
        how = liar.random.choice(HOSTILE_WAYS)
        liar.lied(LieKind.HOSTILE_ANSWERS, how)
        if how == "redirects":
            raise web.HTTPTemporaryRedirect(ELSEWHERE)
        response = web.StreamResponse()
        if how == "compresses":
            response.headers["Content-Encoding"] = "gzip"
        else:
            response.content_length = 1 << 20
        await response.prepare(request)
        await response.write(gzip.compress(b"\n" * (1 << 24)))
        if how == "stalls":
            await asyncio.Event().wait()
        if how == "truncates" and request.transport is not None:
            request.transport.abort()
        return response

    def make_hostile(server: AgentServer, *arguments: Any, **options: Any) -> None:
        make(server, *arguments, **options)
        server._runner.app.middlewares.append(answer)

    setattr(AgentServer, "__init__", make_hostile)  # noqa: B010 - the program's own method


if LIE in os.environ:
    _liar = Liar(LieKind(os.environ[LIE]), int(os.environ[SEED]), os.environ[RECORD])
    _completions(_liar)
    _leases(_liar)
    if _liar.kind is LieKind.WRONG_WEIGHTS:
        _weights(_liar)
    if _liar.kind is LieKind.HOSTILE_ANSWERS:
        _answers(_liar)
