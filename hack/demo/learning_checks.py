"""What must be true of a job that learned; the negative control must fail it."""

from hack.demo.job_progress import JobProgress

LEARNED = 0.9


def check_learned(seen: JobProgress, *, max_staleness: int) -> None:
    """Raise AssertionError unless rollouts themselves generated good samples with current weights.

    Trainer-side reward proves nothing: with weight sync broken it still rises, because a nearly
    uniform policy covers everything.
    """
    if not seen.rollouts:
        raise AssertionError("no rollout reports metrics")
    for pod, metrics in seen.rollouts.items():
        reward = seen.rewards.get(pod)
        if reward is None or reward < LEARNED:
            raise AssertionError(f"{pod}: reward of its own samples is {reward}, under {LEARNED}")
        version = metrics.get("rollcall_weight_version", -1)
        if seen.version - version > max_staleness:
            raise AssertionError(
                f"{pod} serves version {version}, the trainer is at {seen.version}"
            )


def check_epochs(seen: JobProgress, *, least: int) -> None:
    """Raise AssertionError unless that many epochs are in status, each with its cause."""
    causes = [entry.get("cause") for entry in seen.history]
    if len(causes) < least or not all(causes):
        raise AssertionError(f"{least} epochs with causes expected, status has {causes}")


def check_reported_reward(seen: JobProgress, *, least: float) -> None:
    """Raise AssertionError unless the reward in the job's status is at least this."""
    found = seen.reported_reward
    if found is None or not found >= least:
        raise AssertionError(f"the reward in the job's status is {found}, under {least}")
