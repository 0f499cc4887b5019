"""Compares what ends a silent stream: the liveness monitor, or aiohttp's own heartbeat.

Run with `python -m hack.bench.silent_link [--trials N] [--only PART ...]`; times are in seconds.
Links of both kinds are served by one process, and each fault strikes both at the same moment, so
that the machine's load hits both alike. The last line is JSON.

Both kinds act after the same silence. Peers of the kind "monitor" are `MemberStream`s, which ping
every third of the bound, as rollouts do by default. aiohttp pings after `heartbeat` seconds of
silence and acts half as long after that, so its `heartbeat` is two thirds of the bound.
"""

import argparse
import asyncio
import logging
import math
import multiprocessing
import os
import random
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path

import aiohttp
from aiohttp import web

from hack.bench.run_record import finish, run_record
from rollcall_protocol.job_config import MembershipConfig
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Hello
from rollcall_runtime.membership.coordinator_connection import PATIENCE, MemberStream
from rollcall_runtime.membership.liveness import LivenessMonitor, SilentError
from rollcall_runtime.worker.asyncio_helpers import first_of

BLOCKED = (0.5, 1.0, 1.5)  # times the bound that the server's event loop stands still
STOPPED = (0.4, 0.6, 0.8)  # times the bound that the peers stand still: less than they may
LINKS = 20  # of each kind, for false alarms; they ping at different moments
QUEUED_BYTES = 64 * 2**20  # more than the sockets' buffers take
IDLE_LINKS, IDLE_BOUND, IDLE_SECONDS, IDLE_ROUNDS = 200, 3.0, 10.0, 3
DEADLINE = 60.0
PARTS = ("detection", "false_alarms", "cost")


class Kind(StrEnum):
    """What ends a silent link."""

    MONITOR = "monitor"
    AIOHTTP = "aiohttp"


class Links:
    """Links of one kind from this process, which serves them, to one process of peers.

    `ended_at`: when each of those that ended did (time.monotonic). Peers connect again.
    """

    def __init__(self, kind: Kind, count: int, bound: float) -> None:
        self._kind, self._count, self._bound = kind, count, bound
        self.open: dict[web.WebSocketResponse, web.Request] = {}
        self.ended_at: list[float] = []
        self.peers = 0  # pid

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Links"]:
        """Listen, and start the peers; both end with the block."""
        application = web.Application()
        application.router.add_get("/", self._serve)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        process = multiprocessing.get_context("forkserver").Process(
            target=run_peers, args=(self._kind, url, self._count, self._bound)
        )
        process.start()
        assert process.pid is not None
        self.peers = process.pid
        try:
            await self.all_open()
            yield self
        finally:
            process.kill()
            process.join()
            await runner.cleanup()

    async def _until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not reached():
                await asyncio.sleep(0.001)

    async def all_open(self) -> None:
        """Wait until no link is missing, and forget those that ended."""
        await self._until(lambda: len(self.open) == self._count)
        self.ended_at.clear()

    async def first_end(self) -> None:
        """Wait until a link has ended."""
        await self._until(lambda: bool(self.ended_at))

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        library = self._kind is Kind.AIOHTTP
        end = web.WebSocketResponse(heartbeat=self._bound * 2 / 3 if library else None)
        await end.prepare(request)
        assert request.transport is not None
        self.open[end] = request
        try:
            if library:
                await _read(end)
            else:
                await _read_monitored(end, request.transport, self._bound)
        finally:
            self.ended_at.append(time.monotonic())
            del self.open[end]
        return end


def run_peers(kind: Kind, url: str, count: int, bound: float) -> None:
    """The process of the peers: keeps `count` links open."""
    logging.disable()
    random.seed()  # a fork server's children begin with the same state

    async def run() -> None:
        peer = _heartbeat_peer if kind is Kind.AIOHTTP else _monitored_peer
        await asyncio.gather(*(peer(url, bound) for _ in range(count)))

    asyncio.run(run())


async def _monitored_peer(url: str, bound: float) -> None:
    member = MemberId("uid", "boot")
    stream = MemberStream(
        url=url,
        token=lambda: "",
        hello=lambda: Hello("job", "default", member, "pod", "pool", "127.0.0.1", ""),
        opened=lambda: None,
        received=lambda _: None,
        bounds=MembershipConfig(0.1, 1.0, 1, heartbeat=bound / 3, suspect_after=bound),
    )
    await asyncio.sleep(random.uniform(0, bound))
    await stream.run()


async def _heartbeat_peer(url: str, bound: float) -> None:
    await asyncio.sleep(random.uniform(0, bound))
    async with aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                await _read(await session.ws_connect(url, heartbeat=PATIENCE * bound * 2 / 3))
            await asyncio.sleep(0.1)


async def _read_monitored(
    end: web.WebSocketResponse, transport: asyncio.Transport, bound: float
) -> None:
    monitor = LivenessMonitor(transport, suspect_after=bound)
    try:
        await first_of(_read(end), monitor.watch())
    except SilentError:
        monitor.abort()


async def _read(end: web.WebSocketResponse | aiohttp.ClientWebSocketResponse) -> None:
    with suppress(OSError):
        async for _ in end:
            pass


# --- how soon -------------------------------------------------------------------------------------


