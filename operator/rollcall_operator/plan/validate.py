"""Errors of a spec that the CRD does not refuse; messages for the Validated condition.

Each message reads `path: what is wrong; what to do`.
"""

import re
import ssl
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import ValidationError

from rollcall_operator.api import labels
from rollcall_operator.api.quantity import is_quantity
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.rolloutpool import RolloutBase
from rollcall_operator.api.rules import Model
from rollcall_operator.api.tls import TlsSpec
from rollcall_operator.plan.children.pod_template import (
    RESERVED_VOLUMES,
    STATE_PATH,
    TOKEN_PATH,
    TRUST_PATH,
    worker_container,
)
from rollcall_operator.plan.children.worker_config import CHECKPOINT_PATH
from rollcall_operator.plan.model import Manifest
from rollcall_operator.plan.rollout_settings import engine_errors
from rollcall_operator.plan.training_settings import (
    algorithm_errors,
    reference_errors,
    trainer_errors,
)

M = TypeVar("M", bound=Model)

_RESERVED_MOUNTS = (TOKEN_PATH, TRUST_PATH, STATE_PATH, CHECKPOINT_PATH)
_ENV_PREFIX = "ROLLCALL_"
_LONGEST = 100
"""Characters of a wrong value that a message repeats."""


def parse(model: type[M], value: Any, path: str) -> tuple[M | None, tuple[str, ...]]:
    """The typed spec, or None and one message for each field that does not fit."""
    try:
        return model.model_validate(value), ()
    except ValidationError as error:
        return None, tuple(_explain(item, path) for item in error.errors(include_url=False))


def _explain(item: Any, path: str) -> str:
    where = path
    for part in item["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}"
    context = item.get("ctx") or {}
    where += context.get("path", "")
    text = item["msg"]
    if item["type"] == "missing":
        text = "is required; add it"
    elif item["type"] == "extra_forbidden":
        text = "unknown field; remove it, or correct its name"
    elif item["type"] in _MUST:
        text = f"must {_MUST[item['type']].format(**context)}, not {_shown(item['input'])}"
    elif item["type"] != "rule":
        text = f"{text[0].lower()}{text[1:]}, not {_shown(item['input'])}"
    return f"{where}: {text}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


_MUST = {
    "greater_than_equal": "be at least {ge}",
    "less_than_equal": "be at most {le}",
    "literal_error": "be {expected}",
    "string_type": "be a string, in quotes",
    "int_type": "be an integer",
    "bool_type": "be true or false",
    "list_type": "be a list",
    "dict_type": "be a map",
    "model_type": "be a map",
    "too_short": "have at least {min_length} entries",
    "too_long": "have at most {max_length} entries",
}
"""pydantic's error types with an instruction, in which its context is filled in."""


def job_errors(spec: RLJobSpec) -> tuple[str, ...]:
    """Everything that is wrong with a parsed job."""
    found = list(template_errors(spec.trainer.template, labels.TRAINER, "spec.trainer.template"))
    found.extend(trainer_errors(spec.trainer))
    found.extend(tls_errors(spec.tls))
    found.extend(algorithm_errors(spec))
    if spec.reference.template is not None:
        path = "spec.reference.template"
        found.extend(template_errors(spec.reference.template, labels.REFERENCE, path))
        found.extend(reference_errors(spec.reference))
    if spec.front is not None:
        found.extend(template_errors(spec.front.template, labels.FRONT, "spec.front.template"))
    if spec.trainer.checkpoint and spec.trainer.checkpoint.volume.empty_dir:
        limit = spec.trainer.checkpoint.volume.empty_dir.size_limit
        if limit is not None and not is_quantity(limit):
            path = "spec.trainer.checkpoint.volume.emptyDir.sizeLimit"
            found.append(_not_a_quantity(path, limit))
    for index, rollout in enumerate(spec.rollouts or ()):
        path = f"spec.rollouts[{index}]"
        if spec.reference.template is not None and rollout.name == labels.REFERENCE:
            found.append(f"{path}.name: {_TAKEN}")
        found.extend(group_errors(spec, rollout, path))
        found.extend(engine_errors(spec, rollout, path))
        found.extend(template_errors(rollout.template, labels.ROLLOUT, f"{path}.template"))
    return tuple(found)


_TAKEN = (
    "the reference's pods (spec.reference.template) have a Deployment of this name; choose another "
    "name"
)


_PYTHONS_OWN_LINE = re.compile(r" \(_ssl\.c:\d+\)$")


def tls_errors(spec: TlsSpec) -> Iterator[str]:
    """Whether the certificates of authorities can be read."""
    if spec.ca_bundle is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=spec.ca_bundle)
        except (ssl.SSLError, ValueError) as error:
            why = _PYTHONS_OWN_LINE.sub("", str(error))
            yield f"spec.tls.caBundle: cannot be read as certificates (PEM): {why}"


