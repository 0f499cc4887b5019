"""Starts members in processes of their own, and gives them commands."""

import itertools
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import Role
from tests.unit.rollcall_runtime.sync.member import MemberCall, MemberReply, fork_members

SECONDS = 100.0  # the default timeout of a command; most have bounds of their own
_LOOK_SECONDS = 1.0
_STDERR = 2


class MemberProcess:
    """One member's process."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[MemberReply]] = {}
        self.dead = threading.Event()
        self.died_at = 0.0
        self.pid: int = connection.recv()
        self.id = MemberId(f"pod-{number}", "boot")
        self.address = f"127.0.1.{number % 250 + 1}"
        self.seat = Seat(self.id, self.address, "")
        connection.send(self.id)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, name: str, **kwargs: Any) -> "Future[MemberReply]":
        """Give a command; its reply comes later."""
        number, future = next(self._numbers), Future[MemberReply]()
        self._waiting[number] = future
        self._connection.send(MemberCall(number, name, kwargs))
        return future

    def do(self, name: str, **kwargs: Any) -> Any:
        """Give a command, wait for it, raise what it raised."""
        return done(self.start(name, **kwargs)).result

    def open(
        self, role: Role, *, engine: str, config: dict[str, Any], device: str | None = None
    ) -> None:
        """Open the engine and remember the seat."""
        self.seat = done(self.opening(role, engine=engine, config=config, device=device)).result

    def opening(
        self, role: Role, *, engine: str, config: dict[str, Any], device: str | None = None
    ) -> "Future[MemberReply]":
        """Begin to open the engine; the result is the seat."""
        return self.start(
            "open", engine=engine, address=self.address, role=role, config=config, device=device
        )

    def signal(self, what: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, what)

    def close(self) -> None:
        """End the process, whatever it does."""
        if not self.dead.is_set():
            self.signal(signal.SIGKILL)
        self._reader.join(SECONDS)
        self._connection.close()

    def _read(self) -> None:
        while True:
            try:
                reply: MemberReply = self._connection.recv()
            except (EOFError, OSError):
                self.died_at = time.monotonic()
                self.dead.set()
                return
            self._waiting.pop(reply.number).set_result(reply)


def done(future: "Future[MemberReply]", *, seconds: float = SECONDS) -> MemberReply:
    """Wait for a reply; raises what the command raised, and TimeoutError."""
    reply = future.result(seconds)
    if reply.error is not None:
        raise reply.error
    return reply


class MemberProcesses:
    """Starts members of one engine; a context manager that ends them.

    `config` is the engine's, as in an RLJob, `device` the torch device type that it is to serve,
    `environment` is added to the processes' environment, `start` is the fork server's function, as
    "module:function"; `verbose` shows the processes' output on standard error.
    """

    def __init__(
        self,
        folder: Path,
        *,
        engine: str,
        config: dict[str, Any] | None = None,
        device: str | None = None,
        environment: dict[str, str] | None = None,
        start: str = f"{fork_members.__module__}:fork_members",
        verbose: bool = False,
    ) -> None:
        self.engine, self.config, self.device = engine, config or {}, device
        module, function = start.split(":")
        self._address = str(folder / "members")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._address)
        self._listener.listen()
        self._listener.settimeout(_LOOK_SECONDS)
        paths = os.pathsep.join(path for path in sys.path if path)
        self._fork_server = subprocess.Popen(
            [sys.executable, "-c", f"import {module} as m; m.{function}()"],
            stdin=subprocess.PIPE,
            # Libraries log to both; gloo logs a stack trace for each lost peer.
            stdout=_STDERR if verbose else subprocess.DEVNULL,
            stderr=None if verbose else subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | (environment or {}),
        )
        if self._fork_server.stdin is None:
            raise RuntimeError("the fork server has no standard input")
        self._stdin = self._fork_server.stdin
        self._numbers = itertools.count()
        self._members: queue.SimpleQueue[MemberProcess] = queue.SimpleQueue()

    def member(self) -> MemberProcess:
        """A new process."""
        self._stdin.write(self._address + "\n")
        self._stdin.flush()
        accepted = self._accept()
        accepted.setblocking(True)
        member = MemberProcess(Connection(accepted.detach()), next(self._numbers))
        self._members.put(member)
        return member

    def _accept(self) -> socket.socket:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return self._listener.accept()[0]
            except TimeoutError as error:
                code = self._fork_server.poll()
                if code is not None:
                    raise RuntimeError(
                        f"the fork server exited with code {code}, so no member can start"
                    ) from error
                if time.monotonic() > deadline:
                    raise

    def open(self, role: Role) -> MemberProcess:
        """A new process with its engine open."""
        return self.open_all([role])[0]

    def open_all(self, roles: Sequence[Role]) -> list[MemberProcess]:
        """New processes with their engines open; at once, since some libraries take seconds."""
        members = [self.member() for _ in roles]
        opening = [
            member.opening(role, engine=self.engine, config=self.config, device=self.device)
            for member, role in zip(members, roles, strict=True)
        ]
        for member, future in zip(members, opening, strict=True):
            member.seat = done(future).result
        return members

    def group(self, receivers: int) -> list[MemberProcess]:
        """A sender and its receivers, engines open."""
        return self.open_all([Role.SENDER] + [Role.RECEIVER] * receivers)

    def close_members(self) -> None:
        """End every member's process; the fork server can start others."""
        while not self._members.empty():
            self._members.get().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close_members()
        self._stdin.close()
        self._fork_server.kill()  # nothing is left to do, and torch takes seconds to end
        self._fork_server.wait(SECONDS)
        self._listener.close()


_SESSIONS = itertools.count(1)


def new_session() -> SessionId:
    """A session id that no test has used."""
    return SessionId(epoch=next(_SESSIONS), boot=1, attempt=0)


def join(
    members: list[MemberProcess],
    *,
    group: str = "job/default",
    session: SessionId | None = None,
    senders: int = 1,
    timeout: float = 5.0,
) -> SessionId:
    """Have all members join one session; the first `senders` send."""
    chosen = session or new_session()
    seats = tuple(member.seat for member in members)
    kwargs: dict[str, Any] = {
        "group": group,
        "session": chosen,
        "seats": seats,
        "timeout": timeout,
        "senders": senders,
    }
    for future in [member.start("join", **kwargs) for member in members]:
        done(future)
    return chosen


def abort(members: list[MemberProcess], *, group: str = "job/default") -> None:
    """Have all members abort."""
    for future in [member.start("abort", group=group) for member in members]:
        done(future)


def publish(
    members: list[MemberProcess],
    *,
    number: int,
    manifest: WeightManifest,
    group: str = "job/default",
) -> None:
    """Send from the first to the others and commit there."""
    sender, *receivers = members
    kwargs = {"group": group, "number": number, "manifest": manifest, "timeout": 5.0}
    futures = [receiver.start("receive", **kwargs) for receiver in receivers]
    done(sender.start("publish", group=group, timeout=5.0))
    for future in futures:
        done(future)
    for future in [receiver.start("commit", number=number) for receiver in receivers]:
        done(future)


def settled(member: MemberProcess, what: str, value: int, *, seconds: float = 30.0) -> float:
    """Wait until a count of the member has this value; returns how long that took."""
    began = time.monotonic()
    while member.do("counts")[what] != value:
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what} is {member.do('counts')[what]}, not {value}")
        time.sleep(0.02)
    return time.monotonic() - began
