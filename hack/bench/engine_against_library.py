"""A peer engine against its library alone: the same bytes, settings and machine, turn by turn.

The library's side is what its own Python examples do: one blocking read of a whole registered
buffer, between two processes that know nothing of sessions. For mooncake (its
`transfer_engine_initiator_test.py`) that is `transfer_sync_read`; for nixl (`basic_two_peers.py`)
one READ, whose state is asked for without a pause. Neither example compares digests, while the
session's time contains them. Mooncake's wheel also ships a C++ program, `transfer_engine_bench`; it
runs in every round too, with the session's operation size and number of operations in flight.

The last line is JSON, speeds in GB (1e9 bytes) a second, medians.
Run it with `python -m hack.bench.engine_against_library --engine mooncake`.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from hack.bench.run_record import finish, run_record
from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.bench import measured_member
from rollcall_runtime.bench import member as members
from rollcall_runtime.bench.member_processes import MemberProcess, MemberProcesses
from rollcall_runtime.bench.throughput import BenchCase, BenchGroup
from rollcall_runtime.sync.memory.buffers import HostBuffer
from rollcall_runtime.sync.registry import create_engine

MIB = 1 << 20
GB = 1e9
WARM_ROUNDS = 1
FORK_SERVER = "hack.bench.engine_against_library:fork_members"
_NAME = re.compile(r"127\.0\.0\.1:[0-9]+")
_SPEED = re.compile(r"throughput ([0-9.]+) GB/s")


class PeerLibrary(Protocol):
    """A library's own object in one process."""

    def share(self, buffer: HostBuffer) -> dict[str, Any]:
        """Register; returns what a reader needs."""

    def read(self, remote_buffer: dict[str, Any], buffer: HostBuffer) -> None:
        """Fill the registered buffer from the peer's."""


class Mooncake:
    """What transfer_engine_initiator_test.py does."""

    def __init__(self, address: str) -> None:
        from mooncake.engine import TransferEngine  # noqa: PLC0415 - only where it is measured

        self._transfers: Any = TransferEngine()
        if self._transfers.initialize(address, "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("mooncake did not start")
        self._name = f"{address}:{self._transfers.get_rpc_port()}"

    def share(self, buffer: HostBuffer) -> dict[str, Any]:
        if self._transfers.register_memory(buffer.address, buffer.nbytes):
            raise RuntimeError("mooncake did not register the buffer")
        return {"name": self._name, "address": buffer.address}

    def read(self, remote_buffer: dict[str, Any], buffer: HostBuffer) -> None:
        name, remote = remote_buffer["name"], remote_buffer["address"]
        if self._transfers.transfer_sync_read(name, buffer.address, remote, buffer.nbytes):
            raise RuntimeError("mooncake's read failed")


class Nixl:
    """What basic_two_peers.py does, without its listener."""

    def __init__(self, address: str) -> None:
        from nixl._api import nixl_agent, nixl_agent_config  # noqa: PLC0415 - as above

        self._agent: Any = nixl_agent(address, nixl_agent_config())
        self._peer = ""

    def share(self, buffer: HostBuffer) -> dict[str, Any]:
        self._agent.register_memory([(buffer.address, buffer.nbytes, 0, "")], "DRAM")
        metadata = b64encode(self._agent.get_agent_metadata()).decode()
        return {"name": self._agent.name, "metadata": metadata, "address": buffer.address}

    def read(self, remote_buffer: dict[str, Any], buffer: HostBuffer) -> None:
        agent = self._agent
        if self._peer != remote_buffer["name"]:
            agent.add_remote_agent(b64decode(remote_buffer["metadata"]))
            self._peer = remote_buffer["name"]
        here = agent.get_xfer_descs([(buffer.address, buffer.nbytes, 0)], "DRAM")
        there = agent.get_xfer_descs([(remote_buffer["address"], buffer.nbytes, 0)], "DRAM")
        handle = agent.initialize_xfer("READ", here, there, self._peer)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"nixl's read ended with {state}")
        agent.release_xfer_handle(handle)


LIBRARIES: dict[str, type[Mooncake] | type[Nixl]] = {"mooncake": Mooncake, "nixl": Nixl}


class LibraryMember(measured_member.MeasuredMember):
    """A process of one library's own; or, for the session, an ordinary member."""

    def __init__(self, member: MemberId) -> None:
        super().__init__(member)
        self._library: PeerLibrary | None = None
        self._bare = HostBuffer(0)

    def library_open(self, engine: str, address: str, nbytes: int, fill: int) -> dict[str, Any]:
        """Register a buffer full of `fill`; returns how to read it."""
        self._library = LIBRARIES[engine](address)
        self._bare = HostBuffer(nbytes)
        self._bare.memory[:] = bytes([fill]) * nbytes
        return self._library.share(self._bare)

    def library_read(self, remote_buffer: dict[str, Any]) -> float:
        """Seconds that the read takes."""
        if self._library is None:
            raise RuntimeError("the library is not open")
        began = time.perf_counter()
        self._library.read(remote_buffer, self._bare)
        return time.perf_counter() - began

    def library_checksum(self) -> int:
        return zlib.crc32(self._bare.memory)


def fork_members() -> None:
    """Where these members come from."""
    members.fork_members(LibraryMember)


