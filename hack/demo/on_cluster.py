"""`make demo-cluster`: the demo on Kubernetes, from a bare machine on."""

import sys
from pathlib import Path
from typing import Any

from hack.cluster.examples import ROOT, example
from hack.cluster.kubectl import Kubectl
from hack.cluster.progress import say
from hack.demo.command import demo, remove_job
from hack.demo.elastic_job import JOB, follow
from hack.demo.job_report import write_report

REPORT = ROOT / "results" / "reverse-cluster.html"
STEPS = 500
"""More than the example has: pods take longer to come than processes do."""


class OnCluster:
    """The local cluster (kind), by kubectl."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl

    def job(self, name: str) -> dict[str, Any]:
        """The RLJob."""
        return self._kubectl.job(name)

    def rollouts(self, job: str) -> list[dict[str, Any]]:
        """Pods of its rollouts."""
        return self._kubectl.rollouts(job)

    def metrics(self, pod: str) -> dict[str, float]:
        """Of a pod, by name; KubectlError while it does not answer."""
        return self._kubectl.metrics(pod)

    def scale(self, pool: str, replicas: int) -> None:
        """Set the number of a pool's rollouts."""
        self._run("scale", f"rolloutpool/{pool}", f"--replicas={replicas}")

    def kill(self, pod: str) -> None:
        """End a pod at once."""
        self._run("delete", "pod", pod, "--grace-period=0", "--force")

    def report(self, job: str, *, into: Path) -> None:
        """Write the job's report; AssertionError if it is not whole."""
        write_report(self._kubectl, job, into=into)

    def _run(self, *words: str) -> None:
        say(f"kubectl {' '.join(words)}")
        self._kubectl.run(*words)


def run(kubectl: Kubectl) -> None:
    """Apply the job, and follow it; raises as `follow` does."""
    remove_job(kubectl, JOB)
    say(f"kubectl apply -f examples/reverse.yaml, with {STEPS} steps")
    kubectl.apply(example("reverse.yaml", maxSteps=STEPS))
    follow(OnCluster(kubectl), report=REPORT, say=say)
    say("the job and the cluster stay, for a look:")
    print("export KUBECONFIG=$(make -s kubeconfig); kubectl get rljob,rolloutpool,pods")


if __name__ == "__main__":
    sys.exit(demo(run, job=JOB))
