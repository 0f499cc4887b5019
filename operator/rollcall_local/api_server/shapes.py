"""What objects of Kubernetes' own kinds look like, as far as controllers and kubelet read them."""

import base64
import binascii
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from rollcall_local.api_server.object_rules import NamedModel, OpenModel
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.template import PodTemplate
from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    SECRETS,
    STATEFUL_SETS,
    Resource,
)
from rollcall_operator.plan.validate import parse

Object = dict[str, Any]


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        return False
    return True


_Base64 = Annotated[str, Rule(message="must be base64; use stringData for text", holds=_is_base64)]


class _ConfigMap(OpenModel):
    data: dict[str, str] | None = None
    binary_data: dict[str, _Base64] | None = None


class _Secret(OpenModel):
    data: dict[str, _Base64] | None = None
    string_data: dict[str, str] | None = None


class _Pod(OpenModel):
    template: PodTemplate


class _Claim(OpenModel):
    metadata: NamedModel
    spec: Object


class _WorkloadSpec(OpenModel):
    replicas: Annotated[int, Field(ge=0)] = 1
    template: PodTemplate
    volume_claim_templates: list[_Claim] | None = None


class _Workload(OpenModel):
    spec: _WorkloadSpec


_MODELS: dict[Resource, type[Model]] = {
    CONFIG_MAPS: _ConfigMap,
    SECRETS: _Secret,
    DEPLOYMENTS: _Workload,
    STATEFUL_SETS: _Workload,
}


def mistakes(resource: Resource, body: Object) -> Iterator[str]:
    """`path: what is wrong` for each field that does not fit; none for kinds that are not read."""
    if resource == PODS:
        _, wrong = parse(_Pod, {"template": {"spec": body.get("spec")}}, "")
        yield from (each.removeprefix(".template.") for each in wrong)
    elif resource in _MODELS:
        _, wrong = parse(_MODELS[resource], body, "")
        yield from (each.removeprefix(".") for each in wrong)
