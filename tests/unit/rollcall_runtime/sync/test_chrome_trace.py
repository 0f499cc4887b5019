"""Traces: one file a process, with every call and every bucket of weight sync."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.chrome_trace import close_trace, open_trace
from rollcall_runtime.sync.digests import bucket_digests
from rollcall_runtime.sync.engine import Role, encode_descriptor
from rollcall_runtime.sync.engines.gloo import GlooEngine, GlooSettings
from rollcall_runtime.sync.memory.buffers import HostBuffer

TRACK = "job/default"


def events(folder: Path) -> list[dict[str, Any]]:
    """What a viewer reads from the only file, without names of tracks."""
    (file,) = folder.iterdir()
    return [event for event in json.loads(file.read_text()) if event.get("ph") in {"X", "i"}]


def sync(folder: Path) -> None:
    """Two engines of one process exchange three buckets."""
    settings = GlooSettings(profile=str(folder))
    engines, seats = [GlooEngine(), GlooEngine()], []
    for number, engine in enumerate(engines):
        member, address = MemberId(f"pod-{number}", "boot"), "127.0.0.1"
        role = Role.RECEIVER if number else Role.SENDER
        descriptor = engine.open(member=member, address=address, role=role, settings=settings)
        seats.append(Seat(member, address, encode_descriptor(descriptor)))
    sender, receiver = [
        engine.open_session(group=TRACK, session=SessionId(1, 1, 0), seats=seats, rank=rank)
        for rank, engine in enumerate(engines)
    ]
    source, target = HostBuffer(300), HostBuffer(300)
    manifest = WeightManifest((), 300, 100, bucket_digests(source.memory, 100))

    def receive() -> None:
        receiver.join(timeout=5)
        receiver.receive(target, manifest, timeout=5)

    thread = threading.Thread(target=receive)
    thread.start()
    sender.join(timeout=5)
    sender.publish(source, manifest, timeout=5)
    thread.join()
    for engine in engines:
        engine.close()


def test_calls_and_buckets_of_all_engines_of_a_process_are_in_one_file(tmp_path: Path) -> None:
    sync(tmp_path)
    names = sorted(event["name"] for event in events(tmp_path))
    buckets = [f"bucket {number}" for number in (0, 0, 1, 1, 2, 2)]
    assert names == [*buckets, "join", "join", "publish", "receive"]
    publish = next(event for event in events(tmp_path) if event["name"] == "publish")
    assert publish["args"]["bytes"] == 300
    assert publish["dur"] > 0


def test_a_call_that_fails_says_how(tmp_path: Path) -> None:
    trace = open_trace(tmp_path, process="sender", limit=1 << 20)
    with pytest.raises(TimeoutError), trace.span("join", track=TRACK):
        raise TimeoutError
    close_trace(tmp_path)
    assert [event["args"] for event in events(tmp_path)] == [{"error": "TimeoutError"}]


def test_a_file_does_not_outgrow_its_limit(tmp_path: Path) -> None:
    trace = open_trace(tmp_path, process="sender", limit=2000)
    for _ in range(1000):
        trace.instant("bucket", track=TRACK)
    close_trace(tmp_path)
    assert 0 < len(events(tmp_path)) < 40


def test_what_cannot_be_written_does_not_stop_anything(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    trace = open_trace(tmp_path / "file", process="sender", limit=1000)
    trace.instant("bucket", track=TRACK)
    close_trace(tmp_path / "file")
