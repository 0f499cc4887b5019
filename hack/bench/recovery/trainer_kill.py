"""Trials of a killed trainer: its container starts again, or its pod is replaced."""

import signal
import time

from hack.bench.recovery.bench_job import EVERY_STEPS, TRAINER, BenchJob
from hack.bench.recovery.pod_processes import WorkerProcess, worker
from hack.bench.recovery.trial_statistics import TrialResult, phases
from hack.bench.recovery.worker_log import LoggedSession, LoggedStep, LoggedVersion
from hack.cluster.kubectl import wait_for

AGAIN_SECONDS = 120.0
HOW = RESTARTED, AGAIN, LOST = "container restarted", "killed again", "pod lost"


def kill(job: BenchJob, number: int) -> list[TrialResult]:
    """End the trainer in one of three ways, by the trial's `number`: SIGKILL in a pod that has not
    restarted; SIGKILL again in the same pod, where the kubelet would wait 10 s, so that the
    operator replaces the pod; deletion without grace, as when a node is lost.
    """
    old, how = job.trainer, HOW[number % len(HOW)]
    job.trainer_log.look()
    steps = [step.number for step in job.trainer_log.steps()][-1]
    uid, restarts = old.pod_uid, 1
    if how == LOST:
        at = time.time()
        job.delete_now(TRAINER)
    else:
        at = old.send(signal.SIGKILL)
    if how != RESTARTED:
        uid, restarts = other_pod(job, old.pod_uid), 0
    new = worker(uid, other_than=old, seconds=AGAIN_SECONDS)
    job.follow(new, restarts=restarts)
    first = job.trainer_log.wait(LoggedStep, after=new.started, seconds=AGAIN_SECONDS)
    record = TrialResult(
        "trainer_kill",
        first.at - new.started,
        {
            "how": how,
            "until_started": new.started - at,
            "steps_lost": steps + 1 - first.number,
            "phases": _phases(job, new, first),
        },
    )
    again = [TrialResult("trainer_killed_again", new.started - at)] if how == AGAIN else []
    job.serving(job.settings.rollouts)
    job.steps(EVERY_STEPS + 1)
    return [record, TrialResult("trainer_kill_in_all", first.at - at), *again]


def other_pod(job: BenchJob, old: str) -> str:
    """The uid of the trainer's pod once it is another than `old`."""

    def look() -> str | None:
        uid = str(job.kubectl.get("pod", TRAINER)["metadata"]["uid"])
        return uid if uid != old else None

    return wait_for("another trainer pod", look, seconds=AGAIN_SECONDS)


def _phases(job: BenchJob, new: WorkerProcess, first: LoggedStep) -> dict[str, float]:
    log = job.trainer_log
    sessions = [x.at for x in log.events if isinstance(x, LoggedSession) and x.at <= first.at]
    versions = [x.at for x in log.events if isinstance(x, LoggedVersion) and x.at <= first.at]
    return phases(
        [
            ("start", new.started),
            ("model built and checkpoint loaded", log.first("rank 0 starts")),
            ("session", min(sessions, default=None)),
            ("first version published", min(versions, default=None)),
            ("first step", first.at),
        ]
    )
