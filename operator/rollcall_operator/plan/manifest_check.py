"""What is wrong with an RLJob or a RolloutPool as a user wrote it, beyond one object at a time."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import JOB_RULES, RLJobSpec
from rollcall_operator.api.rolloutpool import POOL_RULES, RolloutPoolSpec
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.plan.model import Manifest
from rollcall_operator.plan.rollout_settings import engine_errors
from rollcall_operator.plan.validate import (
    group_errors,
    job_errors,
    name_errors,
    parse,
    template_errors,
)

_KINDS: dict[str, tuple[type[Model], tuple[Rule, ...]]] = {
    "RLJob": (RLJobSpec, JOB_RULES),
    "RolloutPool": (RolloutPoolSpec, POOL_RULES),
}
KINDS = tuple(_KINDS)


@dataclass(frozen=True, slots=True)
class CheckedManifest:
    """An object with the API server's defaults in its spec, or as it was if that cannot be read.

    `errors` have a line for each mistake, `field: what is wrong; what to do`. The metadata has a
    namespace.
    """

    body: Manifest
    spec: Model | None
    errors: tuple[str, ...]


def check_manifest(body: Mapping[str, Any]) -> CheckedManifest:
    """Check an object of one of KINDS that has a name, as API server and operator do."""
    model, rules = _KINDS[body["kind"]]
    name = body["metadata"]["name"]
    errors = [r.message for r in rules if r.holds is not None and not r.holds(name)]
    if "spec" not in body:
        return CheckedManifest(dict(body), None, (*errors, "spec: is required; add it"))
    try:
        json.dumps(body["spec"])
    except TypeError as error:
        wrong = f"spec: {error}; write dates and the like in quotes"
        return CheckedManifest(dict(body), None, (*errors, wrong))
    spec, mistakes = parse(model, body["spec"], "spec")
    errors += mistakes
    if spec is None:
        return CheckedManifest(dict(body), None, tuple(errors))
    if isinstance(spec, RLJobSpec):
        errors += job_errors(spec)
    elif isinstance(spec, RolloutPoolSpec):
        errors += template_errors(spec.template, labels.ROLLOUT, "spec.template")
    whole = {**body, "spec": spec.model_dump(by_alias=True, exclude_none=True)}
    return CheckedManifest(whole, spec, tuple(errors))


def pool_errors(pool: CheckedManifest, others: Iterable[CheckedManifest]) -> Iterator[str]:
    """What does not fit between a pool and its job, which must be one of `others`.

    Of an RLJob, and of what cannot be read, there is nothing to say.
    """
    if not isinstance(pool.spec, RolloutPoolSpec):
        return
    namespace, name = pool.body["metadata"]["namespace"], pool.spec.job_ref.name
    job = next((o for o in others if _is_job(o, namespace, name)), None)
    if job is None:
        yield f"spec.jobRef.name: no RLJob {name!r} in these manifests; give both together"
    elif isinstance(job.spec, RLJobSpec):
        yield from name_errors(job.spec, name, pool.body["metadata"]["name"])
        yield from group_errors(job.spec, pool.spec, "spec")
        yield from engine_errors(job.spec, pool.spec, "spec")


def _is_job(checked: CheckedManifest, namespace: str, name: str) -> bool:
    metadata = checked.body["metadata"]
    is_job = checked.body["kind"] == "RLJob"
    return is_job and (metadata["namespace"], metadata["name"]) == (namespace, name)
