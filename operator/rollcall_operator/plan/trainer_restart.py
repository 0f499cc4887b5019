"""A trainer whose template has changed: which pods still run the former one, and a restart on
request. The StatefulSet never restarts them by itself (OnDelete).
"""

import signal
from collections.abc import Iterable

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.external_trainer import uncalled_at_end
from rollcall_operator.plan.failure import TrainerRestarts
from rollcall_operator.plan.model import Manifest, PodFacts

_KILLS = frozenset({128 + signal.SIGKILL, 128 + signal.SIGTERM})
_ENDS_AT_ONCE = 5.0  # seconds


def live_stateful_set(job: Manifest, children: Iterable[Manifest]) -> Manifest | None:
    """The trainer's StatefulSet in the API server; None if it does not exist."""
    key = f"StatefulSet/{labels.trainer_name(job['metadata']['name'])}"
    return next((child for child in children if apply_needed.key(child) == key), None)


def restart_request(job: Manifest) -> str:
    """The value of the job's annotation RESTART_TRAINER; empty for none."""
    return str((job["metadata"].get("annotations") or {}).get(labels.RESTART_TRAINER, ""))


def is_new_request(job: Manifest, live: Manifest) -> bool:
    """Whether the StatefulSet `live` does not have the job's RESTART_TRAINER yet."""
    return restart_request(job) not in {"", _annotations_of_pods(live).get(labels.RESTART_TRAINER)}


def _annotations_of_pods(live: Manifest) -> dict[str, str]:
    return live["spec"]["template"].get("metadata", {}).get("annotations") or {}


def outdated_pods(live: Manifest | None, trainers: Iterable[PodFacts]) -> list[PodFacts]:
    """Trainer pods that the StatefulSet `live` made from a former template, while they still run.

    `trainers` are also those that are terminating.
    """
    status: Manifest = (live or {}).get("status") or {}
    newest = status.get("updateRevision", "")
    if live is None or not newest or not _is_observed(live):
        return []
    return [pod for pod in trainers if pod.revision and pod.revision != newest]


def pods_to_restart(
    job: Manifest, live: Manifest | None, trainers: Iterable[PodFacts]
) -> list[PodFacts]:
    """Trainer pods to delete, as somebody asked for a restart after they were made.

    They are deleted once the StatefulSet `live` makes their successors from the new template.
    """
    if live is None or not _is_observed(live):
        return []
    if is_new_request(job, live):
        return []  # the new value is about to be written into the template
    asked = _annotations_of_pods(live)
    wanted = {name: asked[name] for name in labels.RESTART_REQUESTS if asked.get(name)}
    return [
        pod
        for pod in trainers
        if any(pod.restart_requests.get(name) != value for name, value in wanted.items())
    ]


def pods_in_needless_back_off(
    spec: RLJobSpec, restarts: TrainerRestarts, trainers: Iterable[PodFacts]
) -> list[PodFacts]:
    """Trainer pods to delete, as a new one has no back-off (Kubernetes keeps it for each container
    of a pod, from 10 s doubling to 300 s): the trainer did not fail by itself, or it got further.

    Not where the pod holds what a new one would miss, nor one whose container ends at once.
    """
    if _keeps_files(spec):
        return []
    return [
        pod
        for pod in trainers
        if pod.in_back_off
        and not pod.init
        and (restarts.progressed or _killed_from_outside(spec, pod))
        and (pod.ran_for or 0.0) >= _ENDS_AT_ONCE
    ]


def _killed_from_outside(spec: RLJobSpec, pod: PodFacts) -> bool:
    """Whether a signal ended the worker, not for its memory or the call that it did not make."""
    by_signal = pod.exit_code in _KILLS and not pod.oom_killed
    return by_signal and not uncalled_at_end(spec.trainer, pod)


def _keeps_files(spec: RLJobSpec) -> bool:
    """Whether a directory that goes with the pod may hold a checkpoint, or a model."""
    checkpoint = spec.trainer.checkpoint
    if checkpoint is not None and checkpoint.volume.empty_dir is not None:
        return True
    volumes = spec.trainer.template["spec"].get("volumes") or ()
    empty = [volume["emptyDir"] or {} for volume in volumes if "emptyDir" in volume]
    return any(directory.get("medium") != "Memory" for directory in empty)


def after_restart(job: Manifest) -> str:
    """Where training goes on after a restart, for messages."""
    trainer = job["spec"]["trainer"]
    if trainer.get("kind") == "External":
        return "the trainer's own program then decides where training goes on"
    if trainer.get("checkpoint"):
        return "training then goes on from the last checkpoint"
    return "training then starts again at step 0, as spec.trainer.checkpoint is not set"


def pods_of_earlier_job(
    uid: str, live: Manifest | None, pods: Iterable[PodFacts]
) -> list[PodFacts]:
    """Trainer pods of the job's StatefulSet that were made for an earlier job of this name.

    They hold that job's settings, and the StatefulSet `live`, which was adopted, does not replace
    them. `uid` is the job's.
    """
    owners = (live or {}).get("metadata", {}).get("ownerReferences") or ()
    if not any(owner.get("uid") == uid for owner in owners):
        return []
    trainers = (pod for pod in pods if pod.role == labels.TRAINER and not pod.terminating)
    return [pod for pod in trainers if pod.job_uid != uid]


def _is_observed(live: Manifest) -> bool:
    observed = (live.get("status") or {}).get("observedGeneration", 0)
    return bool(observed >= live["metadata"].get("generation", 0))
