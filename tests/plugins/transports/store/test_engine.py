"""What only the store does: what lies in it, when, and for how long."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcall_plugins.transports.store.engine import StoreEngine, StoreSession, StoreSettings
from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.digests import bucket_digests
from rollcall_runtime.sync.engine import Role, encode_descriptor
from rollcall_runtime.sync.errors import SyncError, TimedOutError
from rollcall_runtime.sync.memory.buffers import HostBuffer
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

WEIGHTS = bytes(range(256)) * 4
MANIFEST = WeightManifest((), len(WEIGHTS), 512, bucket_digests(memoryview(WEIGHTS), 512))

Open = Callable[..., tuple[StoreSession, StoreSession]]


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Open]:
    """Makes a sender's and a receiver's session, joined."""
    engines: list[StoreEngine] = []

    def make(*, epoch: int = 1, group: str = "job/default", **settings: Any) -> Any:
        pair, seats = [StoreEngine(), StoreEngine()], []
        values: dict[str, Any] = {
            "url": f"file://{tmp_path}/weights",
            "operation_bytes": 300,
        } | settings
        for index, engine in enumerate(pair):
            member, role = MemberId(f"pod-{index}", "b"), list(Role)[index]
            descriptor = engine.open(
                member=member, address="127.0.0.1", role=role, settings=StoreSettings(**values)
            )
            seats.append(Seat(member, "127.0.0.1", encode_descriptor(descriptor)))
        engines.extend(pair)
        opened = [
            engine.open_session(group=group, session=SessionId(epoch, 1, 1), seats=seats, rank=r)
            for r, engine in enumerate(pair)
        ]
        (tmp_path / "weights").mkdir(exist_ok=True)
        for rank, session in enumerate(opened):
            room = f"{session._sessions}/{session._mark}"  # type: ignore[attr-defined]
            Path(room).mkdir(parents=True, exist_ok=True)
            Path(room, str(1 - rank)).touch()
            session.join(timeout=1.0)
        return opened

    yield make
    for engine in engines:
        engine.close()


def weights() -> HostBuffer:
    buffer = HostBuffer(len(WEIGHTS))
    buffer.memory[:] = WEIGHTS
    return buffer


def versions(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("weights/*/versions/*"))


def test_a_version_is_a_manifest_chunks_and_a_marker(sessions: Open, tmp_path: Path) -> None:
    sender, receiver = sessions()
    sender.publish(weights(), MANIFEST, timeout=1.0)
    (folder,) = tmp_path.glob("weights/job%2Fdefault/versions/*")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["COMPLETE", "chunk-0", "chunk-1", "chunk-2", "chunk-3", "manifest.json"]
    text = (folder / "manifest.json").read_bytes()
    assert (folder / "COMPLETE").read_text() == str(zlib.crc32(text))
    target = HostBuffer(len(WEIGHTS))
    receiver.receive(target, MANIFEST, timeout=1.0)
    assert bytes(target.memory) == WEIGHTS


@pytest.mark.parametrize("mark", [None, "", "12345"])
def test_a_version_without_its_whole_marker_does_not_exist(
    sessions: Open, tmp_path: Path, mark: str | None
) -> None:
    sender, receiver = sessions()
    sender.publish(weights(), MANIFEST, timeout=1.0)
    (marker,) = tmp_path.glob("weights/*/versions/*/COMPLETE")
    marker.unlink()
    if mark is not None:
        marker.write_text(mark)
    with pytest.raises(TimedOutError):
        receiver.receive(HostBuffer(len(WEIGHTS)), MANIFEST, timeout=0.2)


def test_old_versions_go_but_for_the_newest_few(sessions: Open, tmp_path: Path) -> None:
    sender, _ = sessions(keep=2, keep_seconds=0.0)
    for _ in range(4):
        sender.publish(weights(), MANIFEST, timeout=1.0)
    assert [name[-1] for name in versions(tmp_path)] == ["3", "4"]


def test_a_version_that_is_young_is_kept(sessions: Open, tmp_path: Path) -> None:
    sender, _ = sessions(keep=1, keep_seconds=60.0)
    for _ in range(3):
        sender.publish(weights(), MANIFEST, timeout=1.0)
    assert len(versions(tmp_path)) == 3


def test_what_a_dead_sender_left_is_removed_by_the_next(sessions: Open, tmp_path: Path) -> None:
    dead, _ = sessions(epoch=1, keep=1, keep_seconds=0.0)
    litter = Path(dead._versions, f"{dead._mark}-00000001")
    litter.mkdir(parents=True)
    (litter / "chunk-0").write_bytes(b"half of")
    sender, _ = sessions(epoch=2, keep=1, keep_seconds=0.0)
    sender.publish(weights(), MANIFEST, timeout=1.0)
    assert [name[:10] for name in versions(tmp_path)] == ["0000000002"]


def test_a_chunk_that_is_cut_off_is_an_error(sessions: Open, tmp_path: Path) -> None:
    sender, receiver = sessions()
    sender.publish(weights(), MANIFEST, timeout=1.0)
    (chunk,) = tmp_path.glob("weights/*/versions/*/chunk-2")
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(SyncError, match="chunk 2 is too short"):
        receiver.receive(HostBuffer(len(WEIGHTS)), MANIFEST, timeout=1.0)


def test_a_group_cannot_lead_out_of_the_url(sessions: Open, tmp_path: Path) -> None:
    sender, _ = sessions(group="../../etc")
    sender.publish(weights(), MANIFEST, timeout=1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "url must say where"),
        ({"url": "/mnt"}, "url must say where"),
        ({"url": "file:///x", "keep": 0}, "keep must be at least 1"),
        ({"url": "file:///x", "storageOptions": "{"}, "storageOptions is not JSON"),
        ({"url": "file:///x", "storageOptions": "[]"}, "must be a JSON object"),
    ],
)
def test_wrong_settings_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_settings(StoreSettings, config, field="spec.weightSync.config")