class Shipped:
    """mooncake's transfer_engine_bench; a context manager around its target."""

    def __init__(self, *, nbytes: int, block: int, batch: int, folder: Path) -> None:
        spec = find_spec("mooncake")
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError("mooncake is not installed")
        self._program = Path(spec.submodule_search_locations[0]) / "transfer_engine_bench"
        self._shared = [
            "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp",
            "--auto_discovery",
            "--local_server_name=127.0.0.1",
            f"--buffer_size={nbytes}",
        ]
        self._load = [f"--block_size={block}", f"--batch_size={batch}", "--threads=1"]
        self._log = folder / "transfer_engine_bench.log"

    def __enter__(self) -> "Shipped":
        with self._log.open("wb") as log:
            command = [str(self._program), "--mode=target", *self._shared]
            self._target = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not (found := _NAME.findall(self._log.read_text())):
            if time.monotonic() > deadline or self._target.poll() is not None:
                raise RuntimeError("transfer_engine_bench does not start")
            time.sleep(0.05)
        self._name = found[-1]
        return self

    def __exit__(self, *_: object) -> None:
        self._target.kill()
        self._target.wait()

    def run(self) -> float:
        """GB a second over about a second."""
        command = [
            str(self._program),
            "--mode=initiator",
            "--operation=read",
            "--duration=1",
            f"--segment_id={self._name}",
            *self._shared,
            *self._load,
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        (speed,) = _SPEED.findall(ended.stdout + ended.stderr)
        return float(speed)


@dataclass(slots=True)
class LibraryRounds:
    """Seconds of each side, and what the shipped program says (GB a second)."""

    session: list[float] = field(default_factory=list)
    library: list[float] = field(default_factory=list)
    shipped: list[float] = field(default_factory=list)


def compare(load: BenchCase, *, environment: dict[str, str], folder: Path) -> dict[str, Any]:
    """Run all rounds, and report."""
    with (
        _shipped(load, folder) as shipped,
        MemberProcesses(
            folder,
            engine=load.engine,
            config=load.config,
            start=FORK_SERVER,
            environment=environment,
            verbose=load.verbose,
        ) as processes,
    ):
        source, reader = processes.member(), processes.member()
        remote_buffer = _open(source, load, fill=1)
        _open(reader, load, fill=0)
        party = BenchGroup(load, processes)
        rounds = _run(
            load,
            party,
            lambda: float(reader.do("library_read", remote_buffer=remote_buffer)),
            shipped,
        )
        same = reader.do("library_checksum") == source.do("library_checksum")
        verified = party.verified() and same
        party.close()
    return _report(load, rounds, verified=verified)


def _run(
    load: BenchCase, party: BenchGroup, read: Callable[[], float], shipped: Shipped | None
) -> LibraryRounds:
    found = LibraryRounds()
    for number in range(WARM_ROUNDS + load.rounds):
        party.receivers[0].do("spoil")
        session, library = party.send(), read()
        program = shipped.run() if shipped else 0.0
        if number >= WARM_ROUNDS:
            found.session.append(session)
            found.library.append(library)
            found.shipped.append(program)
    return found


def _open(member: MemberProcess, load: BenchCase, *, fill: int) -> dict[str, Any]:
    remote_buffer: dict[str, Any] = member.do(
        "library_open", engine=load.engine, address=member.address, nbytes=load.nbytes, fill=fill
    )
    return remote_buffer


def _shipped(load: BenchCase, folder: Path) -> AbstractContextManager[Shipped | None]:
    if load.engine != "mooncake":
        return nullcontext()
    settings = create_engine(load.engine, device="cpu").settings_type()
    block = int(load.config.get("operationBytes", settings.operation_bytes))
    batch = int(load.config.get("inFlight", settings.in_flight))
    return Shipped(nbytes=load.nbytes, block=block, batch=batch, folder=folder)


def _report(load: BenchCase, found: LibraryRounds, *, verified: bool) -> dict[str, Any]:
    session, library = statistics.median(found.session), statistics.median(found.library)
    report = {
        "engine": load.engine,
        "bytes": load.nbytes,
        "rounds": load.rounds,
        "session_gbps": round(load.nbytes / session / GB, 3),
        "library_gbps": round(load.nbytes / library / GB, 3),
        "ratio_to_library": round(library / session, 3),
        "verified": verified,
        "session_seconds": [round(each, 4) for each in found.session],
        "library_seconds": [round(each, 4) for each in found.library],
    }
    if any(found.shipped):
        program = statistics.median(found.shipped)
        report["shipped_program_gbps"] = round(program, 3)
        report["ratio_to_shipped_program"] = round(load.nbytes / session / GB / program, 3)
    return report


def main() -> int:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", choices=sorted(LIBRARIES), required=True)
    parser.add_argument("--size", type=int, default=512, help="MiB")
    parser.add_argument("--bucket", type=int, default=64, help="MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--config", type=json.loads, default={}, help="the engine's, JSON")
    parser.add_argument(
        "--environment", type=json.loads, default={"UCX_TLS": "tcp"}, help="of both sides, JSON"
    )
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    run = run_record(vars(options))
    load = BenchCase(
        engine=options.engine,
        receivers=1,
        nbytes=options.size * MIB,
        bucket_bytes=options.bucket * MIB,
        rounds=options.rounds,
        config=options.config,
        verbose=options.verbose,
    )
    with tempfile.TemporaryDirectory() as folder:
        report = compare(load, environment=options.environment, folder=Path(folder))
    finish("engine-against-library", run, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
