"""Objects with their versions: what etcd and the API server's registry are to a cluster.

All methods are synchronous: one event loop reads and writes, so that no write is lost between a
read and a write. An object that was returned is never changed: a write puts another in its place.
"""

import copy
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollcall_local.api_server import object_rules, ownership, patches, selectors
from rollcall_local.api_server.change_log import ChangeLog, ServedWatch, Wanted
from rollcall_local.api_server.errors import (
    AlreadyExistsError,
    ApiStatusError,
    ChangedObjectError,
    InvalidError,
    MalformedRequestError,
    MissingObjectError,
    StorageError,
)
from rollcall_local.api_server.kinds import KINDS
from rollcall_operator.kube.resources import PODS, Resource
from rollcall_operator.plan.timestamps import to_time

Object = dict[str, Any]
Admit = Callable[[Resource, Object, Object | None], Object]
"""Takes what is to be written and what is there; returns it with defaults. InvalidError."""

_POD_GRACE = 30
_OWN = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
"""Of the metadata: the server's own, whatever a writer says."""


class Key(NamedTuple):
    """Where an object is; the namespace is empty for kinds without one."""

    plural: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An object, and what each manager has set of it (`ownership`)."""

    object: Object
    applied: Mapping[str, Object] = field(default_factory=dict)


class ObjectStore:
    """All objects.

    `changed` is called with each write, None for an object that is gone, before it takes effect.
    An OSError of it refuses the write: StorageError, and nothing has changed.
    """

    def __init__(
        self,
        *,
        admit: Admit = lambda _kind, body, _before: body,
        changed: Callable[[Key, Entry | None], None] = lambda _key, _entry: None,
        entries: dict[Key, Entry] | None = None,
    ) -> None:
        """`entries` are those of an earlier server."""
        self._admit, self._changed = admit, changed
        self._entries = dict(entries or {})
        newest = (int(e.object["metadata"]["resourceVersion"]) for e in self._entries.values())
        self._log = ChangeLog(max(newest, default=0) + 1)

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        return self._log.version

    # --- reading -------------------------------------------------------------------------------

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """One object; MissingObjectError."""
        return self._entry(_key(resource, namespace, name)).object

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """One object, or None."""
        entry = self._entries.get(_key(resource, namespace, name))
        return entry.object if entry is not None else None

    def listed(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> list[Object]:
        """All of a kind, in all namespaces if none is named, sorted by namespace and name.

        MalformedRequestError for a selector that cannot be read.
        """
        wanted = _wanted(resource, namespace, labels, fields)
        found = [key for key, each in self._entries.items() if wanted(key.plural, each.object)]
        return [self._entries[key].object for key in sorted(found)]

    def objects(self) -> list[Object]:
        """All objects of all kinds."""
        return [entry.object for entry in self._entries.values()]

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        since: int,
        labels: str = "",
        fields: str = "",
    ) -> ServedWatch:
        """Of what `listed` lists, after the resourceVersion `since`; MalformedRequestError."""
        return ServedWatch(self._log, _wanted(resource, namespace, labels, fields), since)

    # --- writing -------------------------------------------------------------------------------

    def create(self, resource: Resource, body: Object, *, dry_run: bool = False) -> Object:
        """A new object; AlreadyExistsError, InvalidError."""
        meta = dict(body.get("metadata") or {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{uuid.uuid4().hex[:5]}"
        key = _key(resource, meta.get("namespace") or "", str(meta.get("name") or ""))
        if key in self._entries:
            raise AlreadyExistsError(f'{resource.plural} "{key.name}" already exists')
        if KINDS[resource.plural].most and not dry_run:
            self._make_room(resource)
        body = {**body, "metadata": meta}
        return self._create(resource, key, body, manager=ownership.UPDATES, dry_run=dry_run)

    def replace(self, resource: Resource, body: Object, *, dry_run: bool = False) -> Object:
        """Write a whole object, all but its status.

        MissingObjectError, ChangedObjectError, InvalidError.
        """
        meta = body["metadata"]
        key = _key(resource, meta.get("namespace") or "", meta["name"])
        live = self._entry(key).object
        _check_preconditions(key, live, meta, for_another=ChangedObjectError)
        return self._update(resource, key, body, dry_run=dry_run)

    def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Object,
        *,
        strategic: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """Patch all but the status; MissingObjectError, ChangedObjectError, InvalidError."""
        key = _key(resource, namespace, name)
        live = self._entry(key).object
        _check_preconditions(key, live, patch.get("metadata") or {})
        how = patches.strategic_merge if strategic else patches.merge
        return self._update(resource, key, how(live, patch), dry_run=dry_run)

    def set_status(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Object,
        *,
        strategic: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """Merge `patch` into the status alone.

        MissingObjectError, ChangedObjectError, InvalidError.
        """
        key = _key(resource, namespace, name)
        entry = self._entry(key)
        live = entry.object
        if not KINDS[resource.plural].has_status:
            raise MissingObjectError(f"{resource.plural} have no status")
        _check_preconditions(key, live, patch.get("metadata") or {})
        how = patches.strategic_merge if strategic else patches.merge
        status = how(live.get("status", {}), patch.get("status", {})) or {}
        object_rules.check_status(resource.kind, name, status)
        written = {**live, "status": status}
        if dry_run or written == live:
            return written
        return self._put(key, written, entry.applied)

    def apply(
        self, resource: Resource, body: Object, *, manager: str, force: bool, dry_run: bool = False
    ) -> Object:
        """Server-side apply.

        ChangedObjectError, also for fields that others have set; InvalidError.
        """
        meta = body["metadata"]
        key = _key(resource, meta.get("namespace") or "", meta["name"])
        body = {name: value for name, value in body.items() if name != "status"}
        body["metadata"] = {n: value for n, value in meta.items() if n != "resourceVersion"}
        entry = self._entries.get(key)
        if entry is None:
            if meta.get("uid"):
                raise InvalidError(f'{resource.plural} "{key.name}" is not there any more')
            return self._create(resource, key, body, manager=manager, dry_run=dry_run)
        live = entry.object
        _check_preconditions(key, live, meta)
        whole = ownership.apply(live, body, entry.applied, manager=manager, force=force)
        written, body = copy.deepcopy((self._completed(resource, key, live, whole), body))
        applied = ownership.after_apply(entry.applied, body, live, written, manager)
        return self._write(key, entry, written, applied, dry_run=dry_run)

    def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        version: str = "",
        grace: int | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Delete; MissingObjectError, ChangedObjectError if it is another or was written since.

        A pod that has a node, and an object with finalizers, is marked, and goes later.
        """
        key = _key(resource, namespace, name)
        entry = self._entry(key)
        live, meta = entry.object, entry.object["metadata"]
        wanted = {"uid": uid, "resourceVersion": version}
        _check_preconditions(key, live, wanted, for_another=ChangedObjectError)
        if dry_run:
            return live
        seconds = _grace_of(resource, live, grace)
        if not seconds and not meta.get("finalizers"):
            self._commit(key, None)
            return live
        is_marked = "deletionTimestamp" in meta
        if is_marked and meta.get("deletionGracePeriodSeconds", 0) <= seconds:
            return live  # it goes by then already
        marked = {
            **meta,
            "deletionTimestamp": to_time(time.time() + seconds),
            "deletionGracePeriodSeconds": seconds,
            "generation": meta["generation"] + (not is_marked),
        }
        return self._put(key, {**live, "metadata": marked}, entry.applied)

    def _make_room(self, resource: Resource) -> None:
        found = self.listed(resource)
        if len(found) >= KINDS[resource.plural].most:
            oldest = min(found, key=lambda each: int(each["metadata"]["resourceVersion"]))
            meta = oldest["metadata"]
            self._commit(_key(resource, meta["namespace"], meta["name"]), None)

    def _create(
        self, resource: Resource, key: Key, body: Object, *, manager: str, dry_run: bool
    ) -> Object:
        made = {**body, "apiVersion": resource.api_version, "kind": resource.kind}
        made.pop("status", None)
        made["metadata"] = {
            **_placed(key, body["metadata"]),
            "uid": str(uuid.uuid4()),
            "creationTimestamp": to_time(time.time()),
            "generation": 1,
        }
        object_rules.check_metadata(resource.kind, made["metadata"])
        made, body = copy.deepcopy((self._admit(resource, made, None), body))
        if resource == PODS:
            made["status"] = {"phase": "Pending"}
        return made if dry_run else self._put(key, made, {manager: body})

    def _update(self, resource: Resource, key: Key, body: Object, *, dry_run: bool) -> Object:
        entry = self._entry(key)
        written = copy.deepcopy(self._completed(resource, key, entry.object, body))
        applied = ownership.after_update(entry.applied, entry.object, written)
        return self._write(key, entry, written, applied, dry_run=dry_run)

    def _completed(self, resource: Resource, key: Key, live: Object, body: Object) -> Object:
        """A body with what is the server's own, as it would take the place of `live`."""
        written = {**body, "apiVersion": resource.api_version, "kind": resource.kind}
        written.pop("status", None)
        if "status" in live:
            written["status"] = live["status"]
        own = (*_OWN, "resourceVersion")
        kept = {name: live["metadata"][name] for name in own if name in live["metadata"]}
        written["metadata"] = {**_placed(key, body.get("metadata") or {}), **kept}
        object_rules.check_metadata(resource.kind, written["metadata"])
        object_rules.check_finalizers(resource.kind, live["metadata"], written["metadata"])
        written = self._admit(resource, written, live)
        if written.get("spec") != live.get("spec"):
            written["metadata"]["generation"] += 1
        return written

    def _write(
        self,
        key: Key,
        entry: Entry,
        written: Object,
        applied: Mapping[str, Object],
        *,
        dry_run: bool,
    ) -> Object:
        if dry_run or (written == entry.object and applied == entry.applied):
            return written
        meta = written["metadata"]
        is_marked = "deletionTimestamp" in meta and not meta.get("deletionGracePeriodSeconds")
        if is_marked and not meta.get("finalizers"):
            self._commit(key, None)
            return written
        return self._put(key, written, applied)

    def _put(self, key: Key, body: Object, applied: Mapping[str, Object]) -> Object:
        version = {"resourceVersion": str(self._log.version + 1)}
        whole = {**body, "metadata": {**body["metadata"], **version}}
        self._commit(key, Entry(whole, applied))
        return whole

    def _commit(self, key: Key, entry: Entry | None) -> None:
        try:
            self._changed(key, entry)
        except OSError as error:
            raise StorageError(
                f'{key.plural} "{key.name}" cannot be written: {error.strerror or error}'
            ) from error
        before = self._entries.get(key)
        if entry is None:
            del self._entries[key]
        else:
            self._entries[key] = entry
        self._log.add(
            key.plural, before.object if before else None, entry.object if entry else None
        )

    def _entry(self, key: Key) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            raise MissingObjectError(f'{key.plural} "{key.name}" not found')
        return entry


