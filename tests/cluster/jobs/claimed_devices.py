"""Devices that pods claim (dynamic resource allocation), of Kubernetes' own test driver.

The driver puts a variable into each container that claims a device; there is no device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hack.cluster import go_build, images, kind
from hack.cluster.kubectl import Kubectl, wait_for

CLASS, TEMPLATE = "example", "two-devices"
VARIABLE = "user_seen"
_PROGRAM = "dra-test-driver"
_DRIVER = "test-driver.cdi.k8s.io"
_ADMIN = "/etc/kubernetes/admin.conf"

DEVICE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": CLASS},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{_DRIVER}"'}}]},
}


def claim_template(devices: int) -> dict[str, Any]:
    """Claims of so many devices each."""
    request = {"name": "gpus", "exactly": {"deviceClassName": CLASS, "count": devices}}
    given = {"opaque": {"driver": _DRIVER, "parameters": {"seen": "yes"}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": TEMPLATE},
        "spec": {"spec": {"devices": {"requests": [request], "config": [given]}}},
    }


@contextmanager
def offered(kubectl: Kubectl, nodes: list[str]) -> Iterator[None]:
    """The nodes of the local cluster offer four devices each meanwhile."""
    driver = go_build.programs([_PROGRAM])[_PROGRAM]
    engine = images.engine()
    kubectl.apply(DEVICE_CLASS)
    try:
        admin = engine.docker("exec", kind.NODES[0], "cat", _ADMIN)
        for node in nodes:
            engine.docker("cp", driver, f"{node}:/usr/local/bin/{_PROGRAM}")
            write = f"cat > /run/{_PROGRAM}.conf <<'END'\n{admin}\nEND"
            engine.docker("exec", node, "sh", "-c", write)
            command = f"exec {_PROGRAM} kubelet-plugin --kubeconfig=/run/{_PROGRAM}.conf"
            engine.docker("exec", node, "mkdir", "--parents", f"/var/lib/kubelet/plugins/{_DRIVER}")
            start = f"{command} --node-name={node} > /var/log/{_PROGRAM}.log 2>&1"
            engine.docker("exec", "--detach", node, "sh", "-c", start)
        wait_for(
            "the devices to be offered",
            lambda: len(kubectl.items("resourceslices")) >= len(nodes),
            seconds=60,
        )
        yield
    finally:
        for node in nodes:
            # In brackets, so that the pattern is not found in this shell's own command.
            end = f"pkill --full '[k]ubelet-plugin --kubeconfig'; rm --force /run/{_PROGRAM}.conf"
            engine.docker("exec", node, "sh", "-c", end)
        kubectl.run("delete", "deviceclass", CLASS, "--ignore-not-found")
