"""`make demo-trl`: TRL's trainer learns on rollouts that come and go.

Without weight sync it does not learn. With CLUSTER=1 on the local cluster, else on this machine.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from hack.cluster.examples import ROOT, with_images
from hack.cluster.kubectl import Kubectl
from hack.cluster.progress import say
from hack.demo.command import demo, remove_job
from hack.demo.elastic_job import Place
from hack.demo.job_progress import JobWatcher
from hack.demo.learning_checks import check_epochs, check_reported_reward
from hack.demo.on_cluster import OnCluster
from hack.demo.on_this_machine import exit_code, on_this_machine

JOB, CONTROL = "trl", "trl-no-sync"
EXAMPLE = ROOT / "examples" / "trl"
REPORT = ROOT / "results" / "trl.html"
LOG = ROOT / "results" / "demo-trl.log"
LEARNED, UNLEARNED = 0.7, 0.4  # mean rewards of the rollouts' samples; at first it is some 0.2
_FIRST = "  rollouts:\n"


def follow(place: Place, *, report: Path, say: Callable[[str], None]) -> None:
    """The job is applied; it is scaled, loses a rollout, and ends.

    Raises:
        AssertionError: it did not learn.
        TimeoutError: something did not happen in time.
    """
    job = JobWatcher(place, JOB, say=say)
    job.until(lambda s: s.step > 0, seconds=240)
    place.scale(f"{JOB}-cpu", 3)
    goal = job.until(lambda s: s.ready >= 3, seconds=120).step + 5
    victim = next(iter(job.until(lambda s: s.step >= goal, seconds=60).rollouts))
    place.kill(victim)
    job.until(lambda s: s.ready >= 3 and victim not in s.rollouts, seconds=120)
    last = job.until(lambda s: s.phase == "Succeeded", seconds=400)
    check_reported_reward(last, least=LEARNED)
    check_epochs(last, least=3)
    place.report(JOB, into=report)
    say(f"LEARNED: reward of the rollouts' samples {last.reported_reward}; {last.epoch} epochs")


def follow_control(place: Place, *, say: Callable[[str], None]) -> None:
    """The job without weight sync is applied; it ends. Raises as `follow`, if it did learn."""
    job = JobWatcher(place, CONTROL, say=say)
    last = job.until(lambda s: s.phase == "Succeeded", seconds=640)
    reward = last.reported_reward
    if reward is None or reward > UNLEARNED:
        raise AssertionError(f"it learned without weight sync: its reward is {reward}")
    say(f"without weight sync it does not learn: reward of the rollouts' samples {reward}")


def write_control(folder: Path) -> None:
    """The example without weight sync, under a name of its own."""
    for file in EXAMPLE.iterdir():
        text = file.read_text(encoding="utf-8")
        if file.name == "rljob.yaml":
            text = with_images(text).replace(f"  name: {JOB}\nspec:", f"  name: {CONTROL}\nspec:")
            text = text.replace(_FIRST, f"  weightSync:\n    enabled: false\n{_FIRST}", 1)
        (folder / file.name).write_text(text, encoding="utf-8")


def on_kubernetes(kubectl: Kubectl) -> None:
    """On the local cluster; raises as `follow`."""
    place = OnCluster(kubectl)
    with tempfile.TemporaryDirectory() as control:
        write_control(Path(control))
        for job, folder in ((JOB, EXAMPLE), (CONTROL, Path(control))):
            remove_job(kubectl, job)
            say(f"kubectl apply -k {folder}")
            kubectl.run("apply", "-f", "-", text=with_images(kubectl.run("kustomize", str(folder))))
            if job == JOB:
                follow(place, report=REPORT, say=say)
            else:
                follow_control(place, say=say)


def here() -> None:
    """On this machine; raises as `follow`."""
    with on_this_machine(["-k", str(EXAMPLE)], name="demo-trl", log=LOG) as place:
        follow(place, report=REPORT, say=say)
    with tempfile.TemporaryDirectory() as control:
        write_control(Path(control))
        with on_this_machine(["-k", control], name="demo-trl", log=LOG) as place:
            follow_control(place, say=say)


def main() -> int:
    """Run the demo; the exit code for the shell."""
    if os.environ.get("CLUSTER"):
        return demo(on_kubernetes, job=JOB)
    return exit_code(here)


if __name__ == "__main__":
    sys.exit(main())
