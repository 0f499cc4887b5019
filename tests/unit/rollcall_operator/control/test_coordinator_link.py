"""The link, against a server that speaks the coordinator's side of the contract."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from rollcall_operator.control.backoff import BackoffPolicy
from rollcall_operator.control.coordinator_link import CoordinatorLink, LinkSettings
from rollcall_operator.kube.errors import UnreachableError
from rollcall_operator.kube.pod_dialer import PodAddress, PodDialer
from rollcall_operator.plan.model import LinkFacts, LinkFailure
from rollcall_operator.plan.status.coordinator_contact import SILENCE_SECONDS
from rollcall_protocol.pod_contract import (
    OPERATOR_STREAM_ROUTE,
    OPERATOR_TOKEN_HEADER,
    ROSTER_ROUTE,
)
from rollcall_protocol.wire.job_snapshot import (
    JobSnapshot,
    MemberReport,
    MemberState,
    TrainingProgress,
)
from rollcall_protocol.wire.json_codec import decode
from rollcall_protocol.wire.messages import dumps
from rollcall_protocol.wire.roster import EpochCause, Roster, RosterMember

POD = PodAddress(namespace="ns", name="job-trainer-0", uid="uid-0", ip="127.0.0.1")
TOKEN = "operator-token"


def roster(epoch: int, *names: str, coordinator: str = POD.uid) -> Roster:
    members = tuple(RosterMember(n, n, "10.0.0.1", "pool") for n in names)
    return Roster("job-uid", "default", epoch, coordinator, EpochCause.MEMBERS_JOINED, members)


class Coordinator:
    """Speaks the contract: a stream of snapshots, and rosters by PUT."""

    def __init__(self) -> None:
        self.snapshot = JobSnapshot(
            pod_uid=POD.uid,
            boot=1,
            roster_epoch=0,
            roster_digest="",
            members=(),
            progress=TrainingProgress(step=0, max_steps=10, weight_version=0, rollout_reward=None),
        )
        self.rosters: list[Roster] = []
        self.streams = 0
        self.answer = 200
        self.answer_stream = b""  # empty: the snapshot
        self.confirm = True
        self._lines: set[asyncio.Queue[bytes]] = set()
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get(OPERATOR_STREAM_ROUTE, self._stream)
        app.router.add_put(ROSTER_ROUTE, self._roster)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        assert self._runner is not None
        self.say(b"close")
        await self._runner.cleanup()

    def say(self, line: bytes | JobSnapshot) -> None:
        if isinstance(line, JobSnapshot):
            self.snapshot = line
            line = dumps(line).encode() + b"\n"
        for queue in self._lines:
            queue.put_nowait(line)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self._refused(request):
            return web.json_response({"error": "bad token"}, status=401)
        self.streams += 1
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._lines.add(queue)
        try:
            await response.write(self.answer_stream or dumps(self.snapshot).encode() + b"\n")
            while (line := await queue.get()) != b"close":
                await response.write(line)
        finally:
            self._lines.discard(queue)
        return response

    async def _roster(self, request: web.Request) -> web.Response:
        if self._refused(request):
            return web.json_response({"error": "bad token"}, status=401)
        if self.answer != 200:
            return web.json_response({"error": "no", "epoch": 9}, status=self.answer)
        pushed = decode(Roster, await request.json())
        self.rosters.append(pushed)
        if self.confirm:
            epoch, digest = pushed.epoch, pushed.digest
            self.say(replace(self.snapshot, roster_epoch=epoch, roster_digest=digest))
        return web.json_response({})

    def _refused(self, request: web.Request) -> bool:
        return TOKEN not in {
            request.headers.get(OPERATOR_TOKEN_HEADER),
            request.headers.get("Authorization", "").removeprefix("Bearer "),
        }


class Credentials:
    """Gives the tokens of a list, and the last one again; counts refusals."""

    def __init__(self, *tokens: str | Exception) -> None:
        self.tokens = list(tokens)
        self.refusals = 0

    async def token(self) -> str:
        token = self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]
        if isinstance(token, Exception):
            raise token
        return token

    def refused(self) -> None:
        self.refusals += 1


class Counts:
    """Everything that a link reports."""

    def __init__(self) -> None:
        self.up = 0
        self.pushes: list[str] = []
        self.refused: list[str] = []
        self.wakes: list[float] = []

    def link_connected(self, *, up: bool) -> None:
        self.up += 1 if up else -1

    def roster_pushed(self, result: str) -> None:
        self.pushes.append(result)

    def snapshot_refused(self, reason: str) -> None:
        self.refused.append(reason)


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    server = Coordinator()
    await server.start()
    yield server
    await server.stop()


PROGRESS = 99.0  # in the place of a delay

Linked = Callable[..., tuple[CoordinatorLink, Counts]]


@pytest.fixture
async def link_to(coordinator: Coordinator) -> AsyncIterator[Linked]:
    dialer = PodDialer(None, direct=True)
    links: list[CoordinatorLink] = []

    def make(
        *,
        credentials: Credentials | None = None,
        clock: Callable[[], float] = time.time,
        silent: LinkFacts | None = None,
        **changes: Any,
    ) -> tuple[CoordinatorLink, Counts]:
        counts = Counts()
        settings = LinkSettings(
            port=coordinator.port,
            backoff=BackoffPolicy(first=0.02, longest=0.05),
            confirm_delay=0.1,
        )
        link = CoordinatorLink(
            pod=POD,
            credentials=credentials or Credentials(TOKEN),
            dialer=dialer,
            notify=counts.wakes.append,
            progressed=lambda: counts.wakes.append(PROGRESS),
            metrics=counts,
            silent=silent,
            settings=replace(settings, **changes),
            clock=clock,
        )
        link.start()
        links.append(link)
        return link, counts

    yield make
    for link in links:
        await link.close()
    await dialer.close()


async def eventually(check: Callable[[], object], *, seconds: float = 3.0) -> None:
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.005)


async def test_it_keeps_the_latest_snapshot_and_wakes_the_job(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, counts = link_to()
    await eventually(lambda: link.snapshot)
    assert counts.wakes == [0.0]
    members = (MemberReport("u1", "p1", "pool", MemberState.IN_SYNC, version=3),)
    coordinator.say(replace(coordinator.snapshot, members=members))
    await eventually(lambda: link.snapshot is not None and link.snapshot.members == members)
    assert counts.wakes == [0.0, 0.0]


async def test_a_mere_step_may_wait(coordinator: Coordinator, link_to: Linked) -> None:
    link, counts = link_to()
    await eventually(lambda: link.snapshot)
    for step in range(1, 4):
        progress = TrainingProgress(
            step=step, max_steps=10, weight_version=step, rollout_reward=0.5
        )
        coordinator.say(replace(coordinator.snapshot, progress=progress))
    await eventually(lambda: link.snapshot is not None and link.snapshot.progress.step == 3)
    assert counts.wakes == [0.0, PROGRESS, PROGRESS, PROGRESS]


async def test_a_member_version_alone_enqueues_no_job(
    coordinator: Coordinator, link_to: Linked
) -> None:
    member = MemberReport("u1", "p1", "pool", MemberState.IN_SYNC, version=3)
    coordinator.snapshot = replace(coordinator.snapshot, members=(member,))
    link, counts = link_to()
    await eventually(lambda: link.snapshot)
    newer = replace(coordinator.snapshot, members=(replace(member, version=4),))
    coordinator.say(newer)
    await eventually(lambda: link.snapshot == newer)
    assert counts.wakes == [0.0]


async def test_a_roster_is_pushed_once_and_confirmed(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, counts = link_to()
    link.set_roster(roster(1, "a"))
    await eventually(lambda: coordinator.rosters)
    for _ in range(5):
        link.set_roster(roster(1, "a"))  # each reconcile says it again
    await asyncio.sleep(0.2)
    assert coordinator.rosters == [roster(1, "a")]
    assert counts.pushes == ["accepted"]


async def test_a_newer_roster_does_not_wait_for_the_older_one_to_be_confirmed(
    coordinator: Coordinator, link_to: Linked
) -> None:
    coordinator.confirm = False
    link, _ = link_to(confirm_delay=60.0)
    link.set_roster(roster(1, "a"))
    await eventually(lambda: len(coordinator.rosters) == 1)
    link.set_roster(roster(2, "a", "b"))
    await eventually(lambda: len(coordinator.rosters) == 2, seconds=1.0)
    assert coordinator.rosters[1].epoch == 2


async def test_a_roster_that_the_coordinator_does_not_show_is_pushed_again(
    coordinator: Coordinator, link_to: Linked
) -> None:
    coordinator.confirm = False
    link, _ = link_to(confirm_delay=0.05)
    link.set_roster(roster(1, "a"))
    await eventually(lambda: len(coordinator.rosters) >= 3)


async def test_after_a_restart_of_the_coordinator_the_roster_is_pushed_again(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, counts = link_to()
    link.set_roster(roster(1, "a"))
    await eventually(lambda: coordinator.rosters)
    await coordinator.stop()
    await eventually(lambda: not link.connected)
    held_none = replace(coordinator.snapshot, boot=2, roster_epoch=0, roster_digest="")
    coordinator.snapshot = held_none
    await coordinator.start(coordinator.port)
    await eventually(lambda: len(coordinator.rosters) == 2)
    await eventually(lambda: link.snapshot is not None and link.snapshot.roster_epoch == 1)
    assert (counts.up, coordinator.streams) == (1, 2)


async def test_the_last_snapshot_stays_while_the_stream_is_away(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, _ = link_to()
    await eventually(lambda: link.snapshot)
    coordinator.say(b"close")
    await eventually(lambda: coordinator.streams == 2)  # came back by itself
    assert link.snapshot == coordinator.snapshot


async def test_a_roster_for_another_pod_is_not_pushed_here(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, _ = link_to()
    await eventually(lambda: link.snapshot)
    link.set_roster(roster(2, "a", coordinator="uid-of-the-replacement"))
    await asyncio.sleep(0.05)
    assert coordinator.rosters == []


async def test_a_refused_roster_asks_for_a_reconcile_and_backs_off(
    coordinator: Coordinator, link_to: Linked
) -> None:
    coordinator.answer = 409
    link, counts = link_to(backoff=BackoffPolicy(first=0.1, longest=10.0))
    link.set_roster(roster(1, "a"))
    await eventually(lambda: counts.pushes)
    await asyncio.sleep(0.3)
    assert set(counts.pushes) == {"refused"}
    assert len(counts.pushes) <= 4
    assert 1.0 in counts.wakes


async def test_a_wrong_token_gets_no_stream_and_no_snapshot(
    coordinator: Coordinator, link_to: Linked
) -> None:
    credentials = Credentials("guess")
    link, counts = link_to(credentials=credentials)
    await asyncio.sleep(0.1)
    assert (link.snapshot, link.connected, coordinator.streams, counts.up) == (None, False, 0, 0)
    assert credentials.refusals > 1, "each is reported, so that another token is used"


async def test_a_token_that_was_refused_is_replaced_by_another(
    coordinator: Coordinator, link_to: Linked
) -> None:
    credentials = Credentials("expired", TOKEN)
    link, _ = link_to(credentials=credentials)
    await eventually(lambda: link.connected)
    assert credentials.refusals == 1


async def test_an_api_server_that_gives_no_token_is_asked_again(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, _ = link_to(credentials=Credentials(UnreachableError("no answer"), TOKEN))
    await eventually(lambda: link.connected)
    assert coordinator.streams == 1


async def test_a_roster_is_pushed_with_the_token_of_the_hour(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, counts = link_to(credentials=Credentials(TOKEN, "expired", TOKEN))
    await eventually(lambda: link.connected)
    link.set_roster(roster(1, "a"))
    await eventually(lambda: "accepted" in counts.pushes)
    assert counts.pushes[:2] == ["failed", "accepted"], "not for good: the token is renewed"


async def test_a_snapshot_of_another_pod_does_not_count(
    coordinator: Coordinator, link_to: Linked
) -> None:
    coordinator.snapshot = replace(coordinator.snapshot, pod_uid="zombie")
    link, counts = link_to()
    await eventually(lambda: counts.refused)
    assert (set(counts.refused), link.snapshot) == ({"other_pod"}, None)


async def test_garbage_ends_the_connection_and_is_counted(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, counts = link_to()
    await eventually(lambda: link.snapshot)
    coordinator.say(b'{"type": "JobSnapshot", "surprise": 1}\n')
    await eventually(lambda: counts.refused == ["malformed"])
    await eventually(lambda: link.connected)


async def test_heartbeats_keep_a_quiet_stream_and_silence_ends_it(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, _ = link_to(silence_timeout=0.2)
    await eventually(lambda: link.snapshot)
    for _ in range(6):
        await asyncio.sleep(0.08)
        coordinator.say(b"\n")
    assert coordinator.streams == 1
    await eventually(lambda: link.facts.failure is LinkFailure.SILENT)
    assert link.facts.detail == "it has sent nothing for 0.2 s"
    await eventually(lambda: coordinator.streams >= 2)


async def test_news_of_the_pod_end_the_wait_for_the_next_try(
    coordinator: Coordinator, link_to: Linked
) -> None:
    port = coordinator.port
    await coordinator.stop()
    link, _ = link_to(backoff=BackoffPolicy(first=30.0, longest=30.0))
    await asyncio.sleep(0.05)
    await coordinator.start(port)
    link.retry_now()
    await eventually(lambda: link.connected, seconds=1.0)


async def test_a_coordinator_that_is_away_for_long_is_tried_seldom_until_there_is_news(
    coordinator: Coordinator, link_to: Linked
) -> None:
    passed = 0.0
    away = Credentials(UnreachableError("no token"))
    tries = 0

    async def token() -> str:
        nonlocal tries
        tries += 1
        raise UnreachableError("no token")

    away.token = token  # type: ignore[method-assign]
    link, _ = link_to(credentials=away, clock=lambda: time.time() + passed)
    await eventually(lambda: tries >= 5)
    passed = 300.0
    await asyncio.sleep(0.2)
    seen = tries
    await asyncio.sleep(0.3)
    assert tries == seen, "the next one comes after 30 to 60 s"
    link.retry_now()
    await eventually(lambda: tries == seen + 1)


async def test_one_that_was_silent_for_an_earlier_operator_is_tried_at_once_and_then_seldom(
    coordinator: Coordinator, link_to: Linked
) -> None:
    port = coordinator.port
    await coordinator.stop()
    since = time.time() - 300
    link, counts = link_to(silent=LinkFacts(False, since, LinkFailure.UNREACHABLE))
    await failing(coordinator, link, LinkFailure.UNREACHABLE, "")
    assert link.facts.since == since
    assert counts.wakes == [], "the planner knows it"
    await coordinator.start(port)
    await asyncio.sleep(0.3)
    assert not link.facts.connected, "the next one comes after 30 to 60 s"
    link.retry_now()
    await eventually(lambda: link.facts.connected)
    assert link.facts.since > since


async def test_close_ends_both_tasks_and_the_stream_in_the_count(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, counts = link_to()
    await eventually(lambda: link.connected)
    assert counts.up == 1
    await link.close()
    assert all(task.done() for task in link._tasks)
    assert counts.up == 0


# --- how the planner sees the connection ----------------------------------------------


async def failing(
    coordinator: Coordinator, link: CoordinatorLink, failure: LinkFailure, part: str
) -> None:
    await eventually(lambda: link.facts.failure is failure)
    assert not link.facts.connected
    assert part in link.facts.detail


async def test_a_wrong_token_is_a_refusal(coordinator: Coordinator, link_to: Linked) -> None:
    link, _ = link_to(credentials=Credentials("guess"))
    await failing(coordinator, link, LinkFailure.REFUSED, "401")


async def test_a_closed_port_is_unreachable_and_wakes_the_job(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, counts = link_to()
    await eventually(lambda: link.snapshot)
    before, woken = link.facts.since, len(counts.wakes)
    await coordinator.stop()
    await failing(coordinator, link, LinkFailure.UNREACHABLE, "")
    await eventually(lambda: "Connect call failed" in link.facts.detail)
    assert counts.wakes[woken:] == [0.0], "once, and not for each attempt"
    assert link.facts.since == pytest.approx(before, abs=1.0), "the time of the last byte"
    await coordinator.start(coordinator.port)
    await eventually(lambda: link.facts.connected)
    assert link.facts.failure is None


async def test_a_failure_wakes_the_job_at_once_only_if_it_is_another_one_than_was_planned_from(
    coordinator: Coordinator, link_to: Linked
) -> None:
    silent = LinkFacts(False, time.time(), LinkFailure.UNREACHABLE)
    for before, wakes in ((None, [SILENCE_SECONDS]), (silent, [0.0])):
        link, counts = link_to(credentials=Credentials("guess"), silent=before)
        await failing(coordinator, link, LinkFailure.REFUSED, "401")
        await asyncio.sleep(0.1)
        assert counts.wakes == wakes


async def test_silence_counts_from_the_last_byte(coordinator: Coordinator, link_to: Linked) -> None:
    link, _ = link_to(silence_timeout=0.3, backoff=BackoffPolicy(first=5.0, longest=5.0))
    await eventually(lambda: link.facts.connected)
    last = time.time()
    await failing(coordinator, link, LinkFailure.SILENT, "")
    assert link.facts.since == pytest.approx(last, abs=0.25)


async def test_a_report_that_cannot_be_read_is_incompatible(
    coordinator: Coordinator, link_to: Linked
) -> None:
    link, _ = link_to(backoff=BackoffPolicy(first=5.0, longest=5.0))
    await eventually(lambda: link.facts.connected)
    coordinator.say(b'{"type": "JobSnapshot", "surprise": 1}\n')
    await failing(coordinator, link, LinkFailure.INCOMPATIBLE, "its report cannot be read")


async def test_bytes_that_cannot_be_read_are_no_contact_however_often_they_come(
    coordinator: Coordinator, link_to: Linked
) -> None:
    coordinator.answer_stream = b'{"type": "JobSnapshot", "surprise": 1}\n'
    link, _ = link_to()
    await eventually(lambda: coordinator.streams == 1)
    first = link.facts.since
    await eventually(lambda: coordinator.streams > 10)
    assert link.facts.since == pytest.approx(first, abs=0.1)
    assert link.facts.failure is LinkFailure.INCOMPATIBLE


async def test_a_coordinator_that_sends_too_much_is_cut_off_and_tried_again_later(
    coordinator: Coordinator, link_to: Linked
) -> None:
    coordinator.answer_stream = b"\n" * 1000
    link, counts = link_to(cut_off=BackoffPolicy(first=1.0, longest=1.0))
    await eventually(lambda: link.facts.failure is LinkFailure.EXCESSIVE)
    assert link.facts.detail == "it sent more than 10 empty lines a second"
    assert counts.refused == ["too_much"]
    link.retry_now()  # what happens to its pod changes nothing
    await asyncio.sleep(0.3)
    assert coordinator.streams == 1
    coordinator.answer_stream = b""
    await eventually(lambda: link.snapshot)
    assert link.facts.failure is None


ELSEWHERE = {
    "redirect": (307, {"Location": "/elsewhere"}, "it answered 307, a redirect"),
    "encoded": (200, {"Content-Encoding": "gzip"}, "it answered with a compressed body"),
}


@pytest.mark.parametrize("kind", ELSEWHERE)
async def test_a_redirect_and_a_compressed_answer_are_failures_that_are_named(
    coordinator: Coordinator, link_to: Linked, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, headers, problem = ELSEWHERE[kind]

    async def answer(request: web.Request) -> web.Response:
        coordinator.streams += 1
        assert request.path == OPERATOR_STREAM_ROUTE, "a redirect was followed"
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(status=status, headers=headers, body=b"a secret of another service")

    await coordinator.stop()
    monkeypatch.setattr(coordinator, "_stream", answer)
    await coordinator.start()
    link, _ = link_to()
    await eventually(lambda: link.facts.failure is LinkFailure.INCOMPATIBLE)
    assert link.facts.detail.startswith(problem)
    assert "secret" not in link.facts.detail
    assert link.snapshot is None


async def test_a_roster_is_not_sent_to_where_a_redirect_leads(
    coordinator: Coordinator, link_to: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": f"{ROSTER_ROUTE}?moved"})

    took = coordinator._roster

    async def answer(request: web.Request) -> web.Response:
        return await (took(request) if request.query_string else redirect(request))

    await coordinator.stop()
    monkeypatch.setattr(coordinator, "_roster", answer)
    await coordinator.start()
    link, counts = link_to()
    await eventually(lambda: link.snapshot)
    link.set_roster(roster(1, "a"))
    await eventually(lambda: counts.pushes.count("failed") > 1)
    assert coordinator.rosters == []
