"""What RBAC lets the operator do: by reviews of the API server, by roles, and by what it asked."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollcall_operator.kube.client import Object
from tests.apiserver.cluster_user import ACCOUNT, SYSTEM, ClusterUser

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, slots=True, order=True)
class Access:
    """A verb on a resource such as `pods/status`; a group is empty for the core."""

    verb: str
    resource: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


async def is_allowed(
    user: ClusterUser,
    access: Access,
    *,
    namespace: str = "",
    name: str = "",
    account: str = ACCOUNT,
) -> bool:
    """Whether the operator's service account may do this; without a namespace: in all of them."""
    resource, _, subresource = access.resource.partition("/")
    attributes = {
        "verb": access.verb,
        "group": access.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    spec = {
        "user": f"system:serviceaccount:{SYSTEM}:{account}",
        "groups": [
            "system:authenticated",
            "system:serviceaccounts",
            f"system:serviceaccounts:{SYSTEM}",
        ],
        "resourceAttributes": attributes,
    }
    answer = await user.client.transport.request(
        "POST",
        _REVIEWS,
        verb="create",
        plural="subjectaccessreviews",
        body={
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        },
    )
    return bool(answer["status"]["allowed"])


def granted(objects: Iterable[Object]) -> frozenset[Access]:
    """All that the operator's roles among a chart's objects grant."""
    own = (
        body
        for body in objects
        if body["kind"] in {"ClusterRole", "Role"}
        and not body["metadata"]["name"].endswith(("-view", "-edit"))
    )
    return frozenset(
        Access(verb, resource, group)
        for body in own
        for rule in body["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def used(events: Iterable[Mapping[str, Any]]) -> frozenset[Access]:
    """What the requests of an audit log needed, discovery and public keys apart."""
    return frozenset(access for event in events for access in _needed(event))


def _needed(event: Mapping[str, Any]) -> Iterator[Access]:
    about = event.get("objectRef")
    if not about or "resource" not in about:
        return
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    group = about.get("apiGroup", "")
    yield Access(event["verb"], resource, group)
    if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:
        yield Access("create", resource, group)  # an apply of what was not there
