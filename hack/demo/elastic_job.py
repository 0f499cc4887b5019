"""The demo's job: scaled up, a rollout killed, followed to its end, and checked that it learned."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hack.demo.job_progress import JobWatcher, ReadsJobs
from hack.demo.learning_checks import check_epochs, check_learned

JOB = "reverse"
POOL = "reverse-cpu"


class Place(ReadsJobs, Protocol):
    """Where the job runs; each method says what it does as a user would type it."""

    def scale(self, pool: str, replicas: int) -> None:
        """Set the number of a pool's rollouts."""

    def kill(self, pod: str) -> None:
        """End a pod at once."""

    def report(self, job: str, *, into: Path) -> None:
        """Write the job's report; AssertionError if it is not whole."""


def follow(place: Place, *, report: Path, say: Callable[[str], None]) -> None:
    """The job is applied; it is scaled, loses a rollout, and ends.

    Raises:
        AssertionError: it did not learn.
        TimeoutError: something did not happen in time.
    """
    job = JobWatcher(place, JOB, say=say)
    job.until(lambda s: s.step >= 30, seconds=240)

    place.scale(POOL, 4)
    goal = job.until(lambda s: s.ready >= 4, seconds=120).step + 20
    victim = next(iter(job.until(lambda s: s.step >= goal, seconds=120).rollouts))

    place.kill(victim)
    job.until(lambda s: s.ready >= 4 and victim not in s.rollouts, seconds=120)
    seen = job.until(lambda s: s.phase == "Succeeded", seconds=400)

    check_learned(seen, max_staleness=2)
    check_epochs(seen, least=3)
    rewards = ", ".join(f"{reward:.2f}" for reward in seen.rewards.values())
    place.report(JOB, into=report)
    say(f"LEARNED: rewards of the rollouts' own samples: {rewards}; {seen.epoch} epochs")
