"""The jobs of a measurement, and the objects that each of them gets."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import yaml

from rollcall_operator import plan_command
from rollcall_operator.api import labels
from rollcall_operator.kube.resources import SECRETS
from rollcall_operator.plan.children.certificates import server_certificates
from tests.apiserver.cluster_user import example

if TYPE_CHECKING:
    from rollcall_operator.kube.client import Object

NAMESPACE = "jobs"


def job(number: int, *, rollouts: int) -> Object:
    """An RLJob of one trainer and so many rollouts."""
    made = example(f"job-{number:05}", replicas=rollouts)
    made["metadata"]["namespace"] = NAMESPACE
    return made


def objects_of(rljob: Object) -> list[Object]:
    """What the operator makes of a job, without owners: all that a client may create by itself."""
    text = plan_command.children(yaml.safe_dump(rljob), namespace=NAMESPACE)
    made = [body for body in yaml.safe_load_all(text) if body]
    certificates = [
        {
            "apiVersion": SECRETS.api_version,
            "kind": SECRETS.kind,
            "type": "kubernetes.io/tls",
            "metadata": {"name": each.secret, "namespace": NAMESPACE},
            "data": {"tls.crt": _filler(900), "tls.key": _filler(240)},
        }
        for each in server_certificates(rljob)
    ]
    trust = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": labels.trust_name(rljob["metadata"]["name"]), "namespace": NAMESPACE},
        "data": {"trust.json": "x" * 1500},
    }
    for body in made:
        body["metadata"].pop("ownerReferences", None)
        body["metadata"].pop("resourceVersion", None)
    return [*certificates, trust, *made]


def _filler(size: int) -> Any:
    return base64.b64encode(b"x" * size).decode()
