"""The kind cluster: three nodes, made once, started again after an accident, deleted on request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hack.cluster import cache, go_build, machine, progress
from hack.cluster.docker_engine import NETWORK, Engine
from hack.cluster.errors import ClusterError, CommandError
from hack.cluster.progress import Step, say
from hack.cluster.subprocesses import run, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "rollcall"
WORKERS = (f"{NAME}-worker", f"{NAME}-worker2")  # as kind names them
NODES = (f"{NAME}-control-plane", *WORKERS)
CREATE_TIMEOUT_S = 600.0
CREATE = Step(f"creating the cluster of {len(NODES)} nodes", 40)
VOLUMES_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 180.0


def kubeconfig() -> Path:
    """Where the cluster's kubeconfig lies, whether or not there is a cluster."""
    return cache.root() / "cluster" / "kubeconfig"


def configuration(*, sys_resource: bool, cgroup_v2: bool) -> dict[str, object]:
    """Kind's configuration.

    Args:
        sys_resource: whether processes may lower their out-of-memory score; containerd must not
            try where they may not.
        cgroup_v2: whether the machine has control groups of version 2; the kubelet refuses
            version 1 by default.
    """
    config: dict[str, object] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": NAME,
        "nodes": [{"role": "control-plane"}, *({"role": "worker"} for _ in WORKERS)],
    }
    if not sys_resource:
        config["containerdConfigPatches"] = [
            '[plugins."io.containerd.grpc.v1.cri"]\n  restrict_oom_score_adj = true\n'
        ]
    if not cgroup_v2:
        patch = {"kind": "KubeletConfiguration", "failCgroupV1": False}
        config["kubeadmConfigPatches"] = [json.dumps(patch)]
    return config


def up(engine: Engine, *, choose_image: Callable[[], str | None]) -> None:
    """Makes the cluster run and waits until its nodes are ready; quick if it does already.

    Args:
        engine: where its nodes run.
        choose_image: gives the node image, or none for kind's own; asked only if nodes are made.
    """
    states = _states(engine)
    if states and healthy(engine):
        say("the cluster runs already")
        return
    # The kubeconfig is written last: without it the cluster was never complete.
    complete = kubeconfig().exists() and set(states) == set(NODES)
    if complete and _start_again(engine, states):
        return
    if states:
        say("deleting what is left of an earlier cluster")
        _delete(engine)
    if engine.own:  # a node whose container went another way has left its volume, some 12 GB
        engine.docker("volume", "prune", "--force", timeout_s=VOLUMES_TIMEOUT_S)
    image = choose_image()
    log = cache.log("kind-create")
    with progress.step(CREATE, log=log):
        _create(engine, image=image, log=log)


def _create(engine: Engine, *, image: str | None, log: Path) -> None:
    config = configuration(
        sys_resource=machine.has_sys_resource(), cgroup_v2=machine.has_cgroup_v2()
    )
    target = kubeconfig()
    with cache.fresh(target) as made:
        words: list[str | Path] = [
            go_build.program("kind"),
            "create",
            "cluster",
            "--config",
            "-",
            "--kubeconfig",
            made,
            "--wait",
            f"{READY_TIMEOUT_S:.0f}s",
            "--retain",
        ]
        if image:
            words += ["--image", image]
        # A JSON text is YAML too.
        run(
            words,
            timeout_s=CREATE_TIMEOUT_S,
            env=engine.env,
            stdin=json.dumps(config),
            log=log,
        )
    _wait_ready(engine)


def down(engine: Engine) -> None:
    """Deletes the nodes and, on an engine of our own, their network."""
    if _states(engine):
        _delete(engine)
    if engine.own and NETWORK in engine.docker("network", "ls", "--format", "{{.Name}}").split():
        engine.docker("network", "rm", NETWORK)
    kubeconfig().unlink(missing_ok=True)


def healthy(engine: Engine) -> bool:
    """Whether the API server answers and every node is ready."""
    if not kubeconfig().exists():
        return False
    try:
        said = kubectl(
            engine,
            "get",
            "nodes",
            "-o",
            "jsonpath={range .items[*]}{.status.conditions[?(@.type=='Ready')].status} {end}",
            timeout_s=10,
        )
    except CommandError:
        return False
    return said.split() == ["True"] * len(NODES)


def schedulable_nodes(engine: Engine) -> list[str]:
    """The nodes that ordinary pods may run on: a control plane beside workers takes none.

    Raises:
        ClusterError: the cluster does not run.
    """
    if not kubeconfig().exists():
        raise ClusterError("there is no cluster: make one with `up`")
    nodes = json.loads(kubectl(engine, "get", "nodes", "-o", "json"))["items"]
    return [
        node["metadata"]["name"]
        for node in nodes
        if not any(
            taint["effect"] in ("NoSchedule", "NoExecute")
            for taint in node["spec"].get("taints", [])
        )
    ]


def kubectl(engine: Engine, *args: str, timeout_s: float = 30) -> str:
    """Runs the control plane's own kubectl; the machine needs none for it."""
    admin = "--kubeconfig=/etc/kubernetes/admin.conf"
    return engine.docker("exec", NODES[0], "kubectl", admin, *args, timeout_s=timeout_s)


def take_kubectl(engine: Engine, target: Path) -> None:
    """Copies the control plane's kubectl, which needs no library, out of its node."""
    engine.docker("cp", f"{NODES[0]}:/usr/bin/kubectl", target)


def _states(engine: Engine) -> dict[str, str]:
    said = engine.docker(
        "ps",
        "--all",
        "--filter",
        f"label=io.x-k8s.kind.cluster={NAME}",
        "--format",
        "{{.Names}} {{.State}}",
    )
    return dict(line.split(" ", 1) for line in said.splitlines() if line)


def _start_again(engine: Engine, states: dict[str, str]) -> bool:
    stopped = sorted(name for name, state in states.items() if state != "running")
    again = Step(f"waiting for the cluster, after starting {len(stopped)} stopped nodes", 10)
    try:
        with progress.step(again):
            if stopped:
                engine.docker("start", *stopped, timeout_s=60)
            _wait_ready(engine)
    except CommandError as error:
        say(f"the cluster did not become ready and is recreated: {error.failure}")
        return False
    return True


def _wait_ready(engine: Engine) -> None:
    wait_for("the cluster's nodes", lambda: healthy(engine), timeout_s=READY_TIMEOUT_S, every_s=0.5)
    for namespace, deployment in (
        ("kube-system", "coredns"),
        ("local-path-storage", "local-path-provisioner"),
    ):
        kubectl(
            engine,
            "--namespace",
            namespace,
            "rollout",
            "status",
            f"deployment/{deployment}",
            f"--timeout={READY_TIMEOUT_S:.0f}s",
            timeout_s=READY_TIMEOUT_S + 10,
        )


def _delete(engine: Engine) -> None:
    run(
        [
            go_build.program("kind"),
            "delete",
            "cluster",
            "--name",
            NAME,
            "--kubeconfig",
            kubeconfig(),
        ],
        timeout_s=120,
        env=engine.env,
    )
