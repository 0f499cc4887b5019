"""What outlives a restart: the objects of most kinds, whole."""

import os
from pathlib import Path
from typing import IO

import pytest

from rollcall_local.api_server.errors import StorageError
from rollcall_local.api_server.folder import ObjectFolder
from rollcall_local.api_server.kinds import KINDS, NAMESPACES
from rollcall_local.api_server.store import ObjectStore
from rollcall_operator.kube.resources import CONFIG_MAPS, LEASES, NODES, PODS
from tests.unit.rollcall_local.api_server.objects import config_map, pod


def opened(path: Path) -> ObjectStore:
    """A store as the next start makes it."""
    kept = ObjectFolder(path)
    return ObjectStore(changed=kept.changed, entries=kept.load())


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_objects_are_there_after_a_restart_as_they_were(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.create(NAMESPACES, {"metadata": {"name": "ns"}})
    store.create(CONFIG_MAPS, config_map("a.b", x="1"))
    store.merge(CONFIG_MAPS, "ns", "a.b", {"data": {"y": "2"}})
    store.create(CONFIG_MAPS, config_map("gone"))
    store.delete(CONFIG_MAPS, "ns", "gone")
    again = opened(tmp_path)
    for resource in (NAMESPACES, CONFIG_MAPS):
        assert again.listed(resource) == store.listed(resource)
    assert len(again.objects()) == 2
    assert files(tmp_path) == ["configmaps/ns/a.b.json", "namespaces/-/ns.json"]


def test_versions_go_on_after_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path)
    before = store.create(CONFIG_MAPS, config_map())
    after = opened(tmp_path).create(CONFIG_MAPS, config_map("b"))
    assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])


def test_who_has_set_what_is_there_after_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.apply(CONFIG_MAPS, config_map(x="1", y="2"), manager="m", force=False)
    store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "3"}})
    again = opened(tmp_path)
    left = again.apply(CONFIG_MAPS, config_map(), manager="m", force=False)
    assert left["data"] == {"x": "3"}


def test_what_runs_on_the_machine_is_gone_with_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.create(PODS, pod())
    store.create(NODES, {"metadata": {"name": "n"}})
    store.create(LEASES, {"metadata": {"name": "l", "namespace": "ns"}})
    assert files(tmp_path) == []
    assert {plural for plural, kind in KINDS.items() if not kind.kept} == {
        "pods",
        "nodes",
        "leases",
    }


def test_others_cannot_read_what_is_kept(tmp_path: Path) -> None:
    opened(tmp_path).create(CONFIG_MAPS, config_map())
    (file,) = tmp_path.rglob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '"x"',
        '{"object": {}}',
        '{"object": {"metadata": {"name": "a"}}, "applied": {}}',
        '{"object": {"metadata": {"resourceVersion": "x"}}, "applied": {}}',
        '{"object": {"metadata": {"resourceVersion": "1"}}}',
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    opened(tmp_path).create(CONFIG_MAPS, config_map())
    file = tmp_path / "configmaps" / "ns" / "a.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=f"{file}: not an object of this program"):
        opened(tmp_path)


def test_what_a_killed_write_has_left_does_not_count(tmp_path: Path) -> None:
    store = opened(tmp_path)
    made = store.create(CONFIG_MAPS, config_map())
    (tmp_path / "configmaps" / "ns" / "a.json.new").write_text("{")
    again = opened(tmp_path)
    assert again.objects() == [made]
    again.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "1"}})
    assert files(tmp_path) == ["configmaps/ns/a.json"]


def test_a_kind_that_is_not_served_any_more_is_left_alone(tmp_path: Path) -> None:
    opened(tmp_path).create(CONFIG_MAPS, config_map())
    (tmp_path / "configmaps").rename(tmp_path / "formers")
    assert opened(tmp_path).objects() == []
    assert files(tmp_path) == ["formers/ns/a.json"]


# --- a full disk ---------------------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files can be made, and nothing can be written to them."""
    monkeypatch.setattr(os, "fdopen", on_a_full_disk)


def on_a_full_disk(descriptor: int, _mode: str) -> IO[bytes]:
    os.close(descriptor)
    return Path("/dev/full").open("wb")


def test_a_full_disk_leaves_the_object_as_it_was(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = opened(tmp_path)
    made = store.create(CONFIG_MAPS, config_map(x="1"))
    request.getfixturevalue("full_disk")
    refused = "cannot be written: No space left on device"
    with pytest.raises(StorageError, match=refused):
        store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "2"}})
    with pytest.raises(StorageError, match=refused):
        store.create(CONFIG_MAPS, config_map("b"))
    assert store.objects() == [made]
    assert files(tmp_path) == ["configmaps/ns/a.json"], "nothing half written takes up space"
    assert opened(tmp_path).objects() == [made]
    store.delete(CONFIG_MAPS, "ns", "a")
    assert files(tmp_path) == []


def test_why_nothing_is_written_is_known_until_something_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ObjectFolder(tmp_path)
    store = ObjectStore(changed=kept.changed)
    with monkeypatch.context() as until_there_is_room:
        until_there_is_room.setattr(os, "fdopen", on_a_full_disk)
        with pytest.raises(StorageError):
            store.create(CONFIG_MAPS, config_map())
    assert kept.problem == f"{tmp_path}: No space left on device"
    store.create(PODS, pod())  # of a kind that is not kept
    assert kept.problem
    store.create(CONFIG_MAPS, config_map())
    assert kept.problem == ""
