"""`make test` in parts: in order, or those that are named (`make test PARTS="unit e2e"`).

A part that is `named_only` runs if it is named, and not otherwise.

This table is the only place that says what the parts are; CONTRIBUTING.md says which to run for
which change.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
HERE = "not gpu and not alone"

# Tests of one xdist_group share a set-up or a resource: they run in one process, one by one.
SIDE_BY_SIDE = "-n 2 --dist loadgroup"
SHOW_SLOWEST = "--durations-cpu 20"
NOT_ENGINES = "--ignore tests/process/engines"
UNIT = f"tests/unit tests/process {NOT_ENGINES}"
SLOW = f"pytest tests/process tests/unit {NOT_ENGINES} {SIDE_BY_SIDE} {SHOW_SLOWEST} -m"
LONGEST_E2E = " ".join(
    f"tests/cluster/jobs/test_{name}.py"
    for name in ("elastic_rollouts", "day_two", "hugging_face_model")
)

ENGINES = f"tests/process/engines {SIDE_BY_SIDE} {SHOW_SLOWEST}"
INTEGRATION = f"tests/apiserver {SIDE_BY_SIDE} {SHOW_SLOWEST}"
ALL_INTEGRATION = "not alone and not monitoring"
USUAL_INTEGRATION = f"{ALL_INTEGRATION} and not long"
USUAL_E2E = "not every_engine and not vllm and not vllm_soak and not long"
E2E_SIDE_BY_SIDE = f"-n 3 --dist loadgroup {SHOW_SLOWEST} -m 'not alone and {USUAL_E2E}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of `make test`.

    Attributes:
        name: what `PARTS=` calls it.
        minutes: what it usually takes on two cores with warm caches.
        commands: programs of the virtual environment, with arguments; run in order.
        named_only: whether `make test` alone leaves it out.
    """

    name: str
    minutes: float
    commands: tuple[str, ...]
    named_only: bool = False


