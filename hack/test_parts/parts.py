"""What the parts are: their commands, and which of them `make test` runs.

Each test runs in exactly one part. The gate has those without a mark; the marks `slow` and `alone`
leave a test to the other parts.
"""

from __future__ import annotations

from dataclasses import dataclass

# Tests of one xdist_group share a set-up or a resource: they run in one process, one by one.
_SIDE_BY_SIDE = "-n 2 --dist loadgroup --durations-cpu 20"
_THREE = "-n 3 --dist loadgroup --durations-cpu 20"
_QUICK = f"{_SIDE_BY_SIDE} -m 'not slow and not alone and not gpu and not monitoring'"
_SLOW = f"{_SIDE_BY_SIDE} -m 'slow and not alone and not gpu and not monitoring'"
_ENGINES = "tests/process/engines"
# These two have environments of their own.
_OTHERS = "--ignore tests/plugins/inference/vllm/inside --ignore tests/plugins/trainers_of_ones_own"
_PLUGINS = f"tests/plugins {_OTHERS}"
_UNIT = f"tests/unit tests/process --ignore {_ENGINES} {_PLUGINS}"
_TRAINERS = "--engine fsdp --engine megatron --engine torchtitan"
_USUAL_IMAGES = "not every_engine and not vllm and not vllm_soak"
_SLOW_JOBS = f"slow and not alone and {_USUAL_IMAGES}"
_JOBS = "pytest tests/cluster/jobs"
# The longest tests first: begun last, they would run on alone.
_LONGEST_JOBS = "tests/cluster/jobs/test_day_two.py tests/cluster/jobs/test_hugging_face_model.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some commands that prove something together.

    Attributes:
        name: what `PARTS=` calls it.
        proves: what passing it shows, in a few words.
        commands: programs of the virtual environment (or `make`), with arguments; run in order.
        gate: whether `make test` runs it.
    """

    name: str
    proves: str
    commands: tuple[str, ...]
    gate: bool = False


PARTS = (
    Part(
        name="lint",
        proves="style, types, layers; what is generated is as its source says",
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
            "python -m hack.docs.coming_from --check",
            "python -m hack.docs.measurements --check",
            "python -m hack.docs.import_graph --check",
            "python -m hack.docs.links",
            "python -m hack.monitoring.dashboards --check",
            "python -m hack.test_parts.pages --check",
            "python -m tests.mutants --check",
            "python -m hack.workflows",
        ),
        gate=True,
    ),
    Part(
        name="docs",
        proves="the site of the documentation can be built",
        commands=("python -m hack.docs",),
        gate=True,
    ),
    Part(
        name="unit",
        proves="each module keeps its promises; quick jobs of real processes",
        commands=(
            f"pytest {_UNIT} {_QUICK}",
            f"pytest {_ENGINES} {_QUICK}",
        ),
        gate=True,
    ),
    Part(
        name="apiserver",
        proves="the operator against a real API server, and the chart's rights and rules",
        commands=(f"pytest tests/apiserver {_QUICK}",),
        gate=True,
    ),
    Part(
        name="scenarios",
        proves="jobs on this machine learn, scale, lose each role, suspend, and fail with a reason",
        commands=(f"pytest tests/scenarios {_SIDE_BY_SIDE} -m 'not slow'",),
        gate=True,
    ),
    Part(
        name="cluster",
        proves="a job on a real cluster scales, loses a pod, learns, and not without weight sync",
        commands=(
            "python -m hack.cluster install",
            f"{_JOBS} {_QUICK}",
        ),
        gate=True,
    ),
    Part(
        name="unit-slow",
        proves="the protocol at length, and what needs several processes",
        commands=(f"pytest tests/unit {_SLOW}",),
    ),
    Part(
        name="process-slow",
        proves="jobs of real processes under faults, attacks, and for a whole training",
        commands=(
            f"pytest tests/process --ignore {_ENGINES} {_SLOW}",
            "pytest tests/scenarios -m slow",
        ),
    ),
    Part(
        name="engines",
        proves="the core's training engine on every mesh",
        commands=(f"pytest {_ENGINES} {_SLOW}",),
    ),
    Part(
        name="plugins-slow",
        proves="optional parts with processes of their own",
        commands=(f"pytest {_PLUGINS} {_SLOW}",),
    ),
    Part(
        name="trainers",
        proves="the other training engines on every mesh",
        commands=(f"pytest {_ENGINES} {_TRAINERS} {_SIDE_BY_SIDE} -m 'not gpu'",),
    ),
    Part(
        name="alone",
        proves="what is late, slow or in the way of others",
        commands=(f"pytest tests/unit tests/process {_PLUGINS} -m 'alone and not gpu'",),
    ),
    Part(
        name="apiserver-slow",
        proves="faults of the control plane, and manifests at random",
        commands=(
            f"pytest tests/apiserver {_SLOW}",
            "pytest tests/apiserver -m 'alone and not monitoring'",
        ),
    ),
    Part(
        name="monitoring",
        proves="every panel, rule and alert returns data of a real Prometheus",
        commands=("pytest tests/apiserver -m monitoring",),
    ),
    # After apiserver: some of its tests need Helm and the API server that it builds.
    Part(
        name="mutants",
        proves="the tests fail when a promise is broken",
        commands=("python -m tests.mutants",),
    ),
    Part(
        name="bare-machine",
        proves="the local cluster needs no program that a new machine lacks",
        commands=("pytest tests/cluster/machine/test_bare_machine.py",),
    ),
    Part(
        name="jobs",
        proves="what the README promises, with pods",
        commands=(f"pytest {_LONGEST_JOBS} tests/cluster/jobs {_THREE} -m '{_SLOW_JOBS}'",),
    ),
    Part(
        name="scenarios-cluster",
        proves="the same scenarios with pods",
        commands=("pytest tests/scenarios --on cluster",),
    ),
    Part(
        name="jobs-alone",
        proves="a cluster's operations, a killed operator, a short soak",
        commands=(f"{_JOBS} -m 'alone and {_USUAL_IMAGES}'",),
    ),
    # Builds the image with every training engine, and puts it into the nodes.
    Part(
        name="jobs-engines",
        proves="every training engine trains in pods",
        commands=(f"{_JOBS} -m every_engine",),
    ),
    # Builds the image with vLLM, and puts it into a node.
    Part(
        name="jobs-vllm",
        proves="rollouts on vLLM learn in pods, and not without weight sync",
        commands=(f"{_JOBS} -n 2 -m vllm",),
    ),
    Part(
        name="soak-vllm",
        proves="rollouts on vLLM survive faults, and a soak's verdict can fail",
        commands=(f"{_JOBS} -m vllm_soak",),
    ),
    # In an environment of its own: vLLM pins other versions.
    Part(
        name="vllm",
        proves="what runs inside vLLM, in real servers on a CPU",
        commands=("make test-vllm",),
    ),
    # In an environment of its own, too.
    Part(
        name="verl",
        proves="verl's managers bring weights to rollouts that come, go and die",
        commands=("make test-verl", "make mutants-verl"),
    ),
    Part(
        name="areal",
        proves="AReaL's own trainer learns on rollouts that die",
        commands=("make test-areal", "make mutants-areal"),
    ),
    Part(
        name="clients",
        proves="unmodified clients call tools by way of the front, and their turns are trained on",
        commands=("make test-clients",),
    ),
    Part(
        name="sbom",
        proves="the list of an image's contents names what is in it",
        commands=("pytest tests/cluster/machine/test_sbom.py",),
    ),
    Part(
        name="image-cuda",
        proves="the image for NVIDIA GPUs is built, and all in it can be imported and loaded",
        commands=("pytest tests/cluster/machine/test_worker_cuda.py",),
    ),
    # Makes a cluster beside the one that the parts above use, and compares all of the machine's
    # mounts, interfaces, control groups and settings before and after: nothing else may run.
    Part(
        name="cluster-lifecycle",
        proves="the local cluster comes, goes and leaves nothing",
        commands=("pytest tests/cluster/machine/test_cluster_lifecycle.py",),
    ),
)
NAMES = tuple(part.name for part in PARTS)


def named(names: list[str]) -> list[Part]:
    """The parts of these names, in the order of the table."""
    return [part for part in PARTS if part.name in names]
