"""What the demos do alike: set up, run, and say what went wrong."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hack.cluster import cache, installation
from hack.cluster.errors import ClusterError, KubectlError, explain
from hack.cluster.kubectl import Kubectl, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def demo(run: Callable[[Kubectl], None], *, job: str) -> int:
    """Make cluster, images and operator, then `run`; the exit code for the shell.

    When `run` raises, what the cluster says about `job` is written to a file, which is named.
    """
    kubectl: Kubectl | None = None
    try:
        kubectl = installation.ensure()
        run(kubectl)
    except (AssertionError, TimeoutError, ClusterError, OSError) as error:
        log = _collect(kubectl, job) if kubectl else cache.keep_output(error)
        print(explain(error, log=log), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def remove_job(kubectl: Kubectl, job: str) -> None:
    """Delete the job of an earlier demo, and wait until its pods are gone."""
    kubectl.run("delete", "rljob", job, "--ignore-not-found", "--wait", seconds=120)
    wait_for("the old job's pods to go", lambda: not kubectl.rollouts(job), seconds=90)


def _collect(kubectl: Kubectl, job: str) -> Path:
    """Writes what the cluster says about the job to a file; returns its path."""
    operator = kubectl.within(installation.SYSTEM_NAMESPACE)
    log = cache.log("demo")
    with log.open("w") as file:
        for source, words in (
            (kubectl, ("describe", "rljobs,rolloutpools,pods")),
            (kubectl, ("get", "events", "--sort-by=.lastTimestamp")),
            (kubectl, ("logs", f"--selector=rollcall.dev/job={job}", "--prefix", "--tail=-1")),
            (operator, ("logs", "deployment/rollcall-operator", "--tail=-1")),
        ):
            file.write(f"$ kubectl {' '.join(words)}\n")
            try:
                file.write(source.run(*words))
            except KubectlError as error:
                file.write(f"{error}\n")
    return log
