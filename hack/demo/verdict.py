"""What must be true of a job that learned; the negative control must fail it."""

from hack.demo.follow import Sight

LEARNED = 0.9


def check_learned(sight: Sight, *, max_staleness: int) -> None:
    """Raise AssertionError unless rollouts themselves drew good samples with current weights.

    Trainer-side reward proves nothing: with weight sync broken it still rises, because a nearly
    uniform policy covers everything.
    """
    if not sight.rollouts:
        raise AssertionError("no rollout is alive")
    for pod, metrics in sight.rollouts.items():
        reward = sight.rewards.get(pod)
        if reward is None or reward < LEARNED:
            raise AssertionError(f"{pod}: reward of its own samples is {reward}, under {LEARNED}")
        version = metrics.get("rollcall_weight_version", -1)
        if sight.version - version > max_staleness:
            raise AssertionError(
                f"{pod} serves version {version}, the trainer is at {sight.version}"
            )


def check_epochs(sight: Sight, *, least: int) -> None:
    """Raise AssertionError unless that many epochs are in status, each with its cause."""
    causes = [entry.get("cause") for entry in sight.history]
    if len(causes) < least or not all(causes):
        raise AssertionError(f"{least} epochs with causes expected, status has {causes}")
