"""Probes: how many answers decide, in which order they are asked, and what each kind asks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rollcall_local.kubelet.probes import EAGER_SECONDS, ContainerProbes, Verdict, ask

Object = dict[str, Any]

skips_waits = pytest.mark.asyncio(loop_factories=["skips_waits"])

# --- thresholds -------------------------------------------------------------------------------


def verdict(answers: str, *, every: float = 10.0, **probe: Any) -> Verdict:
    """After answers, `+` or `-`, at equal intervals."""
    made = Verdict(probe)
    for number, answer in enumerate(answers):
        made.took(good=answer == "+", at=100.0 + number * every)
    return made


def test_one_success_is_enough_unless_more_are_asked_for() -> None:
    assert verdict("+").holds
    assert not verdict("++", successThreshold=3).holds
    assert not verdict("++-++", successThreshold=3).holds
    assert verdict("-+++", successThreshold=3).holds


def test_three_failures_in_a_row_are_enough_unless_more_are_asked_for() -> None:
    assert not verdict("--").failed
    assert not verdict("--+--").failed
    assert verdict("+---").failed
    assert not verdict("---", failureThreshold=4).failed
    assert verdict("-", failureThreshold=1).failed


def test_what_held_holds_until_it_has_failed_too_often() -> None:
    assert verdict("+--").holds
    assert not verdict("+---").holds
    assert verdict("+---+").holds
    assert not verdict("+---+").failed


def test_asking_more_often_than_the_period_fails_no_sooner() -> None:
    """Failures must last as long as that many periods."""
    assert not verdict("-" * 20, every=1.0, periodSeconds=10).failed
    assert verdict("-" * 21, every=1.0, periodSeconds=10).failed
    assert not verdict("-" * 15 + "+" + "-" * 20, every=1.0, periodSeconds=10).failed


# --- one after another ------------------------------------------------------------------------


class Container:
    """Answers as it is told; `asked` has when each probe asked, in seconds from the start."""

    def __init__(self, **probes: Object) -> None:
        self.answers = dict.fromkeys(probes, True)
        self.asked: dict[str, list[float]] = {name: [] for name in probes}
        self.changes: list[tuple[bool, bool]] = []
        spec = {name: {**probe, "name": name} for name, probe in probes.items()}
        self.probes = ContainerProbes(spec, asked=self._ask, changed=self._changed)

    async def _ask(self, probe: Object) -> bool:
        name = probe["name"]
        self.asked[name].append(asyncio.get_running_loop().time())
        return self.answers[name]

    def _changed(self) -> None:
        self.changes.append((self.probes.started, self.probes.ready))

    async def run(self, *, seconds: float) -> str:
        """What `run` returns within that time; empty if it goes on."""
        async with asyncio.timeout(seconds):
            return await self.probes.run()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.probes.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_without_probes_a_container_has_started_and_is_ready() -> None:
    assert (Container().probes.started, Container().probes.ready) == (True, True)


def test_with_probes_it_is_neither_until_they_say_so() -> None:
    readiness = Container(readinessProbe={}).probes
    assert (readiness.started, readiness.ready) == (True, False)
    startup = Container(startupProbe={}).probes
    assert (startup.started, startup.ready) == (False, False)


@skips_waits
async def test_no_probe_asks_before_the_startup_probe_holds() -> None:
    container = Container(startupProbe={}, livenessProbe={}, readinessProbe={})
    container.answers["startupProbe"] = False
    async with container.running():
        await asyncio.sleep(15)
        assert container.asked["livenessProbe"] == container.asked["readinessProbe"] == []
        assert container.changes == []
        container.answers["startupProbe"] = True
        await asyncio.sleep(5)
    assert container.asked["livenessProbe"]
    assert container.changes == [(True, False), (True, True)]


@skips_waits
async def test_a_container_that_has_a_startup_probe_alone_is_ready_once_it_holds() -> None:
    container = Container(startupProbe={})
    async with container.running():
        await asyncio.sleep(1)
    assert container.changes == [(True, True)]


@skips_waits
async def test_a_startup_probe_that_fails_too_often_ends_the_container() -> None:
    container = Container(startupProbe={"periodSeconds": 10, "failureThreshold": 3})
    container.answers["startupProbe"] = False
    assert await container.run(seconds=21) == "startupProbe"
    assert container.asked["startupProbe"][-1] >= 20


@skips_waits
async def test_a_liveness_probe_that_fails_too_often_ends_the_container() -> None:
    container = Container(livenessProbe={"periodSeconds": 10}, readinessProbe={})
    async with asyncio.timeout(61):
        ended = asyncio.create_task(container.probes.run())
        await asyncio.sleep(35)
        container.answers["livenessProbe"] = False
        assert await ended == "livenessProbe"
    assert container.asked["livenessProbe"] == [0, 10, 20, 30, 40, 50, 60]


@skips_waits
async def test_a_readiness_probe_that_fails_and_recovers_changes_readiness_alone() -> None:
    container = Container(readinessProbe={"periodSeconds": 10, "failureThreshold": 2})
    async with container.running():
        await asyncio.sleep(5)
        container.answers["readinessProbe"] = False
        await asyncio.sleep(20)
        container.answers["readinessProbe"] = True
        await asyncio.sleep(10)
    assert container.changes == [(True, True), (True, False), (True, True)]


@skips_waits
@pytest.mark.parametrize("name", ["startupProbe", "livenessProbe", "readinessProbe"])
async def test_the_first_question_comes_after_the_initial_delay(name: str) -> None:
    container = Container(**{name: {"initialDelaySeconds": 7}})
    async with container.running():
        await asyncio.sleep(30)
    assert container.asked[name][0] == 7


@skips_waits
async def test_a_container_that_is_not_ready_yet_is_asked_again_soon() -> None:
    container = Container(readinessProbe={"periodSeconds": 10})
    container.answers["readinessProbe"] = False
    async with container.running():
        await asyncio.sleep(1.5 * EAGER_SECONDS)
        container.answers["readinessProbe"] = True
        await asyncio.sleep(11)
    assert container.asked["readinessProbe"] == pytest.approx(
        [0, EAGER_SECONDS, 2 * EAGER_SECONDS, 10 + 2 * EAGER_SECONDS]
    )


@skips_waits
async def test_a_question_that_takes_long_does_not_put_off_the_next() -> None:
    container = Container(livenessProbe={"periodSeconds": 10})
    usual = container.probes._asked

    async def slow(probe: Object) -> bool:
        answer = await usual(probe)
        await asyncio.sleep(4)
        return answer

    container.probes._asked = slow
    async with container.running():
        await asyncio.sleep(25)
    assert container.asked["livenessProbe"] == [0, 10, 20]


@skips_waits
@pytest.mark.parametrize("name", ["startupProbe", "livenessProbe", "readinessProbe"])
async def test_a_question_that_cannot_be_asked_is_an_error(name: str) -> None:
    async def broken(_: Object) -> bool:
        raise ValueError("no such port")

    container = Container(**{name: {}})
    container.probes._asked = broken
    with pytest.raises((ValueError, ExceptionGroup)):
        await container.run(seconds=1)


# --- questions --------------------------------------------------------------------------------


async def executed(_: list[str]) -> int:
    raise AssertionError("no command is asked for")


def question(port: int, **probe: Any) -> "Callable[..., Any]":
    async def asked(execute: Callable[[list[str]], Any] = executed) -> bool:
        container = {"name": "worker", "ports": [{"name": "http", "containerPort": port}]}
        async with aiohttp.ClientSession() as session:
            return await ask(
                probe, address="127.0.0.1", container=container, execute=execute, session=session
            )

    return asked


@pytest.fixture
async def server() -> AsyncIterator[int]:
    """The port of a server that answers with the status that is asked for."""

    async def answer(request: web.Request) -> web.Response:
        if "X-Secret" in request.headers:
            return web.Response(status=204)
        if request.path == "/slow":
            await asyncio.sleep(60)
        if request.path == "/away":
            raise web.HTTPFound("/500")
        return web.Response(status=int(request.path.strip("/") or 200))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.parametrize(
    ("path", "good"),
    [("/", True), ("/204", True), ("/away", True), ("/404", False), ("/500", False)],
)
async def test_an_http_probe_wants_an_answer_below_400_and_follows_no_redirect(
    server: int, path: str, good: bool
) -> None:
    assert await question(server, httpGet={"path": path, "port": "http"})() is good


async def test_an_http_probe_sends_its_headers(server: int) -> None:
    headers = [{"name": "X-Secret", "value": "s"}]
    assert await question(
        server, httpGet={"path": "/500", "port": server, "httpHeaders": headers}
    )()


async def test_no_answer_in_time_is_a_bad_one(server: int) -> None:
    assert not await question(
        server, httpGet={"path": "/slow", "port": server}, timeoutSeconds=0.05
    )()


async def test_a_tcp_probe_wants_a_connection(server: int) -> None:
    assert await question(server, tcpSocket={"port": server})()


@pytest.mark.parametrize("probe", [{"tcpSocket": {"port": 1}}, {"httpGet": {"port": 1}}])
async def test_no_listener_is_a_bad_answer(probe: Object) -> None:
    assert not await question(1, **probe)()


@pytest.mark.parametrize(("code", "good"), [(0, True), (1, False)])
async def test_a_command_is_good_if_it_exits_with_0(code: int, good: bool) -> None:
    seen = []

    async def execute(argv: list[str]) -> int:
        seen.append(argv)
        return code

    assert await question(1, exec={"command": ["check", "x"]})(execute) is good
    assert seen == [["check", "x"]]


async def test_a_port_that_the_container_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match="container worker has no port grpc"):
        await question(1, tcpSocket={"port": "grpc"})()
