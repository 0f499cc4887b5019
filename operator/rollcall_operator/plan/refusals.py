"""Errors of a spec that only live objects show: refused children, taken names, live replicas."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RolloutSpec
from rollcall_operator.api.training import TrainerSpec
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.children.trainer_ranks import processes_per_pod
from rollcall_operator.plan.job_view import PoolView
from rollcall_operator.plan.model import NETWORK_POLICY, Manifest, Refusal
from rollcall_operator.plan.trainer_restart import live_stateful_set
from rollcall_protocol import pod_contract

NO_CHILD = "it exists and is no child of this RLJob"
"""The message of a refusal of what has the name of a child and is somebody else's."""

_LONGEST = 800
_SUSPEND_FIRST = (
    "is immutable while the job is not suspended; set spec.suspend: true first, or create another "
    "RLJob"
)


def frozen_errors(job: Manifest, trainer: TrainerSpec, live: Iterable[Manifest]) -> Iterator[str]:
    """Changes that pods started from now on would see, and those that run would not.

    `live` are the job's children as they are.
    """
    running = _running_config(job, live)
    if running is None:
        return
    if running["trainer_engine"]["config"] != trainer.engine.config:
        yield f"spec.trainer.engine.config: {_SUSPEND_FIRST}"
    before, now = running.get("trainer_processes", 1), processes_per_pod(trainer)
    if now != before:
        yield (
            f"spec.trainer.template: now asks for {now} processes in a pod, one for each "
            f"accelerator; their number, {before}, {_SUSPEND_FIRST}"
        )


def pool_errors(
    job: Manifest, rollouts: Iterable[RolloutSpec], pools: Iterable[PoolView]
) -> Iterator[str]:
    """What keeps `spec.rollouts` from being carried out on the pools as they are."""
    found, metadata = {pool.name: pool for pool in pools}, job["metadata"]
    for index, rollout in enumerate(rollouts):
        path = f"spec.rollouts[{index}]"
        pool = found.get(labels.pool_name(metadata["name"], rollout.name))
        if pool is None or not pool.exists:
            continue
        earlier = made_by_other_job(pool.raw, metadata["uid"])
        if not pool.owned and not earlier and not may_adopt(job):
            yield _not_owned(job, f"{path}.name", f"RolloutPool {pool.name}")
        live, most, least = _live_replicas(pool), rollout.max_replicas, rollout.min_replicas
        if str(rollout.replicas) != _recorded(pool):
            continue  # the job's own number is about to be written
        if most is not None and live > most:
            yield (
                f"{path}.maxReplicas: {most} is below the {live} replicas that RolloutPool "
                f"{pool.name} has now; scale the pool down first, or raise maxReplicas"
            )
        if least is not None and live < least:
            yield (
                f"{path}.minReplicas: {least} is above the {live} replicas that RolloutPool "
                f"{pool.name} has now; scale the pool up first, or lower minReplicas"
            )


def unowned_errors(
    job: Manifest, live: Iterable[Manifest], children: Iterable[Manifest]
) -> Iterator[str]:
    """Objects that exist under the names of the job's children and have another owner, or none, as
    those of a job that was deleted with `--cascade=orphan`.
    """
    existing = {apply_needed.key(child): child for child in live}
    for child in children:
        key = apply_needed.key(child)
        if key not in existing:
            continue
        owners = existing[key]["metadata"].get("ownerReferences") or ()
        what = key.replace("/", " ")
        if not owners and not may_adopt(job):
            yield _not_owned(job, "metadata.name", what)
        elif owners and not any(_is_ours(owner) for owner in owners):
            others = ", ".join(f"{owner.get('kind')} {owner.get('name')}" for owner in owners)
            yield (
                f"metadata.name: {what} exists and is owned by {others}; delete it, or choose "
                "another name"
            )


def _is_ours(owner: Manifest) -> bool:
    """An RLJob or RolloutPool; one of an earlier job is garbage-collected with what it owns."""
    return str(owner.get("apiVersion", "")).startswith(f"{labels.GROUP}/")


def may_adopt(job: Manifest) -> bool:
    """Whether the user lets the job take over objects without an owner."""
    annotations = job["metadata"].get("annotations") or {}
    return annotations.get(labels.ADOPT_CHILDREN) == "true"


def _not_owned(job: Manifest, path: str, what: str) -> str:
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    return (
        f"{path}: {what} exists and is not owned by this RLJob; delete it, choose another name, or "
        f"let the job take over what an earlier one left: kubectl annotate rljob {name} -n "
        f"{namespace} {labels.ADOPT_CHILDREN}=true"
    )


def made_by_other_job(manifest: Manifest, uid: str) -> bool:
    """Whether the object belongs to an earlier job of the same name and is to be
    garbage-collected.
    """
    return any(
        reference.get("kind") == "RLJob" and reference.get("uid") != uid
        for reference in manifest["metadata"].get("ownerReferences") or ()
    )


