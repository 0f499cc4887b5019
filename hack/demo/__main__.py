"""`make demo`: from a bare machine to a job that learned while rollouts came and went."""

import sys
from pathlib import Path

from hack.cluster import cache, installation
from hack.cluster.errors import ClusterError, explain
from hack.cluster.kubectl import Kubectl, KubectlError, example, name_of, wait_for
from hack.cluster.progress import say
from hack.demo.job_progress import JobProgress, JobWatcher
from hack.demo.learning_checks import check_epochs, check_learned

JOB = "reverse"
POOL = "reverse-cpu"


def run(kubectl: Kubectl) -> JobProgress:
    """Apply the job, scale it up, kill a rollout, and follow it to its end."""
    kubectl.run("delete", "rljob", JOB, "--ignore-not-found", "--wait", seconds=120)
    wait_for("the old job's pods to go", lambda: not kubectl.rollouts(JOB), seconds=90)
    say("kubectl apply -f examples/reverse.yaml")
    kubectl.apply(example("reverse.yaml"))
    job = JobWatcher(kubectl, JOB, say=say)
    job.until(lambda s: s.step >= 30, seconds=240)

    say(f"kubectl scale rolloutpool/{POOL} --replicas=4")
    kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=4")
    goal = job.until(lambda s: s.ready >= 4, seconds=120).step + 20
    job.until(lambda s: s.step >= goal, seconds=120)

    victim = name_of(kubectl.rollouts(JOB)[0])
    say(f"kubectl delete pod {victim} --grace-period=0 --force")
    kubectl.run("delete", "pod", victim, "--grace-period=0", "--force")
    job.until(lambda s: s.ready >= 4 and victim not in s.rollouts, seconds=120)
    return job.until(lambda s: s.phase == "Succeeded", seconds=400)


def main() -> int:
    """Returns 0 when the job learned while rollouts were added and killed."""
    kubectl: Kubectl | None = None
    try:
        kubectl = installation.ensure()
        seen = run(kubectl)
        check_learned(seen, max_staleness=2)
        check_epochs(seen, least=3)
    except (AssertionError, TimeoutError, ClusterError, OSError) as error:
        log = _collect(kubectl) if kubectl else cache.keep_output(error)
        print(explain(error, log=log), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    rewards = ", ".join(f"{reward:.2f}" for reward in seen.rewards.values())
    say(f"LEARNED: rewards of the rollouts' own samples: {rewards}; {seen.epoch} epochs")
    say("the job and the cluster stay, for a look:")
    print("export KUBECONFIG=$(make -s kubeconfig); kubectl get rljob,rolloutpool,pods")
    return 0


def _collect(kubectl: Kubectl) -> Path:
    """Writes what the cluster says about the job to a file; returns its path."""
    operator = kubectl.within(installation.SYSTEM_NAMESPACE)
    log = cache.log("demo")
    with log.open("w") as file:
        for source, words in (
            (kubectl, ("describe", "rljobs,rolloutpools,pods")),
            (kubectl, ("get", "events", "--sort-by=.lastTimestamp")),
            (kubectl, ("logs", f"--selector=rollcall.dev/job={JOB}", "--prefix", "--tail=-1")),
            (operator, ("logs", "deployment/rollcall-operator", "--tail=-1")),
        ):
            file.write(f"$ kubectl {' '.join(words)}\n")
            try:
                file.write(source.run(*words))
            except KubectlError as error:
                file.write(f"{error}\n")
    return log


if __name__ == "__main__":
    sys.exit(main())