async def detections(trials: int, bound: float) -> dict[str, list[float]]:
    """Seconds from a fault of the peer until its link ends, by fault and kind."""
    found = defaultdict[str, list[float]](list)
    for _ in range(trials):
        for fault in ("SIGKILL", "SIGSTOP", "SIGSTOP, bytes queued"):
            links = {kind: Links(kind, 1, bound) for kind in Kind}
            async with links[Kind.MONITOR].served(), links[Kind.AIOHTTP].served():
                await asyncio.sleep(bound + random.uniform(0, bound))
                for kind, one in links.items():  # on a busy machine some end before the fault
                    found[f"ended without a fault: {kind}"].append(bool(one.ended_at))
                    await one.all_open()
                await _detect(fault, links, found)
    return found


async def _detect(
    fault: str, links: dict[Kind, Links], found: defaultdict[str, list[float]]
) -> None:
    requests = {kind: next(iter(one.open.values())) for kind, one in links.items()}
    began, sending = time.monotonic(), list[asyncio.Task[None]]()
    for one in links.values():
        os.kill(one.peers, getattr(signal, fault.partition(",")[0]))
        if "queued" in fault:
            end = next(iter(one.open))
            sending.append(asyncio.create_task(end.send_bytes(bytes(QUEUED_BYTES))))
    for kind, one in links.items():
        await one.first_end()
        found[f"{fault}: {kind}"].append(one.ended_at[0] - began)
    await asyncio.sleep(0.5)
    for kind, request in requests.items():
        found[f"{fault}: {kind}, still connected 0.5 s later"].append(request.transport is not None)
    for one in links.values():
        with suppress(ProcessLookupError):
            os.kill(one.peers, signal.SIGKILL)
    await asyncio.gather(*sending, return_exceptions=True)


# --- false alarms ---------------------------------------------------------------------------------


async def false_alarms(trials: int, bound: float) -> dict[str, float]:
    """The share of links that end although both ends are alive, by disturbance and kind."""
    found = defaultdict[str, list[int]](list)
    for _ in range(trials):
        for share in BLOCKED:
            async with _undisturbed(bound) as links:
                time.sleep(share * bound)  # noqa: ASYNC251 - what is measured
                await _count(f"server blocked for {share:g} bounds", links, bound, found)
        for share in STOPPED:
            async with _undisturbed(bound) as links:
                _signal_peers(links, signal.SIGSTOP)
                await asyncio.sleep(share * bound)
                _signal_peers(links, signal.SIGCONT)
                await _count(f"peers stopped for {share:g} bounds", links, bound, found)
    return {name: sum(values) / (len(values) * LINKS) for name, values in found.items()}


@asynccontextmanager
async def _undisturbed(bound: float) -> AsyncIterator[dict[Kind, Links]]:
    links = {kind: Links(kind, LINKS, bound) for kind in Kind}
    async with links[Kind.MONITOR].served(), links[Kind.AIOHTTP].served():
        await asyncio.sleep(bound)
        for one in links.values():
            await one.all_open()
        yield links


def _signal_peers(links: dict[Kind, Links], number: signal.Signals) -> None:
    for one in links.values():
        os.kill(one.peers, number)


async def _count(
    disturbance: str, links: dict[Kind, Links], bound: float, found: defaultdict[str, list[int]]
) -> None:
    await asyncio.sleep(bound)
    for kind, one in links.items():
        found[f"{disturbance}: {kind}"].append(len(one.ended_at))


# --- cost -----------------------------------------------------------------------------------------


async def idle_cost() -> dict[str, float]:
    """CPU seconds an hour of an idle link at either end, with the default bound."""
    found = defaultdict[str, list[float]](list)
    for _ in range(IDLE_ROUNDS):
        for kind in Kind:
            async with Links(kind, IDLE_LINKS, IDLE_BOUND).served() as links:
                await asyncio.sleep(IDLE_BOUND)
                served, peers = time.process_time(), _cpu_of(links.peers)
                await asyncio.sleep(IDLE_SECONDS)
                hours = IDLE_LINKS * IDLE_SECONDS / 3600
                found[f"idle: {kind}, server"].append((time.process_time() - served) / hours)
                found[f"idle: {kind}, peer"].append((_cpu_of(links.peers) - peers) / hours)
    return {name: statistics.median(values) for name, values in found.items()}


def _cpu_of(pid: int) -> float:
    """CPU seconds that a process has used (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(values: Sequence[float]) -> dict[str, float]:
    """Mean, median, 99th percentile (nearest rank) and worst."""
    rank = math.ceil(0.99 * len(values))
    figures = {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "p99": sorted(values)[rank - 1],
        "worst": max(values),
    }
    return {"n": len(values), **{name: round(value, 3) for name, value in figures.items()}}


async def measure(parts: Sequence[str], trials: int, bound: float) -> dict[str, object]:
    """One part after the other."""
    found: dict[str, object] = {}
    if "detection" in parts:
        times = await detections(trials, bound)
        found["detection"] = {name: summary(values) for name, values in times.items()}
    if "false_alarms" in parts:
        found["false_alarms"] = await false_alarms(trials, bound)
    if "cost" in parts:
        found["cpu_seconds_per_link_hour"] = await idle_cost()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--suspect-after", type=float, default=1.0)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    arguments = parser.parse_args()
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
    run = run_record(vars(arguments))
    figures = asyncio.run(measure(arguments.only, arguments.trials, arguments.suspect_after))
    finish("silent-link", run, figures)


if __name__ == "__main__":
    main()
