"""An agent against a coordinator that is only two listeners: credits, weights, drain."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_protocol.pod_contract import TICKET_HEADER
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.generation import GenerationRequest
from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.json_codec import to_json
from rollcall_protocol.wire.messages import (
    MEMBER_MESSAGES,
    Ack,
    AckPhase,
    CatchUp,
    CaughtUp,
    Commit,
    Completion,
    CoordinatorMessage,
    Draining,
    GenerationProgress,
    Hello,
    Join,
    MemberMessage,
    Prepare,
    PromptCredit,
    PromptLeaseReturned,
    PromptLeaseRevoked,
    Seat,
    SessionReady,
    Stage,
    TicketKey,
    dumps,
    loads,
)
from rollcall_protocol.wire.partial_responses import PartialResponses, Response
from rollcall_runtime.rollout.agent import Agent, AgentDependencies, AgentSettings
from rollcall_runtime.rollout.inference_engine import WeightMismatchError
from rollcall_runtime.sync.open_engine import OpenEngine
from rollcall_runtime.sync.weights.tickets import sign_ticket
from rollcall_runtime.worker.environment import Pod, RolloutEnvironment
from tests.networks import own_network
from tests.unit.rollcall_runtime.coordinator.fake_group import MANIFEST, MemoryEngine
from tests.unit.rollcall_runtime.credentials import ISSUER, bearer, trust
from tests.unit.rollcall_runtime.jobs import job_config, pool_config
from tests.unit.rollcall_runtime.rollout.fake_engine import FakeEngine, lease, rollout_metrics
from tests.unit.rollcall_runtime.rollout.function_scorer import REVERSE

MEMBER = MemberId("uid-1", "boot-1")
SESSION = SessionId(1, 1, 1)
V1 = Version(Lineage(1, 1), 1)
KEY = "ab" * 32
TOKEN = ISSUER.pod_token(job_uid="job-uid", pod="reverse-cpu-0", pod_uid="uid-1")


class Coordinator:
    """Records what a member says and completes; `say` speaks on its newest stream."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.received: asyncio.Queue[MemberMessage] = asyncio.Queue()
        self.completions: asyncio.Queue[Completion] = asyncio.Queue()
        self.refuses_streams = False
        self.refused = asyncio.Event()
        self._socket: web.WebSocketResponse | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        runners = []
        for method, route, handler, port in (
            ("GET", pod_contract.MEMBER_STREAM_ROUTE, self._stream, pod_contract.MEMBERSHIP_PORT),
            ("POST", pod_contract.COMPLETIONS_ROUTE, self._complete, pod_contract.COMPLETIONS_PORT),
        ):
            application = web.Application()
            application.router.add_route(method, route, handler)
            runner = web.AppRunner(application, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, self.address, port).start()
            runners.append(runner)
        try:
            yield
        finally:
            for runner in runners:
                await runner.cleanup()

    async def say(self, message: CoordinatorMessage) -> None:
        assert self._socket is not None
        await self._socket.send_str(dumps(message))

    async def hang_up(self) -> None:
        """End the newest stream."""
        assert self._socket is not None
        await self._socket.close()

    async def ended(self) -> None:
        """Wait until the member has ended its stream."""
        while self._socket is None or not self._socket.closed:
            await asyncio.sleep(0.01)

    async def receive(self, expected: type[MemberMessage]) -> MemberMessage:
        """The next message of a kind; others before it are passed over."""
        while not isinstance(message := await self.received.get(), expected):
            pass
        return message

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self.refuses_streams:
            self.refused.set()
            return web.Response(status=503)
        self._socket = socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for frame in socket:
            self.received.put_nowait(loads(frame.data, MEMBER_MESSAGES))
        return socket

    async def _complete(self, request: web.Request) -> web.Response:
        self.completions.put_nowait(loads(await request.read(), Completion))
        return web.Response()


