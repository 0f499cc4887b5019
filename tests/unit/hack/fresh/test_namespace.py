"""How the root of `make fresh` is laid out, and what removes it."""

import os
from pathlib import Path

import pytest

from hack.cluster import machine
from hack.fresh import namespace


def test_without_caches_nothing_of_the_machine_but_its_devices_is_in_the_root(
    tmp_path: Path,
) -> None:
    targets = [words[-1] for words in namespace.mounts(tmp_path, {})]
    root = tmp_path / "root"
    assert targets == [root, *(root / name for name in ("proc", "sys", "dev", "dev/shm", "run"))]


@pytest.mark.skipif(os.geteuid() != 0, reason="marking a folder as opaque takes root")
def test_a_cache_is_read_where_it_is_and_written_in_the_runs_own_folder(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    folder = tmp_path / "rollcall-fresh-1"
    try:
        *_, overlay, engine_data = namespace.mounts(folder, {"rollcall": cache})
    except OSError as error:
        pytest.skip(f"this file system keeps no such marks: {error}")
    target = folder / "root/home/rollcall-fresh-1/.cache/rollcall"
    layers = folder / "caches/rollcall"
    options = f"--options=lowerdir={cache},upperdir={layers}/upper,workdir={layers}/work"
    assert overlay == ["mount", "--types=overlay", options, "overlay", target]
    assert engine_data == ["mount", "--bind", layers / "plain", target / "engine-data"]


@pytest.mark.skipif(os.geteuid() != 0, reason="marking a folder as opaque takes root")
def test_the_machines_own_cluster_is_not_handed_in(tmp_path: Path) -> None:
    try:
        namespace.mounts(tmp_path, {"rollcall": tmp_path / "cache"})
    except OSError as error:
        pytest.skip(f"this file system keeps no such marks: {error}")
    upper = tmp_path / "caches/rollcall/upper"
    assert {path.name for path in upper.iterdir()} == {"cluster", "engine-data", "log", "tmp"}
    assert all(os.getxattr(path, "trusted.overlay.opaque") == b"y" for path in upper.iterdir())


def test_two_runs_have_different_homes_and_so_different_clusters() -> None:
    homes = [namespace.home_of(namespace.PARENT / f"{namespace.PREFIX}{pid}") for pid in (1, 2)]
    assert len(set(homes)) == 2


def test_what_an_earlier_run_left_is_removed_unless_that_run_still_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace, "PARENT", tmp_path)
    left, held = (tmp_path / f"{namespace.PREFIX}{number}" for number in (1, 2))
    left.mkdir()
    held.mkdir()
    with namespace._holding(held):
        namespace.sweep()
        assert list(tmp_path.iterdir()) == [held]
    namespace.sweep()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cluster_is_up", [True, False])
def test_kernel_settings_go_back_to_the_machines_own_if_a_cluster_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster_is_up: bool
) -> None:
    """Those that the cluster saved are of its process namespace: pid_max is another there."""
    restored: list[dict[str, str]] = []
    monkeypatch.setattr(machine, "restore_sysctls", restored.append)
    folder = tmp_path / f"{namespace.PREFIX}1"
    saved = folder / "caches/rollcall/upper/cluster/settings-before.json"
    saved.parent.mkdir(parents=True)
    if cluster_is_up:
        saved.write_text('{"kernel/pid_max": "4194304"}')
    (folder / "settings-before.json").write_text('{"kernel/pid_max": "32768"}')
    namespace._clean(folder)
    assert restored == ([{"kernel/pid_max": "32768"}] if cluster_is_up else [])