def _wanted(resource: Resource, namespace: str, labels: str, fields: str) -> Wanted:
    has_labels, has_fields = selectors.by_labels(labels), selectors.by_fields(fields)
    return lambda plural, found: (
        plural == resource.plural
        and namespace in {"", found["metadata"].get("namespace")}
        and has_labels(found)
        and has_fields(found)
    )


def _key(resource: Resource, namespace: str, name: str) -> Key:
    if not name:
        raise MalformedRequestError(f"{resource.plural}: metadata.name is required")
    if resource.namespaced and not namespace:
        raise MalformedRequestError(f"{resource.plural} {name}: a namespace is required")
    return Key(resource.plural, namespace if resource.namespaced else "", name)


def _placed(key: Key, given: Object) -> Object:
    """What a writer may say in the metadata, at the place of the key."""
    own = {*_OWN, "resourceVersion", "namespace"}
    place = {"namespace": key.namespace} if key.namespace else {}
    return {**{k: v for k, v in given.items() if k not in own}, **place, "name": key.name}


def _check_preconditions(
    key: Key, live: Object, wanted: Object, *, for_another: type[ApiStatusError] = InvalidError
) -> None:
    """A patch of another object is invalid in Kubernetes, any other write of it a conflict."""
    meta = live["metadata"]
    uid, version = wanted.get("uid"), wanted.get("resourceVersion")
    if uid and uid != meta["uid"]:
        raise for_another(f'{key.plural} "{key.name}": its uid is {meta["uid"]}, not {uid}')
    if version and version != meta["resourceVersion"]:
        raise ChangedObjectError(f'{key.plural} "{key.name}" was written since it was read')


def _grace_of(resource: Resource, live: Object, grace: int | None) -> int:
    """Seconds that a pod has to end; 0 for what goes at once."""
    spec, status = live.get("spec") or {}, live.get("status") or {}
    if resource != PODS or not spec.get("nodeName"):
        return 0
    if status.get("phase") in {"Failed", "Succeeded"}:
        return 0
    return int(spec.get("terminationGracePeriodSeconds", _POD_GRACE)) if grace is None else grace
