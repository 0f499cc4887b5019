"""What only the engine on Ray does: processes that come with a session and go with the engine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.errors import TransferFailedError
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError
from tests.plugins.transports.transport import transport
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcess,
    MemberProcesses,
    abort,
    join,
    publish,
    settled,
)

ray = transport("ray")

MIB = 1 << 20
SHORT = {"operationTimeout": 2, "operationBytes": MIB}
ASK = """
import sys
from ray._raylet import GcsClient
try:
    print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", b"none"), end="")
except Exception as error:
    print(error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Ray's own files go."""
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def processes(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberProcesses]:
    config = SHORT | {"folder": str(folder)}
    with MemberProcesses(tmp_path_factory.mktemp("processes"), engine="ray", config=config) as made:
        yield made


@pytest.fixture(scope="module")
def pair(processes: MemberProcesses) -> tuple[MemberProcess, MemberProcess]:
    """A sender and a receiver that survive their tests, because Ray takes seconds to start."""
    sender, receiver = processes.group(1)
    return sender, receiver


def descendants(parent: int) -> dict[int, str]:
    """What a process has started, itself or not: the command of each."""
    parents: dict[int, tuple[int, str]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
            command = status.with_name("cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):  # it has ended
            continue
        if command:  # not a zombie
            parents[int(status.parent.name)] = (int(fields["PPid"]), command)
    found: dict[int, str] = {}
    while True:
        more = {
            pid: command
            for pid, (above, command) in parents.items()
            if above in {parent, *found} and pid not in found
        }
        if not more:
            return found
        found |= more


def kinds(parent: int) -> list[str]:
    """`gcs` and `python`, one for each process that the member has started."""
    commands = descendants(parent).values()
    return sorted("gcs" if "gcs_server" in command else "python" for command in commands)


def files_of(parent: int) -> Path:
    """The folder of the GCS that the member hosts."""
    (command,) = (found for found in descendants(parent).values() if "gcs_server" in found)
    (folder,) = (word for word in command.split() if word.startswith("--session-dir="))
    return Path(folder.partition("=")[2])


def until(true: Callable[[], bool]) -> None:
    """Wait for it, a few seconds at most."""
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pids: dict[int, str]) -> set[int]:
    """Those of the processes that have not ended."""
    return {pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and _command(pid)}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def leave(members: list[MemberProcess]) -> None:
    """Abort, and wait until that is done."""
    abort(members)
    for member in members:
        settled(member, "abandoned", 0)


def cluster_of(host: MemberProcess) -> tuple[str, str]:
    """The address of the GCS that the member hosts, and its token."""
    (pid,) = (pid for pid, text in descendants(host.pid).items() if "gcs_server" in text)
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    (token,) = (text for text in variables if text.startswith("RAY_AUTH_TOKEN="))
    (port,) = files_of(host.pid).glob("gcs_server_port_*")
    return f"{host.address}:{port.read_text()}", token.partition("=")[2]


@pytest.mark.slow
def test_the_sender_has_ray_s_gcs_and_each_session_a_process(
    pair: tuple[MemberProcess, MemberProcess],
) -> None:
    sender, receiver = pair
    assert (kinds(sender.pid), kinds(receiver.pid)) == (["gcs", "python"], ["python"])
    join([sender, receiver], group="a")
    join([sender, receiver], group="b")
    assert kinds(receiver.pid) == ["python", "python", "python"]
    for group in ("a", "b"):
        abort([sender, receiver], group=group)
    until(lambda: kinds(sender.pid) == ["gcs", "python"] and kinds(receiver.pid) == ["python"])


@pytest.mark.slow
@pytest.mark.parametrize("end", ["close", "SIGKILL"])
def test_nothing_is_left_of_ray_when_the_engine_ends(
    processes: MemberProcesses, pair: tuple[MemberProcess, MemberProcess], folder: Path, end: str
) -> None:
    sender, receiver = processes.open(Role.SENDER), pair[1]
    join([sender, receiver])
    left = descendants(sender.pid)
    assert len(left) == 3
    files = files_of(sender.pid)
    assert files.parent == folder
    if end == "close":
        sender.do("close")
    else:
        sender.signal(signal.SIGKILL)
    until(lambda: not alive(left) and not files.exists())
    leave([receiver])


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["gcs", "python"])
def test_processes_that_die_are_there_again_for_the_next_session(
    pair: tuple[MemberProcess, MemberProcess], victim: str
) -> None:
    sender, receiver = pair
    files = files_of(sender.pid)
    for pid, command in descendants(sender.pid).items():
        if ("gcs_server" in command) == (victim == "gcs"):
            os.kill(pid, signal.SIGKILL)
    manifest = sender.do("snapshot", seed=1, megabytes=2, bucket_bytes=MIB)
    join([sender, receiver], timeout=30.0)  # to start one takes seconds
    publish([sender, receiver], number=1, manifest=manifest)
    assert files.exists() == (victim == "gcs"), "a new process has a new folder"
    leave([sender, receiver])


@pytest.mark.slow
def test_a_rank_that_dies_is_reported(pair: tuple[MemberProcess, MemberProcess]) -> None:
    sender, receiver = pair
    sender.do("snapshot", seed=1, megabytes=16, bucket_bytes=8 * MIB)
    before = descendants(sender.pid)
    join([sender, receiver])
    (rank,) = descendants(sender.pid).keys() - before.keys()
    sending = sender.start("publish", group="job/default", timeout=5.0)  # no member receives
    time.sleep(0.1)
    os.kill(rank, signal.SIGKILL)
    error = sending.result(2).error
    assert isinstance(error, TransferFailedError)
    assert "the Ray process exited" in str(error)
    leave([sender, receiver])


@pytest.mark.slow
def test_a_ray_cluster_that_is_there_already_will_do(
    pair: tuple[MemberProcess, MemberProcess], tmp_path: Path
) -> None:
    address, token = cluster_of(pair[0])
    config = SHORT | {"address": address}
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    with MemberProcesses(tmp_path, engine="ray", config=config, environment=environment) as guests:
        sender, receiver = guests.group(1)
        assert kinds(sender.pid) == ["python"]
        join([sender, receiver])
        manifest = sender.do("snapshot", seed=1, megabytes=2, bucket_bytes=MIB)
        publish([sender, receiver], number=1, manifest=manifest)


@pytest.mark.slow
def test_a_client_without_the_token_gets_no_data(
    pair: tuple[MemberProcess, MemberProcess],
) -> None:
    address, token = cluster_of(pair[0])

    def ask(token: str) -> str:
        environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        command = [sys.executable, "-c", ASK, address]
        return subprocess.run(
            command, env=environment, check=False, capture_output=True, text=True
        ).stdout

    assert ask(token) == "[]"
    assert "InvalidAuthToken" in ask("0" * 32)


def test_data_goes_over_the_interface_that_has_the_member_s_address() -> None:
    assert ray.interface_of("127.0.1.7") == "lo"
    assert ray.interface_of("203.0.113.1") == "", "no interface has it"


def test_ipv6_is_refused() -> None:
    engine = ray.RayEngine()
    with pytest.raises(RuntimeError, match="IPv4 only"):
        engine.open(
            member=MemberId("pod", "boot"),
            address="::1",
            role=Role.RECEIVER,
            settings=ray.RaySettings(),
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"address": "head"}, "host:port"),
        ({"port": 70000}, "port must be"),
        ({"startSeconds": 0}, "startSeconds must be"),
    ],
)
def test_wrong_settings_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_settings(ray.RaySettings, config, field="spec.weightSync.config")