def name_errors(spec: RLJobSpec, job: str, pool: str) -> Iterator[str]:
    """Whether a pool for the job has a name that the job itself needs."""
    if spec.reference.template is not None and pool == labels.reference_name(job):
        yield f"metadata.name: {_TAKEN}"


def group_errors(spec: RLJobSpec, rollout: RolloutBase, path: str) -> Iterator[str]:
    """Whether the job has the sync group of a pool; `path` leads to the pool's spec."""
    known = [labels.GROUP_DEFAULT, *(group.name for group in spec.weight_sync.groups)]
    if rollout.sync_group not in known:
        yield (
            f"{path}.syncGroup: the job has no sync group {rollout.sync_group!r}, only "
            f"{', '.join(known)}; correct the name, or add the group to the job's "
            "spec.weightSync.groups"
        )


def template_errors(template: Manifest, role: str, path: str) -> Iterator[str]:
    """Errors of a pod template that keep the operator from building a worker. All else is checked
    by the API server, when the StatefulSet or Deployment is applied.
    """
    spec, containers = template["spec"], template["spec"]["containers"]
    names = [container["name"] for container in containers]
    if worker_container(template, role) is None:
        yield (
            f"{path}.spec.containers: it is not clear which of {', '.join(names)} is the worker; "
            f"name that container {role!r}"
        )
    if spec.get("restartPolicy", "Always") != "Always":
        yield (
            f"{path}.spec.restartPolicy: must be Always, not {spec['restartPolicy']!r}; remove it, "
            "and use spec.failurePolicy to limit restarts of the trainer"
        )
    for key in (template.get("metadata") or {}).get("labels") or {}:
        if str(key).startswith(f"{labels.GROUP}/"):
            yield f"{path}.metadata.labels: {key} is reserved for the operator; remove it"
    for index, volume in enumerate(spec.get("volumes") or ()):
        if isinstance(volume, dict) and volume.get("name") in RESERVED_VOLUMES:
            yield (
                f"{path}.spec.volumes[{index}].name: {volume['name']} is reserved for the "
                "operator; choose another name"
            )
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            if isinstance(container, dict):
                yield from _container_errors(container, f"{path}.spec.{kind}[{index}]")


def _container_errors(container: Manifest, path: str) -> Iterator[str]:
    for index, variable in enumerate(container.get("env") or ()):
        name = variable.get("name") if isinstance(variable, dict) else None
        if isinstance(name, str) and name.startswith(_ENV_PREFIX):
            yield (
                f"{path}.env[{index}].name: variables that begin with {_ENV_PREFIX} are reserved "
                f"for the operator; rename {name}"
            )
        if isinstance(variable, dict) and not isinstance(variable.get("value", ""), str):
            yield (
                f"{path}.env[{index}].value: must be a string; write it in quotes: "
                f'"{variable["value"]}"'
            )
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if isinstance(mount, dict) and mount.get("mountPath") in _RESERVED_MOUNTS:
            yield (
                f"{path}.volumeMounts[{index}].mountPath: {mount['mountPath']} is reserved for the "
                "operator; mount it elsewhere"
            )
    resources = container.get("resources")
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) if isinstance(resources, dict) else None
        for name, amount in (amounts if isinstance(amounts, dict) else {}).items():
            if not is_quantity(str(amount)):
                yield _not_a_quantity(f"{path}.resources.{kind}.{name}", amount)


def _not_a_quantity(path: str, value: Any) -> str:
    return f"{path}: {value!r} is not a quantity; write a number and a suffix, such as 500m or 64Mi"
