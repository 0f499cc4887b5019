"""The record of what was published: what is kept, and what a damaged file costs."""

from pathlib import Path

import pytest

from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.coordinator.published_manifests import KEPT, PublishedManifests
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up

LINEAGE = Lineage(3, 1)


def manifest(number: int) -> WeightManifest:
    return WeightManifest((), 10, 10, made_up(number))


def test_a_manifest_is_there_for_the_next_process(tmp_path: Path) -> None:
    PublishedManifests(tmp_path / "new").save(Version(LINEAGE, 7), manifest(7))
    found = PublishedManifests(tmp_path / "new")
    assert found.load(Version(LINEAGE, 7)) == manifest(7)
    assert found.load(Version(Lineage(4, 1), 7)) is None, "another incarnation's"


def test_the_newest_are_kept(tmp_path: Path) -> None:
    manifests = PublishedManifests(tmp_path)
    for number in range(KEPT + 2):
        manifests.save(Version(LINEAGE, number), manifest(number))
    there = [manifests.load(Version(LINEAGE, number)) for number in range(KEPT + 2)]
    assert there == [None, None, *map(manifest, range(2, KEPT + 2))]


@pytest.mark.parametrize("text", ["", "{", "{}", '{"total_bytes": -1}', "[" * 100_000])
def test_a_damaged_file_is_reported_and_not_used(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    manifests, version = PublishedManifests(tmp_path), Version(LINEAGE, 7)
    manifests.save(version, manifest(7))
    next(tmp_path.iterdir()).write_text(text)
    assert manifests.load(version) is None
    assert "what version 7@3.1 consisted of is not known" in caplog.text


def test_a_folder_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    PublishedManifests(tmp_path / "file" / "folder").save(Version(LINEAGE, 7), manifest(7))
    assert "version 7@3.1 cannot be recovered from rollouts" in caplog.text
