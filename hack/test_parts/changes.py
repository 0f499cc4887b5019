"""Which parts a change needs: by the paths that it touches."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Written by a full run, and by what shows it.
RECORDS = ("tests/full-run.json", "docs/testing.md", "CONTRIBUTING.md", "README.md")


@dataclass(frozen=True, slots=True)
class Area:
    """A part of the tree, for who changes it.

    Attributes:
        what: the change in a few words, as CONTRIBUTING.md shows it.
        paths: how the paths of its files begin, from the root.
        parts: the parts that such a change needs, beside lint and unit, which all need.
    """

    what: str
    paths: tuple[str, ...]
    parts: tuple[str, ...] = ()


_RUNTIME = "workloads/rollcall_runtime/"
_PLUGINS = "workloads/rollcall_plugins/"
ALWAYS = ("lint", "unit")
AREAS = (
    Area(
        "docs, the repository's own files",
        ("docs/", ".", "LICENSE", "CHANGELOG", "SECURITY"),
        ("docs",),
    ),
    Area("the README, examples", ("README", "examples/"), ("docs", "scenarios", "jobs", "mutants")),
    Area(
        "metrics, dashboards, alerts",
        ("operator/rollcall_operator/telemetry/", "hack/monitoring/", _RUNTIME + "worker/"),
        ("apiserver", "monitoring", "mutants"),
    ),
    Area(
        "the operator, its commands",
        ("operator/", "crds/"),
        (
            *("apiserver", "apiserver-slow", "mutants", "scenarios", "scenarios-cluster"),
            *("cluster", "jobs", "jobs-alone"),
        ),
    ),
    Area("jobs on one machine", ("operator/rollcall_local/",), ("scenarios", "mutants")),
    Area(
        "the chart",
        ("charts/",),
        ("apiserver", "apiserver-slow", "monitoring", "mutants", "cluster", "jobs-alone"),
    ),
    Area(
        "the protocol",
        ("workloads/rollcall_protocol/",),
        (
            *("unit-slow", "process-slow", "alone", "apiserver", "apiserver-slow", "mutants"),
            *("scenarios", "cluster", "jobs", "jobs-alone"),
        ),
    ),
    Area(
        "weight sync, its transports",
        (_RUNTIME + "sync/", _PLUGINS + "transports/", "tests/doubles/"),
        (
            *("unit-slow", "process-slow", "plugins-slow", "alone", "mutants"),
            *("scenarios", "cluster", "jobs"),
        ),
    ),
    Area(
        "trainers, training engines",
        (_RUNTIME + "train/", _PLUGINS + "trainers/"),
        (
            *("unit-slow", "engines", "trainers", "process-slow", "plugins-slow", "alone"),
            *("mutants", "scenarios", "jobs", "jobs-engines"),
        ),
    ),
    Area(
        "rollouts, inference engines",
        (
            *(_RUNTIME + "rollout/", _PLUGINS + "inference/"),
            "hack/sglang_contract.py",
        ),
        (
            *("process-slow", "plugins-slow", "vllm", "mutants", "scenarios", "cluster", "jobs"),
            *("jobs-vllm", "soak-vllm"),
        ),
    ),
    Area(
        "the library for programs of one's own",
        ("workloads/rollcall/", _RUNTIME + "external/"),
        ("process-slow", "alone", "verl", "areal", "mutants", "scenarios", "cluster", "jobs"),
    ),
    Area(
        "the rest of the runtime and of its plug-ins",
        (_RUNTIME, _PLUGINS),
        (
            *("unit-slow", "process-slow", "plugins-slow", "alone", "mutants"),
            *("scenarios", "cluster", "jobs"),
        ),
    ),
    Area(
        "images, requirements",
        ("images/", "requirements/", "pyproject.toml", "tests/images/"),
        (
            *("cluster", "jobs", "jobs-engines", "jobs-vllm", "vllm", "verl", "areal", "clients"),
            "sbom",
            "image-cuda",
        ),
    ),
    Area(
        "the local cluster, the Makefile",
        ("hack/cluster/", "hack/install-packages.sh", "Makefile"),
        ("apiserver", "cluster", "bare-machine", "sbom", "cluster-lifecycle"),
    ),
    Area("the soak", ("hack/soak/", "hack/demo/"), ("jobs-alone", "soak-vllm")),
    Area("attacks, the liar", ("hack/attacks/", "hack/liar/"), ("process-slow",)),
    Area("benches and other tools", ("hack/",), ()),
    Area("unit tests", ("tests/unit/", "tests/golden/"), ("unit-slow", "alone", "mutants")),
    Area(
        "tests of processes",
        ("tests/process/",),
        ("process-slow", "engines", "trainers", "alone"),
    ),
    Area(
        "tests with an API server",
        ("tests/apiserver/",),
        ("apiserver", "apiserver-slow", "monitoring"),
    ),
    Area(
        "tests on a cluster",
        ("tests/cluster/",),
        (
            *("cluster", "jobs", "jobs-alone", "jobs-engines", "jobs-vllm", "soak-vllm"),
            *("bare-machine", "sbom", "cluster-lifecycle"),
        ),
    ),
    Area(
        "tests of scenarios",
        ("tests/scenarios/",),
        ("scenarios", "process-slow", "scenarios-cluster"),
    ),
    Area(
        "tests of plug-ins",
        ("tests/plugins/",),
        ("plugins-slow", "alone", "vllm", "verl", "areal", "clients"),
    ),
    Area("mutants", ("tests/mutants/",), ("mutants",)),
    Area("what all tests share", ("tests/",), ("docs", "apiserver", "cluster")),
)


def area_of(path: str) -> Area | None:
    """The area that says most of a path: the one with its longest beginning; None if none has."""
    best = [
        (len(beginning), area)
        for area in AREAS
        for beginning in area.paths
        if path.startswith(beginning)
    ]
    return max(best, key=lambda found: found[0])[1] if best else None


def parts_of(paths: set[str]) -> set[str]:
    """The names of the parts that a change of these paths needs."""
    areas = [area_of(path) for path in paths - set(RECORDS)]
    return {name for area in areas for name in (*ALWAYS, *(area.parts if area else ()))}


def paths_since(commit: str) -> set[str] | None:
    """What differs between a commit and the working tree; None if there is no such commit."""
    known = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if known.returncode:
        return None
    changed = _git("diff", "--name-only", "--no-renames", "-z", known.stdout.strip())
    untracked = _git("ls-files", "--others", "--exclude-standard", "-z")
    return set(filter(None, (changed.stdout + untracked.stdout).split("\0")))


def head() -> str:
    """The hash of the present commit."""
    return _git("rev-parse", "HEAD").stdout.strip()


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
