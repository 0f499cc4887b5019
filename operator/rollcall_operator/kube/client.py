"""The few verbs that the operator uses, on raw dictionaries (typed models take more memory)."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import urlencode

from rollcall_operator.kube.errors import NotFoundError, UnreachableError, error_of_watch
from rollcall_operator.kube.resources import PODS, SERVICE_ACCOUNTS, Resource, resource_of
from rollcall_operator.kube.transport import (
    APPLY_PATCH,
    JSON_WEB_KEYS,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Transport,
    parsed,
)

Object = dict[str, Any]

FIELD_MANAGER = "rollcall-operator"
PAGE = 100  # objects; ten kinds are listed at a time when the operator starts


class KubeClient:
    """Reads and writes single objects; each call is one request (a long list: one a page)."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def get(self, resource: Resource, *, namespace: str | None, name: str) -> Object:
        """One object; raises NotFoundError."""
        path = resource.path(namespace=namespace, name=name)
        return await self.transport.request("GET", path, verb="get", plural=resource.plural)

    async def find(self, resource: Resource, *, namespace: str | None, name: str) -> Object | None:
        """One object, or None when there is none."""
        try:
            return await self.get(resource, namespace=namespace, name=name)
        except NotFoundError:
            return None

    async def list(
        self, resource: Resource, *, namespace: str | None, labels: str = "", fields: str = ""
    ) -> tuple[Object, ...]:
        """All objects that match both selectors. Items get the apiVersion and kind back."""
        query = {}
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        pages = self.pages(resource, namespace=namespace, query=query)
        return tuple([item async for page in pages for item in page["items"]])

    async def pages(
        self, resource: Resource, *, namespace: str | None, query: dict[str, str]
    ) -> AsyncIterator[Object]:
        """A list page by page: `metadata`, and `items`, which get the apiVersion and kind back.

        ExpiredError if it took too long.
        """
        query = {"limit": str(PAGE), **query}
        while True:
            page = await self.transport.request(
                "GET",
                resource.path(namespace=namespace),
                verb="list",
                plural=resource.plural,
                query=query,
            )
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            items = [{**kind, **item} for item in page.get("items") or ()]
            metadata = page.get("metadata") or {}
            yield {"metadata": metadata, "items": items}
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        query: dict[str, str],
        opened: Callable[[], None],
    ) -> AsyncGenerator[Object, None]:
        """The events of one WATCH (`type`, `object`), until the server ends it.

        `opened` is called once the server has agreed. Raises ExpiredError, the transport's other
        errors, and UnreachableError for what is no event.
        """
        lines = self.transport.lines(
            resource.path(namespace=namespace),
            plural=resource.plural,
            query=query,
            opened=opened,
        )
        async with aclosing(lines):
            async for line in lines:
                event = parsed(line, f"watch {resource.plural}")
                found = event.get("object")
                if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
                    raise UnreachableError(f"watch {resource.plural}: an event without an object")
                if event.get("type") == "ERROR":
                    raise error_of_watch(found, f"watch {resource.plural}")
                yield event

    async def probe(self, resource: Resource, *, namespace: str | None) -> Object:
        """Try to list one object, and return the list; raises what a watch would meet
        (NotFoundError, RefusedError).
        """
        path = resource.path(namespace=namespace)
        return await self.transport.request(
            "GET", path, verb="list", plural=resource.plural, query={"limit": "1"}
        )

    async def plurals(self, group: str) -> frozenset[str]:
        """Plural names of the resources of `group` that the server lists, in any version."""
        ask = self.transport.request
        served = await ask("GET", f"/apis/{group}", verb="get", plural="discovery")
        found: set[str] = set()
        for version in served.get("versions") or ():
            path = f"/apis/{version['groupVersion']}"
            page = await ask("GET", path, verb="get", plural="discovery")
            found.update(item["name"] for item in page.get("resources") or ())
        return frozenset(found)

    async def token_keys(self) -> tuple[str, tuple[Object, ...]]:
        """Issuer and public keys (JWKs) of the cluster's service-account tokens.

        Every service account may read them (system:service-account-issuer-discovery).
        """
        ask = self.transport.request
        about = await ask(
            "GET", "/.well-known/openid-configuration", verb="get", plural="token keys"
        )
        found = await ask(
            "GET", "/openid/v1/jwks", verb="get", plural="token keys", accept=JSON_WEB_KEYS
        )
        return str(about.get("issuer") or ""), tuple(found.get("keys") or ())

    async def create_token(self, *, namespace: str, account: str, spec: Object) -> Object:
        """The status of a TokenRequest for a service account: `token`, `expirationTimestamp`."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = await self.transport.request(
            "POST",
            SERVICE_ACCOUNTS.path(namespace=namespace, name=account, subresource="token"),
            verb="create",
            plural="serviceaccounts/token",
            body=body,
        )
        status: Object = made.get("status") or {}
        return status

    async def read_from_pod(
        self, *, namespace: str, name: str, port: int, route: str, most_bytes: int
    ) -> bytes:
        """What a pod's HTTP server answers, through the API server's proxy.

        UnreachableError if the answer is longer than `most_bytes`.
        """
        path = PODS.path(namespace=namespace, name=f"{name}:{port}", subresource="proxy") + route
        return await self.transport.read(
            path, verb="get", plural="pods/proxy", most_bytes=most_bytes
        )

    async def read_log(
        self, *, namespace: str, name: str, query: dict[str, str], most_bytes: int
    ) -> bytes:
        """A pod's log; `query` as of the API (container, tailLines, sinceSeconds).

        UnreachableError if it is longer than `most_bytes`.
        """
        path = PODS.path(namespace=namespace, name=name, subresource="log")
        return await self.transport.read(
            f"{path}?{urlencode(query)}", verb="get", plural="pods/log", most_bytes=most_bytes
        )

    async def create(self, resource: Resource, body: Object) -> Object:
        """Create; raises ConflictError when it exists."""
        return await self.transport.request(
            "POST",
            resource.path(namespace=body["metadata"].get("namespace")),
            verb="create",
            plural=resource.plural,
            query={"fieldManager": FIELD_MANAGER},
            body=body,
        )

    async def apply(self, body: Object, *, force: bool = True, dry_run: bool = False) -> Object:
        """Server-side apply with strict field checks; the operator owns what it sets.

        A `metadata.resourceVersion` in `body` makes it conditional: ConflictError when it moved.
        Without `force`, RefusedError for an object whose fields others have set.
        """
        resource = resource_of(body["kind"])
        metadata = body["metadata"]
        return await self.transport.request(
            "PATCH",
            resource.path(namespace=metadata.get("namespace"), name=metadata["name"]),
            verb="apply",
            plural=resource.plural,
            query={
                "fieldManager": FIELD_MANAGER,
                "force": str(force).lower(),
                "fieldValidation": "Strict",
                **({"dryRun": "All"} if dry_run else {}),
            },
            body=body,
            content_type=APPLY_PATCH,
        )

    async def patch_status(
        self,
        resource: Resource,
        *,
        namespace: str,
        name: str,
        patch: Object,
        resource_version: str,
    ) -> Object:
        """Merge `patch` into the status; raises ConflictError if the object was written since."""
        return await self.transport.request(
            "PATCH",
            resource.path(namespace=namespace, name=name, subresource="status"),
            verb="patch_status",
            plural=resource.plural,
            query={"fieldManager": FIELD_MANAGER},
            body={"metadata": {"resourceVersion": resource_version}, "status": patch},
            content_type=MERGE_PATCH,
        )

    async def set_pod_condition(
        self, *, namespace: str, name: str, uid: str, condition: dict[str, str]
    ) -> Object:
        """Set one condition (readiness gates); ConflictError if the name is another pod by now."""
        return await self.transport.request(
            "PATCH",
            PODS.path(namespace=namespace, name=name, subresource="status"),
            verb="patch_status",
            plural=PODS.plural,
            query={"fieldManager": FIELD_MANAGER},
            body={"metadata": {"uid": uid}, "status": {"conditions": [condition]}},
            content_type=STRATEGIC_PATCH,
        )

    async def replace(self, resource: Resource, body: Object) -> Object:
        """Write a whole object under its resourceVersion; raises ConflictError."""
        metadata = body["metadata"]
        return await self.transport.request(
            "PUT",
            resource.path(namespace=metadata.get("namespace"), name=metadata["name"]),
            verb="update",
            plural=resource.plural,
            query={"fieldManager": FIELD_MANAGER},
            body=body,
        )

    async def merge(
        self, resource: Resource, *, namespace: str | None, name: str, patch: Object
    ) -> Object:
        """A plain merge patch, without a precondition."""
        return await self.transport.request(
            "PATCH",
            resource.path(namespace=namespace, name=name),
            verb="patch",
            plural=resource.plural,
            query={"fieldManager": FIELD_MANAGER},
            body=patch,
            content_type=MERGE_PATCH,
        )

    async def set_pod_annotation(
        self, *, namespace: str, name: str, uid: str, key: str, value: str | None
    ) -> Object:
        """Set one annotation, or remove it; ConflictError if the name is another pod by now."""
        patch = {"metadata": {"uid": uid, "annotations": {key: value}}}
        return await self.merge(PODS, namespace=namespace, name=name, patch=patch)

    async def delete(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        name: str,
        uid: str | None = None,
        version: str = "",
        grace: int | None = None,
    ) -> None:
        """Delete in the background, only this `uid`; an object that is gone already is fine.

        With `version`, a resourceVersion, ConflictError also if it was written since. `grace`:
        seconds instead of the object's own; 0 deletes a pod's object without waiting for its node.
        """
        options: Object = {"propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        conditions = {"uid": uid, "resourceVersion": version}
        if any(conditions.values()):
            options["preconditions"] = {name: value for name, value in conditions.items() if value}
        path = resource.path(namespace=namespace, name=name)
        try:
            await self.transport.request(
                "DELETE", path, verb="delete", plural=resource.plural, body=options
            )
        except NotFoundError:
            return