class Bench:
    """One agent and its coordinator on addresses of their own."""

    def __init__(self, engine: FakeEngine, **algorithm: Any) -> None:
        network = own_network()
        self.engine, self.address = engine, f"{network}.2"
        self.coordinator = Coordinator(f"{network}.1")
        self.metrics = rollout_metrics()
        environment = RolloutEnvironment(
            job=job_config(algorithm=algorithm),
            pool=pool_config(drain_timeout=5.0),
            pod=Pod("reverse-cpu-0", "uid-1", self.address),
            coordinator=f"{network}.1",
            token=lambda: TOKEN,
            trust=trust(),
            state_dir=Path("/nowhere"),
        )
        self.agent = Agent(
            environment=environment,
            member=MEMBER,
            dependencies=AgentDependencies(
                bounds=SampleBounds(64),
                engine=engine,
                sync=OpenEngine("default", MemoryEngine(), "here"),
                reward=REVERSE,
                settings=AgentSettings(concurrency=2),
                metrics=self.metrics,
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Bench"]:
        async with self.coordinator.listening():
            self.task = asyncio.create_task(self.agent.run())
            try:
                async with asyncio.timeout(10):
                    hello = await self.coordinator.receive(Hello)
                    assert isinstance(hello, Hello)
                    assert (hello.member, hello.address) == (MEMBER, self.address)
                    yield self
            finally:
                await self.engine.close()
                self.task.cancel()
                await asyncio.gather(self.task, return_exceptions=True)

    async def probe(self, what: str = "readyz") -> tuple[int, str]:
        """What the probe answers the kubelet."""
        url = f"http://{self.address}:{pod_contract.METRICS_PORT}/{what}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, (await answer.text()).strip()

    async def until_ready(self) -> None:
        """Wait for a probe that says so."""
        while (await self.probe())[0] != 200:
            await asyncio.sleep(0.01)

    async def stage(self, version: Version) -> Ack:
        """Form a session and stage `version`; the answer to that."""
        seats = (Seat(MemberId("t", "t"), self.coordinator.address, ""), Seat(MEMBER, "", ""))
        for message in (Prepare(SESSION, seats), Join(SESSION)):
            assert not (await self.answer(message)).error
        return await self.answer(Stage(SESSION, version, MANIFEST))

    async def commit(self, version: Version) -> Ack:
        """Form a session, stage `version` and commit it; the answer to the commit."""
        assert not (await self.stage(version)).error
        ack = await self.answer(Commit(SESSION, version))
        assert ack.phase is AckPhase.COMMIT
        return ack

    async def answer(self, message: CoordinatorMessage) -> Ack:
        """What the member says to a message of the coordinator."""
        await self.coordinator.say(message)
        ack = await self.coordinator.receive(Ack)
        assert isinstance(ack, Ack)
        return ack


async def test_two_batches_are_kept_in_hand() -> None:
    async with Bench(FakeEngine(blocked=True)).running() as bench:
        assert await bench.coordinator.receive(PromptCredit) == PromptCredit(4)
        await bench.commit(V1)
        for number in range(4):
            await bench.coordinator.say(lease(number))
        await bench.engine.requested(4)
        bench.engine.go.set()
        asked = 0
        while asked < 4:
            wanted = await bench.coordinator.receive(PromptCredit)
            assert isinstance(wanted, PromptCredit)
            asked += wanted.prompts
        assert asked == 4
        done = [await bench.coordinator.completions.get() for _ in range(4)]
        assert {completion.lease_id for completion in done} == {lease(n).lease_id for n in range(4)}
        assert {completion.version for completion in done} == {V1}


class ReceivingEngine(FakeEngine):
    """Takes weights alone."""

    generates = False


async def test_an_engine_that_samples_nothing_is_announced_and_asks_for_no_prompts() -> None:
    async with Bench(ReceivingEngine()).running() as bench:
        assert not bench.agent._hello().generates
        await bench.commit(V1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bench.coordinator.receive(PromptCredit), 0.2)


async def test_a_committed_version_is_served_and_given_to_newcomers() -> None:
    async with Bench(FakeEngine()).running() as bench:
        assert not (await bench.commit(V1)).error
        assert bench.engine.version == 1
        labels = bench.metrics.labels
        assert bench.metrics.registry.get_sample_value("rollcall_weight_version", labels) == 1
        assert bench.metrics.registry.get_sample_value("rollcall_epoch", labels) == 1
        url = f"http://{bench.address}:{pod_contract.AGENT_PORT}{pod_contract.WEIGHTS_ROUTE}?version={V1}"
        await bench.coordinator.say(TicketKey(KEY))
        await bench.coordinator.say(CatchUp(V1, MANIFEST, ()))
        await bench.coordinator.receive(CaughtUp)  # so it has handled what came before
        tickets = {TICKET_HEADER: sign_ticket(KEY, str(V1))}
        async with aiohttp.ClientSession() as session:
            async with session.get(url, headers=tickets) as answer:
                assert answer.status == 200
            async with session.get(url, headers=bearer(TOKEN)) as answer:
                assert answer.status == 401, "a token is for the coordinator alone"


async def test_weights_that_do_not_fit_leave_the_old_ones_served() -> None:
    engine = FakeEngine()
    async with Bench(engine).running() as bench:
        await bench.commit(V1)
        engine.refuse = WeightMismatchError("missing head.weight")
        ack = await bench.commit(Version(V1.lineage, 2))
        assert ack.own_fault
        assert "missing head.weight" in ack.error
        assert engine.version == 1
        assert engine.prepared == [1, 2], "before the commit"


@pytest.mark.parametrize(
    "error",
    [
        WeightMismatchError("missing head.weight"),
        RuntimeError("rank 0: out of memory"),
        TimeoutError("not within 600 s"),
        OSError(errno.ENOSPC, "no space left"),
    ],
)
async def test_weights_that_cannot_be_prepared_are_the_rollouts_own_fault(error: Exception) -> None:
    engine = FakeEngine()
    async with Bench(engine).running() as bench:
        await bench.commit(V1)
        engine.unprepared = error
        ack = await bench.stage(Version(V1.lineage, 2))
        assert ack.own_fault, "the others' session goes on"
        assert str(error) in ack.error
        assert engine.version == 1


async def test_the_probe_says_not_current_until_it_serves_a_version_in_a_session() -> None:
    async with Bench(FakeEngine()).running() as bench:
        assert await bench.probe() == (503, "not current: serves no version yet")
        await bench.commit(V1)
        assert await bench.probe() == (503, "not current: in no usable session")
        await bench.coordinator.say(SessionReady(SESSION))
        await bench.until_ready()


async def test_the_probe_says_not_current_while_it_is_behind_but_not_while_a_session_forms() -> (
    None
):
    async with Bench(FakeEngine()).running() as bench:
        await bench.commit(V1)
        await bench.coordinator.say(SessionReady(SESSION))
        await bench.until_ready()
        later = SessionId(1, 1, 2)
        await bench.coordinator.say(Prepare(later, ()))
        await bench.coordinator.receive(Ack)
        assert (await bench.probe())[0] == 200
        await bench.coordinator.say(CatchUp(Version(V1.lineage, 2), MANIFEST, ()))
        await bench.coordinator.receive(CaughtUp)  # no donor had it
        assert await bench.probe() == (503, "not current: in no usable session")
        await bench.coordinator.say(SessionReady(later))
        await bench.until_ready()


async def test_the_probe_of_a_rollout_with_a_new_stream_waits_for_a_session_again() -> None:
    async with Bench(FakeEngine()).running() as bench:
        await bench.commit(V1)
        await bench.coordinator.say(SessionReady(SESSION))
        await bench.until_ready()
        await bench.coordinator.hang_up()
        await bench.coordinator.receive(Hello)
        status, why = await bench.probe()
        assert (status, why) == (503, "not current: in no usable session")


async def test_the_probe_of_a_rollout_without_a_stream_says_so() -> None:
    async with Bench(FakeEngine()).running() as bench:
        await bench.commit(V1)
        await bench.coordinator.say(SessionReady(SESSION))
        await bench.until_ready()
        bench.coordinator.refuses_streams = True
        await bench.coordinator.hang_up()
        await bench.coordinator.refused.wait()
        assert await bench.probe() == (503, "no stream to the coordinator")


async def test_the_probe_takes_no_word_about_another_session() -> None:
    async with Bench(FakeEngine()).running() as bench:
        await bench.commit(V1)
        await bench.coordinator.say(SessionReady(SessionId(1, 1, 9)))
        await bench.coordinator.say(Stage(SESSION, Version(V1.lineage, 2), MANIFEST))
        await bench.coordinator.receive(Ack)  # so it has handled what came before
        assert await bench.probe() == (503, "not current: in no usable session")


async def test_asked_to_drain_it_finishes_what_runs_and_leaves() -> None:
    async with Bench(FakeEngine(blocked=True)).running() as bench:
        await bench.commit(V1)
        for number in range(4):
            await bench.coordinator.say(lease(number))
        await bench.engine.requested(4)
        url = f"http://{bench.address}:{pod_contract.AGENT_PORT}{pod_contract.DRAIN_ROUTE}"
        async with aiohttp.ClientSession() as session:
            async with session.post(url) as answer:
                assert answer.status == 401
            assert not bench.task.done()
            other = ISSUER.pod_token(job_uid="job-uid", pod="reverse-cpu-1", pod_uid="uid-2")
            async with session.post(url, headers=bearer(other)) as answer:
                assert answer.status == 403, "another rollout"
            async with session.post(url, headers=bearer(TOKEN)) as answer:
                assert answer.status == 202
        assert isinstance(await bench.coordinator.receive(Draining), Draining)
        returned = [await bench.coordinator.receive(PromptLeaseReturned) for _ in range(2)]
        assert returned == [
            PromptLeaseReturned(lease(2).lease_id),
            PromptLeaseReturned(lease(3).lease_id),
        ]
        bench.engine.go.set()
        await bench.coordinator.ended()
        assert await bench.probe() == (503, "draining")
        await asyncio.sleep(0.3)
        assert not bench.task.done(), "its pod would start it again"
        assert bench.coordinator.received.empty(), "it does not come back"
        bench.agent.stop("SIGTERM")
        await bench.task
        done = [bench.coordinator.completions.get_nowait().lease_id for _ in range(2)]
        assert sorted(done) == [lease(0).lease_id, lease(1).lease_id]
        count = bench.metrics.registry.get_sample_value
        refused = bench.metrics.labels | {"what": "no_token"}
        assert count("rollcall_refused_total", refused) == 1


async def test_a_lease_that_arrives_during_the_drain_is_returned() -> None:
    async with Bench(FakeEngine(blocked=True)).running() as bench:
        await bench.commit(V1)
        await bench.coordinator.say(lease(0))
        await bench.engine.requested()
        bench.agent.drain("asked to")
        await bench.coordinator.say(lease(1))
        returned = await bench.coordinator.receive(PromptLeaseReturned)
        assert returned == PromptLeaseReturned(lease(1).lease_id)


async def test_it_reports_new_tokens_and_stops_revoked_leases() -> None:
    async with Bench(FakeEngine(blocked=True, early=1)).running() as bench:
        await bench.commit(V1)
        for number in range(3):
            await bench.coordinator.say(lease(number))
        progress = await bench.coordinator.receive(GenerationProgress)
        assert isinstance(progress, GenerationProgress)
        reports = {report.lease_id: report for report in progress.reports}
        assert [response.tokens for response in reports[lease(0).lease_id].responses] == [
            (3,),
            (3,),
        ]
        assert reports[lease(0).lease_id].version == V1
        assert not reports[lease(2).lease_id].responses, "it only waits"
        await bench.coordinator.say(PromptLeaseRevoked(lease(2).lease_id))
        await bench.coordinator.receive(PromptCredit)
        bench.engine.go.set()
        done = [await bench.coordinator.completions.get() for _ in range(2)]
        assert {completion.lease_id for completion in done} == {
            lease(0).lease_id,
            lease(1).lease_id,
        }
        assert len(bench.engine.requests) == 4, "two responses of two leases"


async def test_on_a_new_stream_it_reports_all_active_leases_at_once() -> None:
    async with Bench(FakeEngine(blocked=True, early=1)).running() as bench:
        await bench.commit(V1)
        await bench.coordinator.say(lease(0))
        first = await bench.coordinator.receive(GenerationProgress)
        await bench.coordinator.hang_up()
        await bench.coordinator.receive(Hello)
        assert await bench.coordinator.receive(GenerationProgress) == first


async def test_in_the_deterministic_mode_each_lease_is_generated_alone() -> None:
    async with Bench(FakeEngine(early=1), deterministic=True, max_staleness=0).running() as bench:
        assert await bench.coordinator.receive(PromptCredit) == PromptCredit(2)
        await bench.commit(V1)
        for number in range(2):
            await bench.coordinator.say(lease(number))
        for _ in range(2):
            await bench.coordinator.completions.get()
        seeds = [request.seed for request in bench.engine.requests]
        assert (seeds[0], seeds[2]) == (0, 1), "the second lease when the first has ended"


class SlowlyStartingEngine(FakeEngine):
    """Never ends its start."""

    async def start(self) -> None:
        await asyncio.Event().wait()


async def test_a_rollout_is_not_healthy_before_its_engine_has_started() -> None:
    bench = Bench(SlowlyStartingEngine())
    async with bench.coordinator.listening(), asyncio.timeout(10):
        task = asyncio.create_task(bench.agent.run())
        await asyncio.sleep(0.3)
        assert await bench.probe("healthz") == (503, "the inference engine is starting")
        bench.agent.stop("SIGTERM")
        await task
    async with Bench(FakeEngine()).running() as bench:
        assert await bench.probe("healthz") == (200, "ok")


async def test_a_rollout_that_is_stopped_while_its_engine_starts_leaves_at_once() -> None:
    bench = Bench(SlowlyStartingEngine())
    async with bench.coordinator.listening(), asyncio.timeout(10):
        task = asyncio.create_task(bench.agent.run())
        await asyncio.sleep(0.3)
        assert not task.done()
        bench.agent.stop("SIGTERM")
        await task


class UncloseableEngine(FakeEngine):
    """Fails when it is closed."""

    async def close(self) -> None:
        await super().close()
        raise RuntimeError("cannot close")


async def test_its_ports_are_free_again_even_if_the_engine_cannot_be_closed() -> None:
    bench = Bench(UncloseableEngine())
    async with bench.coordinator.listening():
        task = asyncio.create_task(bench.agent.run())
        await bench.coordinator.receive(Hello)
        task.cancel()
        with pytest.raises(RuntimeError, match="cannot close"):
            await task
    for port in (pod_contract.METRICS_PORT, pod_contract.AGENT_PORT):
        socket.create_server((bench.address, port)).close()


@pytest.mark.parametrize(
    ("begun", "fault"),
    [
        ((Response((64,), (-1.0,), (0,)), Response()), "token"),
        ((Response((3,), (0.5,), (0,)), Response()), "logprob"),
        ((Response((3,), (-1.0,), (-1,)), Response()), "version"),
        ((Response((3,), (-1.0,), (0,)),), "group_size"),
    ],
)
async def test_tokens_of_another_rollout_that_cannot_be_are_sampled_again(
    begun: tuple[Response, ...], fault: str
) -> None:
    async with Bench(FakeEngine()).running() as bench:
        bench.engine.go.set()
        await bench.commit(V1)
        await bench.coordinator.say(lease(0, begun=PartialResponses(V1, begun)))
        completion = await asyncio.wait_for(bench.coordinator.completions.get(), 5)
        assert completion.lease_id == lease(0).lease_id
        assert not any(request.begun.tokens for request in bench.engine.requests)
        count = bench.metrics.registry.get_sample_value
        refused = bench.metrics.labels | {"what": f"bad_partial_{fault}"}
        assert count("rollcall_refused_total", refused) == 1


async def test_beside_leased_prompts_the_front_has_no_more_requests_than_the_trainer() -> None:
    async with Bench(FakeEngine(blocked=True), group_size=5).running() as bench:
        await bench.commit(V1)
        await bench.coordinator.say(TicketKey(KEY))
        await bench.coordinator.say(lease(1, group_size=5))
        await bench.engine.requested(5)
        url = f"http://{bench.address}:{pod_contract.AGENT_PORT}{pod_contract.GENERATE_ROUTE}"
        headers = {TICKET_HEADER: sign_ticket(KEY, pod_contract.GENERATE_ROUTE)}
        body = to_json(GenerationRequest((3, 4), SamplingConfig(max_tokens=3), seed=1))
        async with aiohttp.ClientSession(headers=headers) as session:

            async def asked() -> int:
                async with session.post(url, data=body) as answer:
                    return answer.status

            statuses = await asyncio.gather(*(asked() for _ in range(14)))
            assert statuses.count(200) == 2 * 5, "as many as of 2 leases of 5"
            assert statuses.count(429) == 4