PARTS = (
    Part(
        name="lint",
        minutes=1,
        commands=(
            "ruff check .",
            "ruff format --check .",
            "pytest tests/unit/test_names.py",
            "mypy operator workloads hack tests",
            "lint-imports",
            "rollcall-operator crds --check",
            "rollcall-operator crds --check --dir charts/rollcall-operator/files/crds",
            "rollcall-operator reference --check",
            "python -m hack.docs.cli_reference --check",
            "python -m hack.docs.links",
            "python -m hack.monitoring.dashboards --check",
        ),
    ),
    Part(name="docs", minutes=0.3, commands=("python -m hack.docs",)),
    Part(
        name="unit",
        minutes=5,
        commands=(f"pytest {UNIT} {SIDE_BY_SIDE} -m 'not slow and {HERE}'",),
    ),
    Part(
        name="engines",
        minutes=1.2,
        commands=(f"pytest {ENGINES} -m 'not slow and {HERE}'",),
    ),
    # All training engines on all meshes; the quick ones run in the part above, too.
    Part(
        name="engines-whole",
        minutes=20,  # an estimate: each engine was measured by itself, beside other work
        commands=(f"pytest {ENGINES} -m 'not gpu'",),
        named_only=True,
    ),
    # Before the mutants: it builds the API server and Helm, which some of their tests need.
    Part(
        name="integration",
        minutes=4.5,
        commands=(
            f"pytest {INTEGRATION} -m '{USUAL_INTEGRATION}'",
            "pytest tests/apiserver -m alone",
        ),
    ),
    Part(
        name="integration-whole",
        minutes=6,
        commands=(f"pytest {INTEGRATION} -m '{ALL_INTEGRATION}'",),
        named_only=True,
    ),
    # A real Prometheus sees all panels with data end to end, too; the part above tests alerts.
    Part(
        name="monitoring",
        minutes=4,
        commands=("pytest tests/apiserver -m monitoring",),
        named_only=True,
    ),
    Part(name="mutants", minutes=4.5, commands=("python -m tests.mutants --quick",)),
    Part(
        name="slow",
        minutes=15,
        # The longest are in tests/process: begun last, they would run on with one core idle.
        commands=(f"{SLOW} 'slow and not long and {HERE}'",),
    ),
    Part(
        name="slow-whole",
        minutes=15,
        commands=(f"{SLOW} 'slow and {HERE}'",),
        named_only=True,
    ),
    Part(
        name="alone",
        minutes=2,
        commands=(f"pytest {UNIT} -m 'alone and not gpu'",),
    ),
    # The parts below need it.
    Part(name="cluster", minutes=3, commands=("python -m hack.cluster install",)),
    Part(
        name="bare-machine",
        minutes=2,
        commands=("pytest tests/cluster/machine/test_bare_machine.py",),
    ),
    Part(
        name="e2e",
        minutes=14,
        # The longest tests first: begun last, they would run on alone.
        commands=(f"pytest {LONGEST_E2E} tests/cluster/jobs {E2E_SIDE_BY_SIDE}",),
    ),
    Part(
        name="e2e-long",
        minutes=4,  # an estimate: by what its tests take in the part above
        commands=("pytest tests/cluster/jobs -n 2 --dist loadgroup -m long",),
        named_only=True,
    ),
    Part(
        name="e2e-alone",
        minutes=4,
        commands=(f"pytest tests/cluster/jobs -m 'alone and {USUAL_E2E}'",),
    ),
    # Builds the image with vLLM, and puts it into a node.
    Part(
        name="e2e-vllm",
        minutes=9,
        commands=(f"pytest tests/cluster/jobs -n 2 {SHOW_SLOWEST} -m vllm",),
        named_only=True,
    ),
    # Builds an image with every training engine, and puts it into the nodes.
    Part(
        name="e2e-engines",
        minutes=11,
        commands=("pytest tests/cluster/jobs -m every_engine",),
        named_only=True,
    ),
    Part(
        name="soak-vllm",
        minutes=5,
        commands=("pytest tests/cluster/jobs -m vllm_soak",),
        named_only=True,
    ),
    Part(
        name="sbom",
        minutes=2,
        commands=("pytest tests/cluster/machine/test_sbom.py",),
        named_only=True,
    ),
    # Its own cluster beside the one that the parts above use, and it compares all of the machine's
    # mounts, interfaces, control groups and settings before and after: nothing else may run.
    Part(
        name="cluster-lifecycle",
        minutes=5,  # an estimate: not measured yet
        commands=("pytest tests/cluster/machine/test_cluster_lifecycle.py",),
        named_only=True,
    ),
)


def main() -> int:
    """Runs the parts; returns the exit status of the first command that failed, else 0."""
    known = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m hack.test_parts", description=__doc__)
    parser.add_argument(
        "part", nargs="*", choices=[[], *known], help="those of make test, if none is named"
    )
    named = parser.parse_args().part or [part.name for part in PARTS if not part.named_only]
    chosen = [part for part in PARTS if part.name in named]
    took: list[str] = []
    status = 0
    for number, part in enumerate(chosen):
        began = time.monotonic()
        status = run(part, number=number + 1, of=len(chosen), after=chosen[number + 1 :])
        took.append(f"{part.name} {(time.monotonic() - began) / 60:.1f}")
        if status:
            break
    announce(f"minutes: {', '.join(took)}{' (failed)' if status else ''}")
    return status


def run(part: Part, *, number: int, of: int, after: list[Part]) -> int:
    """Runs one part; returns 0, or the exit status of the command that failed."""
    rest = f"; then {', '.join(p.name for p in after)}" if after else ""
    left = sum(p.minutes for p in after)
    announce(
        f"part {number} of {of}: {part.name}, usually {part.minutes:g} min{rest}"
        + (f" ({left:g} min)" if after else "")
    )
    for command in part.commands:
        program, *arguments = shlex.split(command)
        status = subprocess.run([BIN / program, *arguments], cwd=ROOT, check=False).returncode
        if status:
            announce(
                f'{part.name} failed: {command}; repeat it with: make test PARTS="{part.name}"'
            )
            return status
    return 0


def announce(line: str) -> None:
    """One line between the parts' own output."""
    print(f"\n=== {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
