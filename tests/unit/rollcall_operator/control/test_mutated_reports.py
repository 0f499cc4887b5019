"""Answers of a coordinator with random changes: each is refused in words, or planned with."""

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from hack.attacks.random_changes import Fuzz
from rollcall_operator.api.status import RLJobStatus, RolloutPoolStatus
from rollcall_operator.control.backoff import BackoffPolicy
from rollcall_operator.control.coordinator_link import CoordinatorLink, LinkSettings
from rollcall_operator.kube.pod_dialer import PodAddress, PodDialer
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import JobPlan
from rollcall_protocol.wire.job_snapshot import JobSnapshot, TrainingResult
from rollcall_protocol.wire.learning import LearningReport, LearningState
from rollcall_protocol.wire.messages import dumps
from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind, RewardFailure
from tests.unit.memory_growth import no_growth
from tests.unit.rollcall_operator.control.test_coordinator_link import Counts, Credentials
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"
ERROR = RewardError(0, RewardErrorKind.RAISED, "KeyError: 0", "task.py", 12)
WARM_UP, MANY = 20, 1000
MOST_BYTES = 1 << 20
LONGEST_DETAIL = 300


class Raw:
    """A server that answers each request with `answer`, and closes."""

    def __init__(self) -> None:
        self.answer, self.port = b"", 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.answer)
            await writer.drain()
        writer.close()


class Hostile:
    """One job that runs, and its link to a coordinator that answers with random changes."""

    def __init__(self, raw: Raw, dialer: PodDialer, fuzz: Fuzz) -> None:
        self.raw, self.dialer, self.fuzz = raw, dialer, fuzz
        self.simulator = JobSimulator()
        self.simulator.to_running()
        self.simulator.now += 60  # no status waits for its turn
        self.pod = PodAddress("team", "bad-trainer-0", self.simulator.trainer.uid, "127.0.0.1")
        self.reports = [dumps(report) for report in self._reports()]

    def _reports(self) -> list[JobSnapshot]:
        """Which have all that a report can have."""
        simulator, learning = self.simulator, LearningReport(LearningState.LEARNING, 1, 5)
        failure = RewardFailure("task:score", ERROR, 7, (0, 4), 3)
        made = []
        for finished in (None, TrainingResult(5, "it failed")):
            simulator.report(
                step=5, reward=0.5, learning=learning, finished=finished, reward_failure=failure
            )
            assert simulator.snapshot is not None
            report = simulator.snapshot
            groups = tuple(
                replace(group, sessions=(group.session,))
                for group in report.groups
                if group.session
            )
            members = tuple(replace(m, reason="late", running=2) for m in report.members)
            progress = replace(report.progress, paused="no rollouts", warning="the disk is full")
            made.append(replace(report, groups=groups, members=members, progress=progress))
        return made

    async def judge(self, number: int) -> str:
        """What becomes of another answer."""
        text = self.fuzz.random.choice(self.reports)
        change = self.fuzz.of_message if number % 4 == 1 else self.fuzz.of_kind
        answer = HEAD + change(text).encode(errors="surrogatepass") + b"\n"
        self.raw.answer = self.fuzz.of_bytes(answer) if number % 4 == 0 else answer
        link = await self._answered()
        snapshot, facts = link.snapshot, link.facts
        await link.close()
        if snapshot is None:
            assert facts.failure is not None, number
            assert 3 < len(facts.detail) <= LONGEST_DETAIL, number
            return "refused"
        check(make_plan(replace(self.simulator.observed(), snapshot=snapshot)), number)
        return "taken"

    async def _answered(self) -> CoordinatorLink:
        done = asyncio.Event()
        link = CoordinatorLink(
            pod=self.pod,
            credentials=Credentials("token"),
            dialer=self.dialer,
            notify=lambda _: done.set(),
            progressed=done.set,
            metrics=Counts(),
            settings=LinkSettings(port=self.raw.port, backoff=BackoffPolicy(first=60, longest=60)),
        )
        link.start()
        async with asyncio.timeout(10):
            await done.wait()
        return link


def check(plan: JobPlan, number: int) -> None:
    """An API server would take its statuses: numbers within bounds, texts of Unicode."""
    statuses: list[tuple[Any, Any]] = [(RLJobStatus, plan.job_status)]
    statuses += [(RolloutPoolStatus, status) for status in plan.pool_statuses.values()]
    for model, status in statuses:
        if status is not None:
            text = json.dumps(dict(status), allow_nan=False, ensure_ascii=False)
            assert len(text.encode()) < 1 << 16, number
            model.read(json.loads(text))


@contextlib.asynccontextmanager
async def hostile(seed: int) -> AsyncIterator[Hostile]:
    raw, dialer = Raw(), PodDialer(None, direct=True)
    server = await asyncio.start_server(raw, "127.0.0.1", 0)
    raw.port = server.sockets[0].getsockname()[1]
    try:
        async with server:
            yield Hostile(raw, dialer, Fuzz(random.Random(seed)))
    finally:
        await dialer.close()


@pytest.mark.parametrize("count", [100, pytest.param(MANY, marks=pytest.mark.slow)])
async def test_answers_with_random_changes_are_refused_or_planned_with(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    print("seed", count)
    async with hostile(count) as job:
        for number in range(WARM_UP):
            await job.judge(number)
        with no_growth(most=MOST_BYTES, measured=count == MANY):
            outcomes = [await job.judge(number) for number in range(WARM_UP, count)]
    assert min(outcomes.count("refused"), outcomes.count("taken")) > count // 10
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record for record in caplog.records if record.exc_info]
