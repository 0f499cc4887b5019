"""A stand-in for an API server that holds one job: its objects, and the operator's client."""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollcall_operator.control.job_store import KINDS
from rollcall_operator.kube.errors import ConflictError, NotFoundError, UnreachableError
from rollcall_operator.kube.resources import PODS, RL_JOBS, Resource, resource_of
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.timestamps import to_time
from tests.unit.rollcall_operator.plan.simulator import NAMESPACE, START

if TYPE_CHECKING:
    from tests.unit.rollcall_operator.control.lagging_cluster import LaggingCluster

Object = dict[str, Any]
Event = tuple[int, Object | None, Object | None]
"""The revision, and the object before and after."""


def refusal(kind: type[Any], status: int) -> Any:
    return kind(status=status, reason="", message="", what="write")


class Objects:
    """Objects with revisions, and what happened to each kind in its order."""

    def __init__(self) -> None:
        self.revision = 1
        self.there: dict[tuple[str, str], Object] = {}
        self.history: dict[str, list[Event]] = {resource.plural: [] for resource in KINDS}
        self._uids = 0

    def of(self, *resources: Resource) -> list[Object]:
        """All objects of these kinds, by name."""
        wanted = {resource.plural for resource in resources}
        return [each for (plural, _), each in sorted(self.there.items()) if plural in wanted]

    def find(self, resource: Resource, name: str) -> Object | None:
        return self.there.get((resource.plural, name))

    def put(self, resource: Resource, body: Object) -> Object:
        """Create or replace; the same content again has no effect."""
        name = body["metadata"]["name"]
        before = self.find(resource, name)
        kept = copy.deepcopy(body)
        kept |= {"apiVersion": resource.api_version, "kind": resource.kind}
        if before is None:
            self._uids += 1
            fresh = {"uid": f"uid-{self._uids}", "generation": 1}
            kept["metadata"] = {"creationTimestamp": to_time(START), **kept["metadata"], **fresh}
        elif kept == before:
            return copy.deepcopy(before)
        elif kept.get("spec") != before.get("spec"):
            kept["metadata"]["generation"] = before["metadata"]["generation"] + 1
        self.revision += 1
        kept["metadata"]["resourceVersion"] = str(self.revision)
        self._happened(resource, name, before, kept)
        return copy.deepcopy(kept)

    def drop(self, resource: Resource, name: str) -> None:
        """Delete at once."""
        self.revision += 1
        self._happened(resource, name, self.there[resource.plural, name], None)

    def _happened(
        self, resource: Resource, name: str, before: Object | None, now: Object | None
    ) -> None:
        if now is None:
            del self.there[resource.plural, name]
        else:
            self.there[resource.plural, name] = now
        if resource.plural in self.history:
            self.history[resource.plural].append((self.revision, before, now))


class Client:
    """The operator's client. The next write fails before or after its effect if `fails` says so."""

    def __init__(self, cluster: "LaggingCluster") -> None:
        self._cluster, self._objects = cluster, cluster.objects
        self.fails = ""

    async def find(self, resource: Resource, *, namespace: str, name: str) -> Object | None:
        assert namespace == NAMESPACE
        return copy.deepcopy(self._objects.find(resource, name))

    async def list(
        self, resource: Resource, *, namespace: str, **_selectors: str
    ) -> tuple[Object, ...]:
        """All, as all are the job's."""
        assert namespace == NAMESPACE
        if resource.plural == "events":
            return ()
        return tuple(copy.deepcopy(self._objects.of(resource)))

    async def apply(self, body: Object, *, force: bool, dry_run: bool = False) -> Object:
        assert not dry_run
        del force  # no other client sets fields of the job's objects
        resource = resource_of(body["kind"])
        before = self._objects.find(resource, body["metadata"]["name"])
        wanted = body["metadata"].get("resourceVersion")
        if wanted and (before is None or wanted != before["metadata"]["resourceVersion"]):
            raise refusal(ConflictError, 409)
        if before is None:
            self._cluster.created[apply_needed.key(body)] += 1
        return self._write(lambda: self._objects.put(resource, merged(before or {}, body)))

    async def patch_status(
        self, resource: Resource, *, namespace: str, name: str, patch: Object, resource_version: str
    ) -> Object:
        assert namespace == NAMESPACE
        live = self._must_find(resource, name)
        if resource_version != live["metadata"]["resourceVersion"]:
            raise refusal(ConflictError, 409)
        written = merged(live, {"status": patch})
        if resource == RL_JOBS:
            self._cluster.check_status(live.get("status") or {}, written["status"])
        return self._write(lambda: self._objects.put(resource, written))

    async def set_pod_condition(
        self, *, namespace: str, name: str, uid: str, condition: Object
    ) -> Object:
        assert namespace == NAMESPACE
        pod = self._pod(name, uid)
        same = {"lastTransitionTime": None}  # a second write with another time changes nothing
        return self._write(lambda: self._objects.put(PODS, with_conditions(pod, condition | same)))

    async def set_pod_annotation(
        self, *, namespace: str, name: str, uid: str, key: str, value: str | None
    ) -> Object:
        assert namespace == NAMESPACE
        patch = {"metadata": {"annotations": {key: value}}}
        return self._write(lambda: self._objects.put(PODS, merged(self._pod(name, uid), patch)))

    async def delete(
        self,
        resource: Resource,
        *,
        namespace: str,
        name: str,
        uid: str,
        version: str = "",
        grace: int | None = None,
    ) -> None:
        assert (namespace, grace) == (NAMESPACE, None)
        live = self._objects.find(resource, name)
        if live is None:
            return
        same = version in {"", live["metadata"]["resourceVersion"]}
        if live["metadata"]["uid"] != uid or not same:
            raise refusal(ConflictError, 409)
        self._cluster.check_deletion(uid)
        at = live["metadata"].get("deletionTimestamp") or to_time(self._cluster.now + 30)
        going = merged(live, {"metadata": {"deletionTimestamp": at}})
        self._write(lambda: self._objects.put(resource, going))

    def _write(self, effect: Callable[[], Object]) -> Object:
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise UnreachableError("no connection")
        before = self._objects.revision
        result = effect()
        assert self._objects.revision > before, "it was written already"
        if fails == "after":
            raise UnreachableError("the connection was lost")
        return result

    def _must_find(self, resource: Resource, name: str) -> Object:
        found = self._objects.find(resource, name)
        if found is None:
            raise refusal(NotFoundError, 404)
        return found

    def _pod(self, name: str, uid: str) -> Object:
        pod = self._must_find(PODS, name)
        if pod["metadata"]["uid"] != uid:
            raise refusal(ConflictError, 409)
        return pod


def with_conditions(pod: Object, *conditions: Object) -> Object:
    """The pod; these conditions of its status replace those of their types."""
    status = pod.get("status") or {}
    kept = {each["type"]: each for each in status.get("conditions") or ()}
    kept |= {each["type"]: each for each in conditions}
    return {**pod, "status": {**status, "conditions": list(kept.values())}}


def merged(live: Object, patch: Object) -> Object:
    """A merge patch: dictionaries are merged, null removes, all else is replaced."""
    result = copy.deepcopy(live)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            inner = result.get(name)
            result[name] = merged(inner if isinstance(inner, dict) else {}, value)
        else:
            result[name] = copy.deepcopy(value)
    return result
