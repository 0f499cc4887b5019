"""Keeps a node's firewall rules as the NetworkPolicies say: the loop around `firewall_rules`.

Runs in a pod on the node's network, with the node's root at HOST, whose iptables it uses. Watches
pods, namespaces and policies; while the API server is away the rules stay as they are. Environment:
NODE_NAME, and what Kubernetes gives every pod.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from hack.cluster.network_policies.firewall_rules import MAIN, PREFIX, TABLE, restore_text
from hack.cluster.network_policies.selected_pods import read_state

log = logging.getLogger(__name__)

HOST = "/host"
APPLIED = Path("/tmp/applied")
"""There once the first rules are."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_WATCHED = {
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
}
_WATCH_S = 300
_SILENCE_S = _WATCH_S + 30
_RETRY_S = 0.5
_GATHER_S = 0.02  # what changes together is applied together
_AGAIN_S = 20.0  # the rules are written again, in case someone has removed them
_IPTABLES_S = 30


class WatchedKind(threading.Thread):
    """All objects of one kind, followed by a list and a watch; sets `changed` when they change."""

    def __init__(self, path: str, changed: threading.Event) -> None:
        super().__init__(name=path, daemon=True)
        self._path, self._changed = path, changed
        self._lock = threading.Lock()
        self._objects: dict[str, dict[str, Any]] | None = None

    def objects(self) -> list[dict[str, Any]] | None:
        """What there is now; None before the first list."""
        with self._lock:
            return None if self._objects is None else list(self._objects.values())

    def run(self) -> None:
        """Follow the kind until the process ends."""
        while True:
            try:
                self._follow(self._list())
            except (OSError, ValueError) as error:  # URLError is an OSError
                log.warning("%s: %s", self._path, error)
                time.sleep(_RETRY_S)

    def _list(self) -> str:
        with _request(self._path) as answer:
            listed = json.load(answer)
        with self._lock:
            self._objects = {_key(item): item for item in listed["items"]}
        self._changed.set()
        return str(listed["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> None:
        """Apply events until the server ends the watch; ValueError when a list is due."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(_WATCH_S)}
        with _request(f"{self._path}?{urllib.parse.urlencode(query)}") as answer:
            for line in answer:
                event = json.loads(line)
                if event["type"] not in {"ADDED", "MODIFIED", "DELETED"}:
                    raise ValueError(f"the watch ended: {line[:200]!r}")
                self._keep(event["object"], gone=event["type"] == "DELETED")

    def _keep(self, item: dict[str, Any], *, gone: bool) -> None:
        with self._lock:
            known = self._objects or {}
            if gone:
                known.pop(_key(item), None)
            else:
                known[_key(item)] = item
            self._objects = known
        self._changed.set()


def _key(item: dict[str, Any]) -> str:
    metadata = item["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def _request(path: str) -> Any:
    """An answer of the API server, as this pod's service account."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    token = (_ACCOUNT / "token").read_text()
    request = urllib.request.Request(
        f"https://{host}:{port}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    return urllib.request.urlopen(request, timeout=_SILENCE_S, context=context)  # noqa: S310


def apply(text: str) -> None:
    """Write the rules, and have forwarded packets pass them first; CalledProcessError."""
    _iptables("iptables-restore", "--noflush", "--wait", text=text)
    jump = ("FORWARD", "-j", MAIN)
    if _iptables("iptables", "--wait", "-t", TABLE, "-C", *jump, check=False).returncode:
        _iptables("iptables", "--wait", "-t", TABLE, "-I", *jump)


def present_chains() -> list[str]:
    """Our chains that the node has; CalledProcessError."""
    saved = _iptables("iptables-save", "-t", TABLE).stdout
    names = (line[1:].split(" ", 1)[0] for line in saved.splitlines() if line.startswith(":"))
    return [name for name in names if name.startswith(PREFIX)]


def _iptables(
    program: str, *arguments: str, text: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/usr/sbin/chroot", HOST, f"/usr/sbin/{program}", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=check,
        timeout=_IPTABLES_S,
    )


def run(node: str) -> None:
    """Apply every change within moments, until the process is ended."""
    changed = threading.Event()
    kinds = {name: WatchedKind(path, changed) for name, path in _WATCHED.items()}
    for kind in kinds.values():
        kind.start()
    applied, when = "", 0.0
    while True:
        changed.wait(_AGAIN_S)
        time.sleep(_GATHER_S)
        changed.clear()
        objects = {name: kind.objects() for name, kind in kinds.items()}
        if any(found is None for found in objects.values()):
            continue
        state = read_state(**{name: found or [] for name, found in objects.items()})
        wanted = restore_text(state, node=node)
        if wanted == applied and time.monotonic() - when < _AGAIN_S:
            continue
        try:
            apply(restore_text(state, node=node, present=present_chains()))
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            log.warning("The rules were not written: %s %s", error, error.stderr)
            applied = ""
            changed.set()
            time.sleep(_RETRY_S)
            continue
        APPLIED.touch()
        if wanted != applied:
            log.info("Applied %d rules", wanted.count("\n-A "))
        applied, when = wanted, time.monotonic()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(message)s")
    run(os.environ["NODE_NAME"])
