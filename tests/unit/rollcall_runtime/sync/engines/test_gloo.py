"""What only gloo does: operations that cannot be ended."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollcall_runtime.sync.engines.gloo import GlooSettings, new_process_group
from rollcall_runtime.sync.errors import AbortedError, ExhaustedError
from rollcall_runtime.sync.rendezvous import SessionRendezvous
from rollcall_runtime.sync.rendezvous_server import RendezvousServer
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcesses,
    abort,
    join,
    new_session,
    settled,
)
from tests.unit.rollcall_runtime.sync.test_rendezvous import HOST, seats_at

ROOT = Path(__file__).parents[5]
GROUP = "job/default"
MIB = 1 << 20


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[MemberProcesses]:
    """Members whose stuck operations take a while to end."""
    config = {"operationTimeout": 2, "maxAbandoned": 3}
    with MemberProcesses(tmp_path, engine="gloo", config=config) as made:
        yield made


def test_stuck_sessions_are_bounded(processes: MemberProcesses) -> None:
    sender, receiver = processes.group(1)
    sender.do("snapshot", seed=21, megabytes=16, bucket_bytes=8 * MIB)
    for _ in range(3):  # max_abandoned
        join([sender, receiver])
        sending = sender.start("publish", group=GROUP, timeout=2)  # no member receives
        time.sleep(0.05)
        sender.do("abort", group=GROUP)
        assert isinstance(sending.result(5).error, AbortedError)
    seats = (sender.seat, receiver.seat)
    with pytest.raises(ExhaustedError, match="3 aborted sessions are still stuck"):
        sender.do("join", group=GROUP, session=new_session(), seats=seats, timeout=0.2)
    abort([sender, receiver])
    settled(sender, "abandoned", 0)
    join([sender, receiver])


class Counted(SessionRendezvous):
    """Counts the ways to the sender and back."""

    exchanges = 0

    def _exchange(self, request: dict[str, Any]) -> dict[str, str]:
        self.exchanges += 1
        return super()._exchange(request)


def test_a_join_goes_to_the_sender_once_for_each_device() -> None:
    """Whatever the number of members: among busy processes each way takes milliseconds."""
    size, settings = 4, GlooSettings(threads=2)
    server = RendezvousServer(HOST)

    def member(rank: int) -> int:
        deadline = time.monotonic() + 30
        rendezvous = Counted(
            session="job/1.1.0",
            seats=seats_at(server.address, size),
            deadline=deadline,
            sleep=time.sleep,
        )
        rendezvous.wait_for_all_seats(rank)
        new_process_group(
            rendezvous, address=HOST, settings=settings, send_buffer_bytes=0, rank=rank, size=size
        )
        rendezvous.close()
        return rendezvous.exchanges

    with ThreadPoolExecutor(size) as threads:
        assert list(threads.map(member, range(size))) == [1 + settings.threads] * size
    server.close()


@pytest.mark.slow
def test_a_program_can_end_while_gloo_is_stuck() -> None:
    script = Path(__file__).parents[1] / "exit_with_stuck_gloo.py"
    paths = os.pathsep.join([str(ROOT / "workloads"), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "aborted after 0.2 s, 1 stuck\n"
