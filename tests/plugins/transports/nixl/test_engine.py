"""What only NIXL does: which peers it keeps, how it configures UCX, how it ends."""

import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.engines.pull.topology import Topology
from tests.plugins.transports.transport import transport
from tests.unit.rollcall_runtime.sync.copying_peers import Local, abort

nixl = transport("nixl")
agents = pytest.importorskip("rollcall_plugins.transports.nixl.agent", exc_type=ImportError)
ReadState = agents.ReadState
MIB = 1 << 20


class Library:
    """An agent that only records its calls."""

    def __init__(self, name: str, *, backend: str, progress_seconds: float) -> None:
        self.name, self.backend, self.progress_seconds = name, backend, progress_seconds
        self.calls: list[tuple[str, str]] = []
        self.state_of_reads = ReadState.BUSY

    def add_peer(self, metadata: bytes) -> None:
        self.calls.append(("add", metadata.decode()))

    def remove_peer(self, peer: str) -> None:
        self.calls.append(("remove", peer))

    def read(self, peer: str, *, remote: int, local: int, nbytes: int) -> int:
        del remote, local, nbytes
        self.calls.append(("read", peer))
        return 1

    def state(self, handle: int) -> Any:
        del handle
        return self.state_of_reads

    def release(self, handle: int) -> None:
        self.calls.append(("release", str(handle)))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An engine whose library is not NIXL."""
    monkeypatch.setattr(agents, "NixlAgent", Library)
    for name in nixl.NixlSettings().environment:
        monkeypatch.setenv(name, "kept")
    made = nixl.NixlEngine()
    made.open(
        member=MemberId("me", "boot"),
        address="127.0.0.1",
        role=Role.RECEIVER,
        settings=nixl.NixlSettings(),
    )
    yield made
    made.close()


def source(name: str, metadata: str) -> dict[str, Any]:
    return {"agent": f"{name}/boot", "metadata": b64encode(metadata.encode()).decode()}


def member(name: str) -> MemberId:
    return MemberId(name, "boot")


def test_an_agent_is_connected_once_and_again_when_it_has_registered_more(engine: Any) -> None:
    for metadata in ("one buffer", "one buffer", "two buffers"):
        engine.connect(source("a", metadata))
    assert engine.agent.calls == [
        ("add", "one buffer"),
        ("remove", "a/boot"),
        ("add", "two buffers"),
    ]


def test_an_agent_that_is_read_from_is_extended_and_not_removed(engine: Any) -> None:
    peer = engine.connect(source("a", "one buffer"))
    read = engine.read(peer, remote=0, local=0, nbytes=1)
    engine.connect(source("a", "two buffers"))
    engine._keep_peers(set())
    assert engine.connected == {"a/boot"}
    assert ("remove", "a/boot") not in engine.agent.calls
    engine.agent.state_of_reads = ReadState.DONE
    assert read.done()
    read.release()
    engine._keep_peers(set())
    assert engine.connected == frozenset()


def test_agents_of_members_that_left_are_forgotten(engine: Any) -> None:
    for name in ("a", "b"):
        engine.connect(source(name, "metadata"))
    engine._keep_peers({member("a"), member("c")})
    assert engine.connected == {"a/boot"}
    assert engine.agent.calls[-1] == ("remove", "b/boot")


def test_an_agent_whose_connection_failed_is_connected_again(engine: Any) -> None:
    read = engine.read(engine.connect(source("a", "same")), remote=0, local=0, nbytes=1)
    engine.agent.state_of_reads = ReadState.FAILED
    with pytest.raises(RuntimeError, match="a read from a/boot failed"):
        read.done()
    read.release()
    engine.connect(source("a", "same"))
    engine.connect(source("a", "same"))
    assert engine.agent.calls[-2:] == [("remove", "a/boot"), ("add", "same")]


def test_ucx_is_configured_to_wait_and_not_to_spin(engine: Any) -> None:
    settings = nixl.NixlSettings()
    assert engine.agent.progress_seconds == settings.progress_interval > 0
    assert settings.environment["UCX_USE_MT_MUTEX"] == "y"


def test_rdma_is_loaded_where_it_is_asked_for() -> None:
    assert nixl.NixlSettings().environment["UCX_MODULES"] == "^ib"
    assert not nixl.NixlSettings(transports="rc,tcp").environment["UCX_MODULES"]


def test_the_agent_gets_the_backend_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "NixlAgent", Library)
    made = nixl.NixlEngine()
    made.open(
        member=MemberId("me", "boot"),
        address="127.0.0.1",
        role=Role.RECEIVER,
        settings=nixl.NixlSettings(backend="LIBFABRIC"),
    )
    assert made.agent.backend == "LIBFABRIC"
    made.close()


def test_the_agent_creates_its_backend_in_nixl(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[str] = []

    class Bindings:
        """Records which backends are created."""

        def __init__(self, name: str, config: object) -> None:
            self.name, self.config = name, config

        def createBackend(self, backend: str, options: dict[str, str]) -> None:  # noqa: N802
            assert options == {}
            created.append(backend)

    monkeypatch.setattr(agents.bindings, "nixlAgent", Bindings)
    agents.NixlAgent("me/boot", backend="LIBFABRIC", progress_seconds=0.001)
    assert created == ["LIBFABRIC"]


def test_an_interval_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="progress_interval"):
        nixl.NixlSettings(progress_interval=-1.0)


@pytest.mark.slow
def test_a_chain_of_agents_closes_over_one_that_left_and_forgets_it() -> None:
    settings = nixl.NixlSettings(topology=Topology.CHAIN.value, operation_bytes=MIB)
    party = Local(nixl.NixlEngine, 3, settings, nbytes=4 * MIB)
    names = [name_of(seat) for seat in party.seats]
    before = party.join(range(4))
    party.transfer(before, party.fill(1, bucket=MIB))
    assert party.engines[3].connected == {names[2]}
    registered = [list(engine._registered.values()) for engine in party.engines]
    abort(before)
    after = party.join([0, 1, 3])
    assert party.engines[3].connected == frozenset()
    party.transfer(after, party.fill(2, bucket=MIB))
    assert party.engines[3].connected == {names[1]}
    assert [list(engine._registered.values()) for engine in party.engines] == registered
    abort(after)
    party.close()


def name_of(seat: Seat) -> str:
    return f"{seat.member.pod_uid}/{seat.member.boot_id}"


_PROGRAM = """
from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.engine import Role
from rollcall_plugins.transports.nixl.engine import NixlEngine, NixlSettings

engine = NixlEngine()
engine.open(
    member=MemberId("a", "b"), address="127.0.0.1", role=Role.SENDER, settings=NixlSettings()
)
engine.close()
"""


@pytest.mark.slow
def test_a_process_that_used_it_ends_well() -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert ended.returncode == 0, ended.stderr.decode()
