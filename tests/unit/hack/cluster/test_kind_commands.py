"""What is asked of docker and kind when the cluster comes up and goes, with stand-ins for both."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hack.cluster import go_build, kind, node_image
from hack.cluster.docker_engine import Engine

if TYPE_CHECKING:
    from pathlib import Path

DOCKER = """#!/bin/sh
echo "docker $*" >> "$CALLS"
case "$1 $2" in
"ps "*) cat "$NODES" 2>/dev/null || true ;;
"exec "*) echo "True True True" ;;
"manifest "*) [ -n "$REGISTRY" ] ;;
esac
"""
KIND = """#!/bin/sh
echo "kind $*" >> "$CALLS"
case "$1" in
create) while [ "$1" != --kubeconfig ]; do shift; done; touch "$2" ;;
esac
printf '%s running\n' rollcall-control-plane rollcall-worker rollcall-worker2 > "$NODES"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The commands given so far, one a line."""
    monkeypatch.setenv("ROLLCALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("NODES", str(tmp_path / "nodes"))
    monkeypatch.setenv("REGISTRY", "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for path, text in ((tmp_path / "bin/docker", DOCKER), (go_build.path_of("kind"), KIND)):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path / "calls"


def created(calls: Path) -> list[str]:
    return [line for line in calls.read_text().splitlines() if line.startswith("kind create")]


def test_where_a_registry_answers_kinds_own_node_image_is_used(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY", "answers")
    engine = Engine(own=False)
    kind.up(engine, choose_image=lambda: node_image.choose(engine))
    (line,) = created(calls)
    assert "--image" not in line
    assert kind.kubeconfig().exists()


def test_another_node_image_is_named(calls: Path) -> None:
    kind.up(Engine(own=False), choose_image=lambda: "rollcall.local/node:v1")
    assert created(calls)[0].endswith("--image rollcall.local/node:v1")


@pytest.mark.parametrize("own", [True, False])
def test_volumes_that_former_nodes_left_in_our_own_engine_are_given_back(
    calls: Path, *, own: bool
) -> None:
    kind.up(Engine(own=own), choose_image=lambda: None)
    asked = calls.read_text().splitlines()
    pruned = [line.startswith("docker volume prune") for line in asked]
    assert pruned.count(True) == own, "another engine's volumes are not ours"
    if own:
        assert pruned.index(True) < [line[:11] == "kind create" for line in asked].index(True)


def test_a_second_up_only_looks(calls: Path) -> None:
    for _ in range(2):
        kind.up(Engine(own=False), choose_image=lambda: None)
    assert len(created(calls)) == 1


def test_a_node_that_was_killed_is_started_again_alone(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind.up(Engine(own=False), choose_image=lambda: None)
    one_down = [(name, "exited" if name == kind.NODES[-1] else "running") for name in kind.NODES]
    (tmp_path / "nodes").write_text("".join(f"{name} {state}\n" for name, state in one_down))
    answers = iter([False, True])
    monkeypatch.setattr(kind, "healthy", lambda _: next(answers))
    kind.up(Engine(own=False), choose_image=lambda: None)
    assert f"docker start {kind.NODES[-1]}\n" in calls.read_text()
    assert len(created(calls)) == 1


def test_nodes_whose_making_was_cut_short_are_deleted_first(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("rollcall-control-plane running\n")
    kind.up(Engine(own=False), choose_image=lambda: None)
    kinds = [line.split()[1] for line in calls.read_text().splitlines() if line[:4] == "kind"]
    assert kinds == ["delete", "create"]


def test_stopped_nodes_are_started_again(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind.up(Engine(own=False), choose_image=lambda: None)
    (tmp_path / "nodes").write_text("".join(f"{name} exited\n" for name in kind.NODES))
    answers = iter([False, True])
    monkeypatch.setattr(kind, "healthy", lambda _: next(answers))
    kind.up(Engine(own=False), choose_image=lambda: None)
    assert (
        "docker start rollcall-control-plane rollcall-worker rollcall-worker2" in calls.read_text()
    )
    assert len(created(calls)) == 1
