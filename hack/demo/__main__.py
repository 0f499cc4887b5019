"""`make demo`: from a bare machine to a job that learned while rollouts came and went."""

import sys
import time

from hack.cluster import installation
from hack.cluster.kubectl import Kubectl, KubectlError, example, name_of, wait_for
from hack.demo.job_progress import JobProgress, JobWatcher
from hack.demo.learning_checks import check_epochs, check_learned

JOB = "reverse"
POOL = "reverse-cpu"


class Story:
    """Prints what happens, with the time since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, line: str) -> None:
        """One line."""
        print(f"[{time.monotonic() - self._began:5.0f} s] {line}", flush=True)


def run(kubectl: Kubectl, story: Story) -> JobProgress:
    """Apply the job, scale it up, kill a rollout, and follow it to its end."""
    kubectl.run("delete", "rljob", JOB, "--ignore-not-found", "--wait", seconds=120)
    wait_for("the old job's pods to go", lambda: not kubectl.rollouts(JOB), seconds=90)
    story.say("kubectl apply -f examples/reverse.yaml")
    kubectl.apply(example("reverse.yaml"))
    job = JobWatcher(kubectl, JOB, say=story.say)
    job.until(lambda s: s.step >= 30, seconds=240)

    story.say(f"kubectl scale rolloutpool/{POOL} --replicas=4")
    kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=4")
    goal = job.until(lambda s: s.ready >= 4, seconds=120).step + 20
    job.until(lambda s: s.step >= goal, seconds=120)

    victim = name_of(kubectl.rollouts(JOB)[0])
    story.say(f"kubectl delete pod {victim} --grace-period=0 --force")
    kubectl.run("delete", "pod", victim, "--grace-period=0", "--force")
    job.until(lambda s: s.ready >= 4 and victim not in s.rollouts, seconds=120)
    return job.until(lambda s: s.phase == "Succeeded", seconds=400)


def main() -> int:
    """Returns 0 when the job learned in spite of everything."""
    story = Story()
    kubectl = installation.ensure()
    try:
        seen = run(kubectl, story)
        check_learned(seen, max_staleness=2)
        check_epochs(seen, least=3)
    except (AssertionError, TimeoutError, KubectlError) as error:
        story.say(f"FAILED: {error}")
        return 1
    rewards = ", ".join(f"{reward:.2f}" for reward in seen.rewards.values())
    story.say(f"LEARNED: rewards of the rollouts' own samples: {rewards}; {seen.epoch} epochs")
    story.say("the job is there for a look:")
    print("export KUBECONFIG=$(make -s kubeconfig); kubectl get rljob,rolloutpool,pods")
    return 0


if __name__ == "__main__":
    sys.exit(main())
