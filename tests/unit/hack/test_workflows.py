"""What actionlint does not check in the workflows: pins, rights, deadlines, the first comment."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yaml"))
ACTIONS = sorted(GITHUB.glob("actions/*/action.yml"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
WRITE_MAY = {"page": {"contents"}, "*": {"packages", "id-token", "attestations"}}

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def uses(path: Path) -> Iterator[str]:
    """What each `uses:` names, with the comment behind it."""
    for line in path.read_text().splitlines():
        found = re.match(r"\s*(?:- )?uses: (.+)$", line)
        if found:
            yield found[1]


def test_there_are_a_gate_a_nightly_run_and_a_release() -> None:
    assert [path.stem for path in WORKFLOWS] == ["gate", "nightly", "release"]


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.parent.name)
def test_an_action_of_others_is_pinned_by_commit_with_its_version(path: Path) -> None:
    others = [name for name in uses(path) if not name.startswith("./")]
    assert [name for name in others if not PINNED.fullmatch(name)] == []


def test_one_action_has_one_pin() -> None:
    found = {name for path in (*WORKFLOWS, *ACTIONS) for name in uses(path) if "@" in name}
    actions = [name.partition("@")[0] for name in found]
    assert sorted(actions) == sorted(set(actions))


@every_workflow
def test_a_workflow_begins_with_what_was_never_run(path: Path) -> None:
    comment = path.read_text().split("\nname:")[0]
    assert all(line.startswith("#") for line in comment.splitlines() if line)
    assert "Never run" in comment


@every_workflow
def test_a_workflow_may_only_read_and_a_job_of_the_release_may_write_what_it_makes(
    path: Path,
) -> None:
    workflow = read(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for name, job in workflow["jobs"].items():
        written = {right for right, of in job.get("permissions", {}).items() if of == "write"}
        assert not written or path.stem == "release"
        assert written <= WRITE_MAY.get(name, WRITE_MAY["*"])


@every_workflow
def test_every_job_has_a_deadline(path: Path) -> None:
    jobs = read(path)["jobs"]
    assert [name for name, job in jobs.items() if "timeout-minutes" not in job] == [
        name for name, job in jobs.items() if "uses" in job
    ]


@every_workflow
def test_no_checkout_leaves_the_token_behind(path: Path) -> None:
    for job in read(path)["jobs"].values():
        for step in job.get("steps", []):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_no_cache_reaches_a_release_and_only_a_tag_makes_one() -> None:
    text = (GITHUB / "workflows" / "release.yaml").read_text()
    assert "actions/cache@" not in text
    assert "./.github/actions/set-up" not in text
    assert '\non:\n  push:\n    tags: ["v*"]\n\n' in text
