"""The same command once for each rank, on this machine; all end when one fails."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TextIO

from rollcall_runtime.train.process_group import TrainerRendezvous
from rollcall_runtime.worker.devices import own_device
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

# As torchrun and Kubeflow set them; the secret is ours: without it anyone could join.
RANK, SIZE, HOST, PORT = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
SECRET = "ROLLCALL_RENDEZVOUS_SECRET"  # noqa: S105 - the name of a variable
END_SECONDS = 15.0  # for the other ranks to end by themselves once one has ended
LISTENER = "ROLLCALL_RENDEZVOUS_LISTENER"  # rank 0: the file descriptor of its listening socket
_LOOK_SECONDS = 0.1


def rendezvous_of(variables: Mapping[str, str]) -> TrainerRendezvous:
    """Where this process meets the other ranks, by its environment; alone without one.

    SpecError names the variable that is wrong.
    """
    if SIZE not in variables:
        return TrainerRendezvous()
    try:
        return TrainerRendezvous(
            host=variables.get(HOST, ""),
            port=int(variables.get(PORT, "0")),
            rank=int(variables.get(RANK, "0")),
            size=int(variables[SIZE]),
            secret=variables.get(SECRET, ""),
            listener=_listener(variables),
        )
    except ValueError as error:
        names = f"{RANK}, {SIZE}, {HOST}, {PORT}, {SECRET}"
        raise SpecError("environment", f"{error}; set {names}") from error


def _listener(variables: Mapping[str, str]) -> socket.socket | None:
    """The socket that `run_ranks` opened for rank 0; None elsewhere, ValueError for any other."""
    if LISTENER not in variables:
        return None
    try:
        return socket.socket(fileno=int(variables[LISTENER]))
    except OSError as error:
        raise ValueError(f"{LISTENER} is no socket: {error}") from error


def run_ranks(command: Sequence[str], count: int, *, output: TextIO) -> int:
    """Run `command` as `count` ranks that meet over loopback; the first bad exit code, else 0.

    Their standard output is `output`.

    A signal to stop goes to all of them. Ranks that do not end END_SECONDS after the first that
    failed are killed.
    """
    # Rank 0 inherits it: a port that is freed for it could be taken by another process meanwhile.
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = listener.getsockname()[1]
    common = {SIZE: str(count), HOST: "127.0.0.1", PORT: str(port), SECRET: secrets.token_hex(16)}
    ranks: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for rank in ranks:
            rank.send_signal(number)

    former = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for rank in range(count):
            own = {**os.environ, **common, **own_device(rank, os.environ), RANK: str(rank)}
            inherited = []
            if rank == 0:
                own[LISTENER] = str(listener.fileno())
                inherited = [listener.fileno()]
            # A group of its own: the terminal's Ctrl-C comes once, from this process.
            started = subprocess.Popen(
                command, env=own, stdout=output, process_group=0, pass_fds=inherited
            )
            ranks.append(started)
        listener.close()  # once rank 0 has ended nothing listens any more
        return _wait(ranks)
    finally:
        listener.close()
        for process in ranks:
            process.kill()
            process.wait()
        for number, handler in former.items():
            signal.signal(number, handler)


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    failed, deadline = 0, float("inf")
    while None in (codes := [rank.poll() for rank in ranks]) and time.monotonic() < deadline:
        ended = next((code for code in codes if code), 0)
        if ended and not failed:
            failed, deadline = ended, time.monotonic() + END_SECONDS
            sys.stderr.write(f"a rank ended with code {ended}; the others are stopped\n")
            for rank in ranks:
                rank.terminate()
        time.sleep(_LOOK_SECONDS)
    code = failed or next((code for code in codes if code), 0)
    return code if code >= 0 else 128 - code
