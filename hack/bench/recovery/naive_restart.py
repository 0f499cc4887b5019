"""The baseline: no failure detection; a collective times out, then everything is restarted.

A rollout hangs (SIGSTOP): its connections stay open, as those of a lost node do, so the others wait
in the next collective of the transport until that times out by itself. How long this takes is read
from their logs. Then all pods are deleted and made again. The job has gloo's `operationTimeout` of
5 s; frameworks wait for 600 or 1800.
"""

import random
import signal
import time
from collections.abc import Iterable

from hack.bench.recovery.bench_job import EVERY_STEPS, TRAINER, BenchJob
from hack.bench.recovery.pod_processes import worker
from hack.bench.recovery.trainer_kill import AGAIN_SECONDS, other_pod
from hack.bench.recovery.trial_statistics import TrialResult
from hack.bench.recovery.worker_log import LOOK_SECONDS, LoggedStep, WorkerLog

TIMED_OUT = "TimedOutError: "  # how a worker's log line about a collective that timed out begins
TIME_OUT_SECONDS = 60.0  # until then, the next publication and its time-out have come


def stop(job: BenchJob) -> list[TrialResult]:
    """From the stop of a rollout until a step is done after everything was restarted."""
    rollouts = job.rollouts()
    names = [TRAINER, *(job.pod_name(uid) for uid in rollouts)]
    uid, victim = random.choice(sorted(rollouts.items()))
    logs = [job.trainer_log, *(WorkerLog(other) for other in rollouts if other != uid)]
    at = victim.send(signal.SIGSTOP)
    try:
        timed_out = first_time_out(logs, after=at, seconds=TIME_OUT_SECONDS)
        job.delete_now(*names)
    finally:
        if victim.alive():
            victim.send(signal.SIGCONT)
    job.follow(worker(other_pod(job, job.trainer.pod_uid), seconds=AGAIN_SECONDS))
    first = job.trainer_log.wait(LoggedStep, after=timed_out, seconds=AGAIN_SECONDS)
    details = {"timed_out": timed_out - at, "restart": first.at - timed_out}
    job.serving(job.settings.rollouts)
    job.steps(EVERY_STEPS + 1)
    return [TrialResult("naive_stop", first.at - at, details)]


def first_time_out(logs: Iterable[WorkerLog], *, after: float, seconds: float) -> float:
    """When the first of these workers saw a collective time out; TimeoutError when none does."""
    logs = list(logs)
    deadline = time.monotonic() + seconds
    while True:
        found = [at for log in logs if (at := log.first(TIMED_OUT, after=after)) is not None]
        if found:
            return min(found)
        if time.monotonic() > deadline:
            raise TimeoutError(f"no collective timed out within {seconds:.0f} s")
        time.sleep(LOOK_SECONDS)
