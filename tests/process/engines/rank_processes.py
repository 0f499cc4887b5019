"""Starts the ranks of an engine under test, and gives them commands.

They are forks of a server that has imported torch and transformers once, and serve many tests: only
an engine's own packages are imported in each.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from hack.free_ports import free_port
from tests.process.engines import preloaded, rank_worker
from tests.process.engines.rank_worker import RankPlace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path

SECONDS = 90.0  # the longest that a command may take; collectives have shorter bounds
_AFTER_ERROR_SECONDS = 40.0  # ranks that wait for a failed one end with the time limit of gloo
_END_SECONDS = 5.0
# Refusals, which every rank raises: what communicates is as good as before.
_HARMLESS = frozenset(
    {"SpecError", "ValueError", "OSError", "FileExistsError", "NotADirectoryError"}
)


class RankError(Exception):
    """What a command raised on a rank: the type's name, its message, a SpecError's field."""

    def __init__(self, rank: int, error: dict[str, str]) -> None:
        super().__init__(f"rank {rank}: {error['trace']}")
        self.rank = rank
        self.type = error["type"]
        self.message = error["message"]
        self.field = error["field"]


class RankEndedError(Exception):
    """A rank's process ended, or gave no answer in time."""


@dataclass(slots=True)
class _Rank:
    process: ForkServerProcess
    connection: Connection


class RankProcesses:
    """All ranks of one engine in a world of `world`.

    `stand_in` names a plug-in that has one (see `stand_ins`), or is empty. `usable`: no rank has
    ended, and none was left alone in a collective by an error of another.
    """

    def __init__(self, folder: Path, *, engine: str, world: int, stand_in: str = "") -> None:
        self.engine, self.world, self.usable = engine, world, True
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes that fork must not have threads
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preloaded.__name__])
        port = free_port()
        self._ranks: list[_Rank] = []
        for rank in range(world):
            place = RankPlace(engine, stand_in, rank, world, port, folder)
            ours, theirs = context.Pipe()
            process = context.Process(target=rank_worker.serve, args=(place, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append(_Rank(process, ours))

    def do(self, command: str, *, seconds: float = SECONDS, **arguments: Any) -> list[Any]:
        """Give all ranks a command; returns their values in order. Raises what `finish` raises."""
        self.begin(command, **arguments)
        return self.finish(seconds=seconds)

    def begin(self, command: str, **arguments: Any) -> None:
        """Give all ranks a command, and do not wait."""
        request = json.dumps({"command": command, "arguments": arguments}).encode()
        for rank in self._ranks:
            rank.connection.send_bytes(request)

    def finish(self, *, seconds: float = SECONDS) -> list[Any]:
        """Wait for all ranks. Raises the first rank's RankError, or RankEndedError."""
        replies = self.replies(seconds=seconds)
        for rank, reply in enumerate(replies):
            if reply is None:
                raise RankEndedError(f"rank {rank} has ended or does not answer: {self}")
            if "error" in reply:
                raise RankError(rank, reply["error"])
        return [reply["value"] for reply in replies if reply is not None]

    def replies(self, *, seconds: float = SECONDS) -> list[dict[str, Any] | None]:
        """Every rank's reply, None for one that has ended. After an error there is less time."""
        replies: dict[Connection, dict[str, Any] | None] = {}
        deadline = time.monotonic() + seconds
        waiting = [rank.connection for rank in self._ranks]
        while waiting:
            ready = wait(waiting, max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for connection in ready:
                reply = _receive(connection)  # type: ignore[arg-type]
                replies[connection] = reply  # type: ignore[index]
                if reply is None or "error" in reply:
                    deadline = min(deadline, time.monotonic() + _AFTER_ERROR_SECONDS)
            waiting = [one for one in waiting if one not in ready]
        found = [replies.get(rank.connection) for rank in self._ranks]
        self.usable = self.usable and _all_well(found)
        return found

    def kill(self, rank: int) -> None:
        """End one rank as a node that fails does."""
        self._ranks[rank].process.kill()
        self.usable = False

    def close(self) -> None:
        """End all ranks; those that do not end by themselves are killed."""
        for rank in self._ranks:
            rank.connection.close()
        deadline = time.monotonic() + _END_SECONDS
        for rank in self._ranks:
            rank.process.join(max(deadline - time.monotonic(), 0))
            rank.process.kill()
            rank.process.join()
            rank.process.close()
        self._ranks = []

    def __str__(self) -> str:
        codes = [rank.process.exitcode for rank in self._ranks]
        return f"{self.world} ranks of {self.engine}, exit codes {codes}"


def _receive(connection: Connection) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(connection.recv_bytes())
    except (EOFError, OSError):
        return None
    return found


def _all_well(replies: list[dict[str, Any] | None]) -> bool:
    """Whether all ranks did the command, or all refused it."""
    if None in replies:
        return False
    errors = [reply["error"]["type"] for reply in replies if reply is not None and "error" in reply]
    return not errors or (len(errors) == len(replies) and set(errors) <= _HARMLESS)


class RankPool:
    """Ranks that tests share; of a few engines and worlds at a time, as memory is limited."""

    def __init__(self, folder: Path, *, limit: int = 2) -> None:
        self._folder, self._limit = folder, limit
        self._running: dict[tuple[str, int], RankProcesses] = {}

    @contextmanager
    def ranks(self, engine: str, world: int, stand_in: str) -> Iterator[RankProcesses]:
        """Ranks without an open engine; what the body opens is closed."""
        key = (engine, world)
        found = self._running.pop(key, None)
        if found is None:
            while len(self._running) >= self._limit:
                self._running.pop(next(iter(self._running))).close()
            folder = self._folder / f"{engine}-{world}-{time.monotonic_ns()}"
            folder.mkdir()
            found = RankProcesses(folder, engine=engine, world=world, stand_in=stand_in)
        try:
            yield found
            if found.usable:
                found.do("close")
        finally:
            if found.usable:
                self._running[key] = found  # the newest is the last
            else:
                found.close()

    def close(self) -> None:
        """End all ranks."""
        while self._running:
            self._running.popitem()[1].close()
