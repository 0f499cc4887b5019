"""`make demo`: from a bare machine to a job that learned while rollouts came and went."""

import sys

from hack.cluster.examples import ROOT, example
from hack.cluster.kubectl import Kubectl, name_of
from hack.cluster.progress import say
from hack.demo.command import demo, remove_job
from hack.demo.job_progress import JobWatcher
from hack.demo.job_report import write_report
from hack.demo.learning_checks import check_epochs, check_learned

JOB = "reverse"
POOL = "reverse-cpu"
REPORT = ROOT / "results" / "reverse.html"


def run(kubectl: Kubectl) -> None:
    """Apply the job, scale it up, kill a rollout, follow it to its end, and check that it learned.

    Raises:
        AssertionError: it did not.
        TimeoutError: something did not happen in time.
    """
    remove_job(kubectl, JOB)
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
    seen = job.until(lambda s: s.phase == "Succeeded", seconds=400)

    check_learned(seen, max_staleness=2)
    check_epochs(seen, least=3)
    rewards = ", ".join(f"{reward:.2f}" for reward in seen.rewards.values())
    write_report(kubectl, JOB, into=REPORT)
    say(f"LEARNED: rewards of the rollouts' own samples: {rewards}; {seen.epoch} epochs")
    say("the job and the cluster stay, for a look:")
    print("export KUBECONFIG=$(make -s kubeconfig); kubectl get rljob,rolloutpool,pods")


if __name__ == "__main__":
    sys.exit(demo(run, job=JOB))
