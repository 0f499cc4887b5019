"""A change needs the parts of the areas that it touches."""

import subprocess
from pathlib import Path

import pytest

from hack.test_parts import changes
from hack.test_parts.parts import NAMES


def test_every_file_of_the_tree_has_an_area() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=changes.ROOT, capture_output=True, text=True, check=False
    )
    paths = set(filter(None, listing.stdout.split("\0")))  # none in a copy without a repository
    assert {path for path in paths - set(changes.RECORDS) if changes.area_of(path) is None} == set()


def test_areas_name_parts_that_are_there() -> None:
    named = {name for area in changes.AREAS for name in (*changes.ALWAYS, *area.parts)}
    assert named <= set(NAMES)


@pytest.mark.parametrize(
    ("path", "needed", "not_needed"),
    [
        ("docs/concepts.md", {"lint", "docs"}, {"cluster", "mutants"}),
        ("operator/rollcall_operator/plan/failure.py", {"apiserver", "cluster"}, {"engines"}),
        ("operator/rollcall_operator/telemetry/metrics.py", {"monitoring"}, {"jobs"}),
        ("workloads/rollcall_runtime/train/engines/fsdp2.py", {"engines"}, {"monitoring"}),
        ("workloads/rollcall_protocol/pod_contract.py", {"unit-slow", "alone"}, {"sbom"}),
        ("hack/cluster/kind.py", {"bare-machine", "cluster-lifecycle"}, {"engines"}),
    ],
)
def test_an_area_needs_its_parts(path: str, needed: set[str], not_needed: set[str]) -> None:
    parts = changes.parts_of({path})
    assert needed | {"lint", "unit"} <= parts
    assert not parts & not_needed


def test_the_longest_beginning_of_a_path_says_its_area() -> None:
    general = changes.area_of("hack/svg_file.py")
    special = changes.area_of("hack/cluster/kind.py")
    assert general is not None
    assert special is not None
    assert (general.parts, "cluster" in special.parts) == ((), True)


def test_what_a_full_run_writes_needs_no_part() -> None:
    assert changes.parts_of({"tests/full-run.json", "docs/testing.md"}) == set()


def test_what_differs_from_a_commit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "ROOT", tmp_path)
    git(tmp_path, "init", "--quiet")
    for name in ("same", "edited", "deleted", "moved"):
        (tmp_path / name).write_text(name)
    commit_all(tmp_path)
    commit = changes.head()
    (tmp_path / "edited").write_text("again")
    (tmp_path / "moved").rename(tmp_path / "there")
    commit_all(tmp_path)
    (tmp_path / "deleted").unlink()
    (tmp_path / "new").write_text("new")
    assert changes.paths_since(commit) == {"edited", "moved", "there", "deleted", "new"}
    assert changes.paths_since("0" * 40) is None


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def commit_all(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "change")
