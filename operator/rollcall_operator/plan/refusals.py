"""Errors of a spec that only live objects show: refused children, taken names, live replicas."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.children.trainer_ranks import processes_per_pod
from rollcall_operator.plan.job_view import JobView, PoolView
from rollcall_operator.plan.model import NETWORK_POLICY, Manifest
from rollcall_protocol import pod_contract

_LONGEST = 800
_SUSPEND_FIRST = (
    "is immutable while the job is not suspended; set spec.suspend: true first, or create another "
    "RLJob"
)


def live_errors(view: JobView) -> Iterator[str]:
    """Errors that show only in comparison with the live objects."""
    yield from _pool_errors(view)
    if view.spec.suspend or view.outcome is not None:
        return
    yield from _frozen_by_running_pods(view)


def _frozen_by_running_pods(view: JobView) -> Iterator[str]:
    """Changes that pods started from now on would see, and those that run would not."""
    running = _running_config(view)
    if running is None:
        return
    if running["trainer_engine"]["config"] != view.spec.trainer.engine.config:
        yield f"spec.trainer.engine.config: {_SUSPEND_FIRST}"
    before, now = running.get("trainer_processes", 1), processes_per_pod(view.spec.trainer)
    if now != before:
        yield (
            f"spec.trainer.template: now asks for {now} processes in a pod, one for each "
            f"accelerator; their number, {before}, {_SUSPEND_FIRST}"
        )


def _pool_errors(view: JobView) -> Iterator[str]:
    pools = {pool.name: pool for pool in view.pools}
    for index, rollout in enumerate(view.spec.rollouts or ()):
        path = f"spec.rollouts[{index}]"
        pool = pools.get(labels.pool_name(view.name, rollout.name))
        if pool is None or not pool.exists:
            continue
        if not pool.owned and not made_by_other_job(pool.raw, view.uid) and not may_adopt(view):
            yield _not_owned(view, f"{path}.name", f"RolloutPool {pool.name}")
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


def unowned_errors(view: JobView, children: Sequence[Manifest]) -> Iterator[str]:
    """Objects that exist under the names of the job's children and have another owner, or none, as
    those of a job that was deleted with `--cascade=orphan`.
    """
    live = {apply_needed.key(child): child for child in view.observed.children}
    for child in children:
        key = apply_needed.key(child)
        if key not in live:
            continue
        owners = live[key]["metadata"].get("ownerReferences") or ()
        what = key.replace("/", " ")
        if not owners and not may_adopt(view):
            yield _not_owned(view, "metadata.name", what)
        elif owners and not any(_is_ours(owner) for owner in owners):
            others = ", ".join(f"{owner.get('kind')} {owner.get('name')}" for owner in owners)
            yield (
                f"metadata.name: {what} exists and is owned by {others}; delete it, or choose "
                "another name"
            )


def _is_ours(owner: Manifest) -> bool:
    """An RLJob or RolloutPool; one of an earlier job is garbage-collected with what it owns."""
    return str(owner.get("apiVersion", "")).startswith(f"{labels.GROUP}/")


def may_adopt(view: JobView) -> bool:
    """Whether the user lets the job take over objects without an owner."""
    annotations = view.job["metadata"].get("annotations") or {}
    return annotations.get(labels.ADOPT_CHILDREN) == "true"


def _not_owned(view: JobView, path: str, what: str) -> str:
    return (
        f"{path}: {what} exists and is not owned by this RLJob; delete it, choose another name, or "
        f"let the job take over what an earlier one left: kubectl annotate rljob {view.name} -n "
        f"{view.observed.namespace} {labels.ADOPT_CHILDREN}=true"
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


def _running_config(view: JobView) -> Any:
    """The settings (JobConfig) in the live StatefulSet; None if it has no pods."""
    name = f"StatefulSet/{labels.trainer_name(view.name)}"
    for child in view.observed.children:
        if apply_needed.key(child) != name or made_by_other_job(child, view.uid):
            continue
        if not child["spec"].get("replicas"):
            return None
        for container in child["spec"]["template"]["spec"]["containers"]:
            for variable in container.get("env") or ():
                if variable["name"] == pod_contract.CONFIG:
                    return json.loads(variable["value"])
    return None


# --- children that the API server refuses -------------------------------------------------------


def refused(refusals: Any, child: Manifest) -> str:
    """Why the API server refused exactly this child; empty if it did not."""
    refusal = refusals.get(apply_needed.key(child))
    return refusal.message if refusal and refusal.digest == apply_needed.digest(child) else ""


def refusal_errors(view: JobView, children: Sequence[Manifest]) -> tuple[str, ...]:
    """Refusals with paths in the job's spec; those of a pool that it does not own are left out."""
    places = {
        f"Deployment/{pool.name}": f"{pool.path}.template" for pool in view.pools if pool.owned
    }
    for index, rollout in enumerate(view.spec.rollouts or ()):
        name = labels.pool_name(view.name, rollout.name)
        places[f"RolloutPool/{name}"] = f"spec.rollouts[{index}]"
    places[f"ConfigMap/{labels.trust_name(view.name)}"] = "metadata.name"
    places[f"StatefulSet/{labels.trainer_name(view.name)}"] = "spec.trainer.template"
    places[f"Service/{labels.trainer_name(view.name)}"] = "metadata.name"
    places[f"Deployment/{labels.reference_name(view.name)}"] = "spec.reference.template"
    places[f"Service/{labels.reference_name(view.name)}"] = "metadata.name"
    places[f"StatefulSet/{labels.front_name(view.name)}"] = "spec.front.template"
    places[f"Service/{labels.front_name(view.name)}"] = "metadata.name"
    for child in children:
        if child["kind"] == NETWORK_POLICY:
            places[apply_needed.key(child)] = "spec.networkPolicy"
    found = []
    for child in children:
        message, place = refused(view.observed.refusals, child), places.get(apply_needed.key(child))
        if message and place and child["kind"] == "RolloutPool" and _OTHER_JOB in message:
            found.append(
                f"{place}.name: RolloutPool {child['metadata']['name']} serves another RLJob; "
                "choose another name"
            )
        elif message and place:
            found.append(explain(child, message, place))
    return tuple(found)


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
