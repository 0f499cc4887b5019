"""All that can be known to be wrong with a job before it is started."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall_local.container_check import ContainerCheck, Report
from rollcall_local.kubelet.machine import MEMORY, memory_limit, this_machine
from rollcall_local.manifests import Manifests
from rollcall_local.memory_estimate import MemoryEstimate, estimate, size
from rollcall_local.state_folder import home
from rollcall_operator.api import labels
from rollcall_operator.kube.resources import RL_JOBS, ROLLOUT_POOLS
from rollcall_operator.plan_command import children_of

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """A line about the object `about`; one that is not `right` must be corrected."""

    about: str
    text: str
    right: bool
    warning: bool = False


def check_containers(manifests: Manifests, images: Mapping[str, Path]) -> Iterator[Finding]:
    """Look into the containers of all jobs, which takes seconds; the manifests are right.

    `images` are environments (their Python) by image name.
    """
    whole = [each.body for each in manifests.checked]
    pools = [body for body in whole if body["kind"] == ROLLOUT_POOLS.kind]
    with tempfile.TemporaryDirectory(prefix="rollcall-check-") as place:
        for job in (body for body in whole if body["kind"] == RL_JOBS.kind):
            own = ContainerCheck(
                objects=manifests.objects,
                folder=Path(place) / job["metadata"]["namespace"] / job["metadata"]["name"],
                claims=_claims(job, Path(place)),
                images=images,
            )
            yield from _check_job(job, pools, own.check)


def _claims(job: Object, temporary: Path) -> Path:
    """What an earlier run of the job has kept, else an empty folder."""
    kept = home() / job["metadata"]["name"] / "claims"
    return kept if kept.is_dir() else temporary / "claims"


def _check_job(
    job: Object, pools: Iterable[Object], check: Callable[..., Report]
) -> Iterator[Finding]:
    about = f"{RL_JOBS.kind} {job['metadata']['name']}"
    children = children_of([job], pools)
    trainer = next(child for child in children if child["kind"] == "StatefulSet")
    report = check(trainer, labels.TRAINER, "spec.trainer.template")
    yield from _lines(about, report)
    parameters, prompts = report.parameters, report.prompts
    rollouts = 0
    for child in children:
        if _role(child) != labels.ROLLOUT or child["kind"] != "Deployment":
            continue
        rollouts += child["spec"].get("replicas", 1)
        pool = child["metadata"]["name"]
        report = check(child, labels.ROLLOUT, f"pool {pool}: template", prompts)
        yield from _lines(about, report)
    external = job["spec"]["trainer"]["kind"] == "External"  # what it keeps is its own matter
    if parameters and not external:
        config = job["spec"]["trainer"]["engine"].get("config") or {}
        needed = estimate(parameters, adapters_only="loraRank" in config, rollouts=rollouts)
        yield _of_memory(about, needed, trainer)


def _role(child: Object) -> str:
    template = child["spec"].get("template") or {}
    found: str = ((template.get("metadata") or {}).get("labels") or {}).get(labels.ROLE, "")
    return found


def _lines(about: str, report: Report) -> Iterator[Finding]:
    for text in report.right:
        yield Finding(about, text, right=True)
    for text in report.warnings:
        yield Finding(about, text, right=True, warning=True)
    for text in report.wrong:
        yield Finding(about, text, right=False)


def _of_memory(about: str, needed: MemoryEstimate, trainer: Object) -> Finding:
    """Whether what surely is needed fits."""
    spec = trainer["spec"]
    template = spec["template"]
    worker = template["metadata"]["annotations"][labels.WORKER_CONTAINER]
    container = next(c for c in template["spec"]["containers"] if c["name"] == worker)
    limit, pods = memory_limit(container), spec.get("replicas", 1)
    on_devices = any("/" in name for name in (container.get("resources") or {}).get("limits") or ())
    here = int(this_machine().capacity[MEMORY])
    if on_devices:
        return Finding(about, f"memory: {needed.sentence()}", right=True)
    if limit is not None and needed.trainer > limit * pods:
        text = (
            f"spec.trainer.template: container {worker}: resources.limits.memory: {size(limit)} is "
            f"too little: {needed.sentence()}; raise it, or train a smaller model"
        )
        return Finding(about, text, right=False)
    if needed.whole > here:
        text = (
            f"spec.model.path: {needed.sentence()}, and this machine has {size(here)}; take fewer "
            "rollouts or a smaller model"
        )
        return Finding(about, text, right=False)
    return Finding(about, f"memory: {needed.sentence()}; there are {size(here)}", right=True)