def _live_replicas(pool: PoolView) -> int:
    return int(pool.raw["spec"].get("replicas", 1))


def _recorded(pool: PoolView) -> str | None:
    annotations = pool.raw["metadata"].get("annotations") or {}
    value = annotations.get(labels.JOB_REPLICAS)
    return None if value is None else str(value)


def _running_config(job: Manifest, live: Iterable[Manifest]) -> Any:
    """The settings (JobConfig) in the live StatefulSet; None if it has no pods."""
    trainer = live_stateful_set(job, live)
    if trainer is None or made_by_other_job(trainer, job["metadata"]["uid"]):
        return None
    if not trainer["spec"].get("replicas"):
        return None
    for container in trainer["spec"]["template"]["spec"]["containers"]:
        for variable in container.get("env") or ():
            if variable["name"] == pod_contract.CONFIG:
                return _settings(variable.get("value", ""))
    return None


def _settings(text: str) -> Any:
    """None for what the operator has not written: the StatefulSet is about to be repaired."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    engine = found.get("trainer_engine") if isinstance(found, dict) else None
    return found if isinstance(engine, dict) and "config" in engine else None


# --- children that the API server refuses -------------------------------------------------------


def refused(refusals: Mapping[str, Refusal], child: Manifest) -> str:
    """Why the API server refused exactly this child; empty if it did not."""
    refusal = refusals.get(apply_needed.key(child))
    return refusal.message if refusal and refusal.digest == apply_needed.digest(child) else ""


def refusal_errors(
    job: str,
    rollouts: Iterable[RolloutSpec],
    pools: Iterable[PoolView],
    *,
    children: Iterable[Manifest],
    refusals: Mapping[str, Refusal],
) -> Iterator[str]:
    """Refusals of `children` with paths in the spec of the job of this name.

    Those of a pool that it does not own are left out.
    """
    places = {f"Deployment/{pool.name}": f"{pool.path}.template" for pool in pools if pool.owned}
    for index, rollout in enumerate(rollouts):
        places[f"RolloutPool/{labels.pool_name(job, rollout.name)}"] = f"spec.rollouts[{index}]"
    places[f"ConfigMap/{labels.trust_name(job)}"] = "metadata.name"
    places[f"StatefulSet/{labels.trainer_name(job)}"] = "spec.trainer.template"
    places[f"Service/{labels.trainer_name(job)}"] = "metadata.name"
    places[f"Deployment/{labels.reference_name(job)}"] = "spec.reference.template"
    places[f"Service/{labels.reference_name(job)}"] = "metadata.name"
    places[f"StatefulSet/{labels.front_name(job)}"] = "spec.front.template"
    places[f"Service/{labels.front_name(job)}"] = "metadata.name"
    for child in children:
        policy = child["kind"] == NETWORK_POLICY
        place = "spec.networkPolicy" if policy else places.get(apply_needed.key(child))
        message = refused(refusals, child)
        if message and place and child["kind"] == "RolloutPool" and _OTHER_JOB in message:
            yield (
                f"{place}.name: RolloutPool {child['metadata']['name']} serves another RLJob; "
                "choose another name"
            )
        elif message == NO_CHILD and place:
            what = apply_needed.key(child).replace("/", " ")
            yield (
                f"metadata.name: {what} exists and is no child of this RLJob; delete it, or choose "
                "another name"
            )
        elif message and place:
            yield explain(child, message, place)


def explain(child: Manifest, message: str, place: str) -> str:
    """The API server's message, beginning with the path of the field in the user's manifest.

    `place` is where `spec.template` of a StatefulSet or Deployment, or `spec` of a RolloutPool or
    NetworkPolicy, comes from.
    """
    text = _PREAMBLE.sub("", " ".join(message.split()))[:_LONGEST]
    whole = child["kind"] in {"RolloutPool", NETWORK_POLICY}
    inner = "spec" if whole else "spec.template"
    text = re.sub(rf"(?<![\w.])\.?{re.escape(inner)}(?=[.\[:\"])", place, text)
    text = _BY_NAME.sub(lambda match: _index(child, *match.groups()), text)
    where = "" if text.startswith(place) else f"{place}: "
    return f"{where}{text}; correct it (the API server refused {apply_needed.key(child)})"


_OTHER_JOB = "spec.jobRef"  # it is immutable
_PREAMBLE = re.compile(r'^(failed to create typed patch object \([^)]*\)|\S+ "[^"]*" is invalid): ')
_BY_NAME = re.compile(r'\b(containers|initContainers)\[name="([^"]*)"\]')


def _index(child: Manifest, kind: str, name: str) -> str:
    """The position of a container that the API server names."""
    template = child["spec"].get("template", child["spec"])
    names = [container.get("name") for container in template["spec"].get(kind) or ()]
    return f"{kind}[{names.index(name)}]" if name in names else f'{kind}[name="{name}"]'
