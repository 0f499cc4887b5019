"""The cluster as a whole: which kind of it this machine gets, up, down, and its kubeconfig."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from hack.cluster import cache, docker_engine, go_build, kind, machine, node_image, progress
from hack.cluster.errors import ClusterError, CommandError
from hack.cluster.progress import Step, say
from hack.cluster.subprocesses import run

SAVED_SETTINGS = Path("cluster", "settings-before.json")  # in the cache


def uses_existing() -> bool:
    """Whether the user wants an existing cluster to be used (`ROLLCALL_USE_KUBECONFIG=1`)."""
    return os.environ.get("ROLLCALL_USE_KUBECONFIG", "") not in ("", "0")


def kubeconfig() -> Path:
    """The kubeconfig of the cluster in use.

    Raises:
        ClusterError: an existing cluster is to be used and no kubeconfig is to be found.
    """
    if not uses_existing():
        return kind.kubeconfig()
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(named) if named else Path.home() / ".kube" / "config"
    if not path.exists():
        raise ClusterError(f"ROLLCALL_USE_KUBECONFIG is set, but there is no {path}")
    return path


def steps() -> list[Step]:
    """What making the cluster shows."""
    return [docker_engine.STEP, *node_image.steps(), kind.CREATE]


def up() -> None:
    """Makes the cluster run; does nothing but a look if it does."""
    if uses_existing():
        _check_existing()
        return
    with cache.lock("cluster"), progress.plan(steps()):
        cache.sweep()
        _save_settings()
        chosen = docker_engine.select()
        if chosen is None:
            raise ClusterError("no Docker engine")
        kind.up(chosen, choose_image=lambda: node_image.choose(chosen))


def down() -> None:
    """Removes the cluster and what it changed on the machine; the cache stays."""
    if uses_existing():
        say("ROLLCALL_USE_KUBECONFIG is set: the cluster of your kubeconfig is not removed")
        return
    with cache.lock("cluster"):
        try:
            # Nodes and networks are deleted by an engine: if ours was killed, it runs once more.
            chosen = docker_engine.select(start=docker_engine.traces())
            if chosen is not None:
                kind.down(chosen)
        except CommandError as error:
            if not docker_engine.traces():
                raise
            say(f"the engine could not remove the cluster, which is removed by force: {error}")
        if docker_engine.traces():
            docker_engine.stop()
        _restore_settings()
        say("the cluster is removed; the cache stays")


def environment() -> dict[str, str]:
    """Variables that point `docker` and `kubectl` at what is in use."""
    found = {"KUBECONFIG": str(kubeconfig())}
    chosen = docker_engine.select(start=False)
    return found | (chosen.env if chosen else {})


def program(name: str) -> Path:
    """The path of a program: built, or for kubectl taken from where the cluster has it."""
    if name == "kubectl" and not go_build.path_of(name).exists() and not uses_existing():
        target = cache.root() / "bin" / "kubectl-of-node" / name
        if target.exists():
            return target
        chosen = docker_engine.select(start=False)
        if chosen is not None and kind.healthy(chosen):
            with cache.fresh(target) as made:
                kind.take_kubectl(chosen, made)
            return target
    return go_build.program(name)


def _check_existing() -> None:
    said = run(
        [
            shutil.which("kubectl") or go_build.program("kubectl"),
            f"--kubeconfig={kubeconfig()}",
            "version",
            "-o",
            "json",
        ],
        timeout_s=30,
    )
    version = json.loads(said)["serverVersion"]["gitVersion"]
    say(f"using the existing cluster of {kubeconfig()}, Kubernetes {version}")


def _save_settings() -> None:
    saved = cache.root() / SAVED_SETTINGS
    if saved.exists():  # from an earlier `up` that had no `down`: that is the state to go back to
        return
    with cache.fresh(saved) as made:
        made.write_text(json.dumps(machine.read_sysctls(), indent=2))


def _restore_settings() -> None:
    saved = cache.root() / SAVED_SETTINGS
    if not saved.exists():
        return
    try:
        changed = machine.restore_sysctls(json.loads(saved.read_text()))
    except OSError as error:
        say(f"kernel settings saved in {saved} cannot be restored without root: {error}")
        return
    if changed:
        say(f"kernel settings restored: {', '.join(changed)}")
    saved.unlink()
