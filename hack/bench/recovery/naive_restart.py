"""The baseline: no failure detection: a collective times out, then everything is restarted.

A collective blocks all its members until its timeout, after which everything is restarted. So the
victim is killed, every other worker stands still for gloo's `operationTimeout` as the job has it,
5 s (its frameworks wait for 600 or 1800), and then all pods are deleted and made again.
"""

import random
import signal
import time

from hack.bench.recovery.bench_job import EVERY_STEPS, TRAINER, BenchJob
from hack.bench.recovery.trainer_kill import AGAIN_SECONDS, other_pod
from hack.bench.recovery.trial_statistics import TrialResult
from hack.bench.recovery.worker_log import LoggedStep
from hack.bench.recovery.worker_processes import worker

TIMEOUT_SECONDS = 5.0


def kill(job: BenchJob) -> list[TrialResult]:
    """From the kill until a step is done after everything was restarted."""
    rollouts = job.rollouts()
    names = [TRAINER, *(job.pod_name(uid) for uid in rollouts)]
    uid, victim = random.choice(sorted(rollouts.items()))
    others = [job.trainer, *(process for other, process in rollouts.items() if other != uid)]
    at = victim.send(signal.SIGKILL)
    try:
        for process in others:
            process.send(signal.SIGSTOP)
        time.sleep(max(0.0, at + TIMEOUT_SECONDS - time.time()))
        restarted = time.time()
        job.delete_now(*names)
    finally:
        for process in others:
            if process.alive():
                process.send(signal.SIGCONT)
    job.follow(worker(other_pod(job, job.trainer.pod_uid), seconds=AGAIN_SECONDS))
    first = job.trainer_log.wait(LoggedStep, after=restarted, seconds=AGAIN_SECONDS)
    details = {"timeout": TIMEOUT_SECONDS, "restart": first.at - restarted}
    job.serving(job.settings.rollouts)
    job.steps(EVERY_STEPS + 1)
    return [TrialResult("naive_kill", first.at - at, details)]
