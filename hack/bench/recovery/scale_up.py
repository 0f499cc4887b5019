"""Trials of a scale-up from 2 to 6, and back by a drain of four."""

import time

from hack.bench.recovery.bench_job import POOL, BenchJob
from hack.bench.recovery.pod_processes import LOOK_SECONDS, workers
from hack.bench.recovery.trial_statistics import TrialResult, phases
from hack.bench.recovery.worker_log import WorkerLog

FEW, MANY = 2, 6
SCALE_SECONDS = 120.0


def up(job: BenchJob) -> list[TrialResult]:
    """From the start of the newcomers' last process until all are in sync."""
    before = {member.pod_uid for member in job.stream.history[-1].state.members}
    at = time.time()
    job.kubectl.run("scale", f"rolloutpool/{POOL}", f"--replicas={MANY}")
    seen = job.serving(MANY, seconds=SCALE_SECONDS)
    newcomers = workers(seen.in_sync - before)
    started = [process.started for process in newcomers.values()]
    last = max(newcomers.values(), key=lambda process: process.started)
    log = WorkerLog(last.pod_uid)
    opened = log.first("stream to the coordinator is open")
    joined = [s.at for s in job.stream.history if s.at > at and s.members > FEW + 1]
    records = [
        TrialResult(
            "scale_up",
            seen.at - max(started),
            {
                "starts_apart": max(started) - min(started),
                "sessions": len(
                    {
                        s.state.session.session
                        for s in job.stream.history
                        if s.at > at and s.state.session is not None
                    }
                ),
                "phases": phases(
                    [
                        ("start", max(started)),
                        ("imports and model", log.first("rollout ")),
                        ("stream open", opened),
                        ("first newcomers in a session", min(joined, default=None)),
                        ("all in sync", seen.at),
                    ]
                ),
            },
        ),
        TrialResult("scale_up_in_all", seen.at - at),
    ]
    job.kubectl.run("scale", f"rolloutpool/{POOL}", f"--replicas={FEW}")
    job.serving(FEW, seconds=SCALE_SECONDS)
    drained(set(newcomers) | before, still=FEW)
    job.steps(2)
    return records


def drained(uids: set[str], *, still: int) -> None:
    """Wait until the pods that leave have no process any more: they would disturb the next."""
    deadline = time.monotonic() + SCALE_SECONDS
    while len(workers(uids)) > still:
        if time.monotonic() > deadline:
            raise TimeoutError(f"more than {still} rollouts are still there")
        time.sleep(LOOK_SECONDS)
