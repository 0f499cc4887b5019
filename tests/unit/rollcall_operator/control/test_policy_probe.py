"""The probe of NetworkPolicies, against ports that listen, refuse and say nothing."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from rollcall_operator.control.policy_probe import PolicyProbe, ProbeSettings

MOMENT = 0.02


class Listener:
    """A TCP port that counts its connections and can be closed."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._seen, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    def _seen(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    made = Listener()
    await made.open()
    yield made
    await made.close()


@contextlib.asynccontextmanager
async def probing(
    port: int, *, connected: Callable[[], bool] = lambda: True, period: float = MOMENT
) -> AsyncIterator[tuple[PolicyProbe, list[float]]]:
    notified: list[float] = []
    settings = ProbeSettings(port, first=MOMENT, again=MOMENT, period=period, timeout=0.2)
    probe = PolicyProbe(
        address="127.0.0.1", connected=connected, notify=notified.append, settings=settings
    )
    yield probe, notified
    await probe.close()


async def until(check: Callable[[], bool], what: str) -> None:
    for _ in range(1000):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(what)


async def test_a_port_that_lets_the_operator_in_twice_is_not_kept_out(listener: Listener) -> None:
    async with probing(listener.port, period=60) as (probe, notified):
        probe.want(True)
        await until(lambda: probe.enforced is False, "not enforced")
        await until(lambda: listener.connections == 2, "two connections")
        assert notified == [0.0]


async def test_a_refused_connection_is_kept_out(listener: Listener) -> None:
    await listener.close()
    async with probing(listener.port) as (probe, notified):
        probe.want(True)
        await until(lambda: probe.enforced is True, "enforced")
        assert notified == [0.0]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port whose queue of connections is full, so that further ones get no answer."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_silence_is_kept_out_after_a_time(silent_port: int) -> None:
    async with probing(silent_port) as (probe, _):
        probe.want(True)
        await until(lambda: probe.enforced is True, "enforced")


async def test_it_tries_again_and_reports_a_change_once(listener: Listener) -> None:
    async with probing(listener.port) as (probe, notified):
        probe.want(True)
        await until(lambda: probe.enforced is False, "not enforced")
        await listener.close()
        await until(lambda: probe.enforced is True, "enforced")
        tries = len(notified)
        await asyncio.sleep(5 * MOMENT)
        assert len(notified) == tries == 2


async def test_nothing_is_said_of_a_pod_that_the_operator_does_not_reach_anyway(
    listener: Listener,
) -> None:
    await listener.close()
    async with probing(listener.port, connected=lambda: False) as (probe, notified):
        probe.want(True)
        await asyncio.sleep(10 * MOMENT)
        assert (probe.enforced, notified) == (None, [])


async def test_a_pod_that_the_operator_does_not_reach_anyway_is_not_tried(
    listener: Listener,
) -> None:
    async with probing(listener.port, connected=lambda: False) as (probe, _):
        probe.want(True)
        await asyncio.sleep(10 * MOMENT)
        assert listener.connections == 0


async def test_a_try_that_fails_says_nothing_once_the_operator_does_not_reach_the_pod(
    listener: Listener,
) -> None:
    await listener.close()
    asked: list[None] = []

    def only_at_first() -> bool:
        asked.append(None)
        return len(asked) == 1

    async with probing(listener.port, connected=only_at_first) as (probe, notified):
        probe.want(True)
        await until(lambda: len(asked) > 2, "tried twice")
        assert (probe.enforced, notified) == (None, [])


async def test_nothing_is_tried_while_no_policy_should_be_there(listener: Listener) -> None:
    async with probing(listener.port, period=60) as (probe, _):
        await asyncio.sleep(10 * MOMENT)
        assert listener.connections == 0
        probe.want(True)
        await until(lambda: probe.enforced is False, "not enforced")
        probe.want(False)
        assert probe.enforced is None
        tried = listener.connections
        probe.want(True)
        await until(lambda: probe.enforced is False, "tried again without the period")
        assert listener.connections > tried
