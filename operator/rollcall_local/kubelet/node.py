"""What all pods of this machine share."""

import json
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from rollcall_local.api_server.errors import StorageError
from rollcall_local.api_server.kinds import CLAIMS
from rollcall_local.api_server.service_tokens import ISSUER, ServiceTokens
from rollcall_local.api_server.store import ObjectStore
from rollcall_local.kubelet.addresses import PodAddresses
from rollcall_local.kubelet.machine import Machine
from rollcall_local.kubelet.processes import ContainerRuntimes
from rollcall_local.kubelet.volume_content import VolumeSources, decoded
from rollcall_operator.kube.resources import CONFIG_MAPS, EVENTS, PODS, SECRETS, SERVICE_ACCOUNTS
from rollcall_operator.plan.timestamps import to_micro_time

log = logging.getLogger(__name__)

Object = dict[str, Any]

NAME = "this-machine"
_RESOURCES = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}


@dataclass(slots=True)
class Node:
    """What pods are run with.

    Attributes:
        folder: where pods, claims and logs are.
        images: environments (their Python) by image name; any other image is `python`.
    """

    store: ObjectStore
    tokens: ServiceTokens
    machine: Machine
    addresses: PodAddresses
    runtimes: ContainerRuntimes
    session: aiohttp.ClientSession
    folder: Path
    python: Path
    images: Mapping[str, Path] = field(default_factory=dict)

    @property
    def hosts_file(self) -> Path:
        """The addresses of pods by their DNS names."""
        return self.folder / "hosts.json"

    @property
    def claims(self) -> Path:
        """What PersistentVolumeClaims hold, by namespace and name."""
        return self.folder / "claims"

    def python_of(self, container: Object) -> Path:
        """The environment that stands for a container's image."""
        return self.images.get(container.get("image", ""), self.python)

    def read(self, namespace: str, kind: str, name: str) -> dict[str, bytes]:
        """The content of a ConfigMap or Secret; MissingObjectError."""
        return decoded(self.store.get(_RESOURCES[kind], namespace, name))

    def sources(self, pod: Object, fields: Mapping[str, str]) -> VolumeSources:
        """Where the volumes of a pod come from."""
        namespace = pod["metadata"]["namespace"]
        return VolumeSources(
            read=lambda kind, name: self.read(namespace, kind, name),
            token=lambda source: self._token(pod, source),
            has_claim=lambda name: self.store.find(CLAIMS, namespace, name) is not None,
            claims=self.claims / namespace,
            fields=fields,
        )

    def _token(self, pod: Object, source: Object) -> str:
        metadata = pod["metadata"]
        name = pod["spec"].get("serviceAccountName", "default")
        account = self.store.get(SERVICE_ACCOUNTS, metadata["namespace"], name)
        bound = {"kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        issued = self.tokens.issue(
            namespace=metadata["namespace"],
            account=name,
            account_uid=account["metadata"]["uid"],
            spec={
                "audiences": [source.get("audience", ISSUER)],
                "expirationSeconds": source.get("expirationSeconds", 3600),
                "boundObjectRef": bound,
            },
        )
        return str(issued["token"])

    def write_hosts(self) -> None:
        """Have processes find the pods that have a hostname, a subdomain and an address."""
        given = self.addresses.names()
        names = {}
        for pod in self.store.listed(PODS):
            metadata, spec = pod["metadata"], pod["spec"]
            host, domain = spec.get("hostname"), spec.get("subdomain")
            address = given.get((metadata["namespace"], metadata["name"]))
            if host and domain and address:
                names[f"{host}.{domain}.{metadata['namespace']}.svc"] = address
        text = json.dumps(names)
        if self.hosts_file.exists() and self.hosts_file.read_text() == text:
            return
        beside = self.hosts_file.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self.hosts_file)

    def record(self, pod: Object, *, reason: str, note: str, kind: str = "Warning") -> None:
        """An event about a pod; one that says the same as its last one is that one again.

        One that the disk does not take is logged.
        """
        try:
            self._record(pod, reason, note, kind)
        except StorageError as error:
            name = pod["metadata"]["name"]
            log.warning("Event %s of pod %s: %s; it says: %s", reason, name, error, note)

    def _record(self, pod: Object, reason: str, note: str, kind: str) -> None:
        metadata = pod["metadata"]
        now = to_micro_time(time.time())
        about = f"regarding.uid={metadata['uid']}"
        for event in self.store.listed(EVENTS, metadata["namespace"], fields=about):
            if (event["reason"], event["note"]) == (reason, note):
                count = (event.get("series") or {}).get("count", 1) + 1
                series = {"series": {"count": count, "lastObservedTime": now}}
                name = event["metadata"]["name"]
                self.store.merge(EVENTS, metadata["namespace"], name, series)
                return
        body = {
            "metadata": {
                "name": f"{metadata['name']}.{secrets.token_hex(8)}",
                "namespace": metadata["namespace"],
            },
            "eventTime": now,
            "reportingController": "rollcall.dev/local",
            "reportingInstance": NAME,
            "action": "Run",
            "reason": reason,
            "type": kind,
            "note": note,
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
        }
        self.store.create(EVENTS, body)


def fields_of(pod: Object, address: str) -> dict[str, str]:
    """What the downward API can name of a pod."""
    metadata, spec = pod["metadata"], pod["spec"]
    found = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": NAME,
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": "127.0.0.1",
    }
    for group in ("labels", "annotations"):
        for key, value in (metadata.get(group) or {}).items():
            found[f"metadata.{group}['{key}']"] = value
    return found
