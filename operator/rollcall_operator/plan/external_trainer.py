"""What an External trainer's own program has not called, as far as its pods tell."""

from collections.abc import Iterable

from rollcall_operator.api.training import TrainerSpec
from rollcall_operator.plan.model import PodFacts

_USUAL_GRACE = 30
"""Of a pod template without terminationGracePeriodSeconds."""
_SLACK = 10.0
"""Seconds that a kubelet may need more for its probes and the end of a container."""


def uncalled_at_end(trainer: TrainerSpec, pod: PodFacts) -> str:
    """What the program of a container that has ended did not call, and what to do; empty where
    nothing is known.
    """
    if not trainer.external or pod.init or pod.exit_code is None or pod.oom_killed:
        return ""
    if pod.exit_code == 0:
        return (
            "its program ended without calling finish; call rollcall.Trainer.finish(step) at its "
            "end"
        )
    if not _ran_until_the_start_timeout(trainer, pod):
        return ""
    return (
        "it ran about as long as a program that does not call rollcall.Trainer(), which is ended "
        f"after spec.trainer.startTimeoutSeconds ({trainer.start_timeout_seconds}); call it "
        "earlier, or raise the limit"
    )


def _ran_until_the_start_timeout(trainer: TrainerSpec, pod: PodFacts) -> bool:
    """Whether the kubelet may have ended it as its startup probe failed: no status says so."""
    if pod.ran_for is None:
        return False
    grace = trainer.template["spec"].get("terminationGracePeriodSeconds")
    longest = (_USUAL_GRACE if grace is None else int(grace)) + _SLACK
    return -2.0 <= pod.ran_for - trainer.start_timeout_seconds <= longest


def uncalled_at_start(trainer: TrainerSpec, pods: Iterable[PodFacts]) -> str:
    """Which pod's program runs and has not called rollcall.Trainer(); empty for none."""
    waiting = (pod for pod in pods if pod.running and not pod.up)
    pod = next(waiting, None) if trainer.external else None
    if pod is None:
        return ""
    return (
        f"pod {pod.name} runs, but its program has not called rollcall.Trainer() "
        f"(spec.trainer.startTimeoutSeconds: {trainer.start_timeout_seconds})"
    )
