"""Trials of single faults of rollouts: killed while idle or in mid-STAGE, and stopped."""

import random
import signal
import statistics
import time

from hack.bench.recovery.bench_job import SETTLE_STEPS, SUSPECT_AFTER_MS, BenchJob
from hack.bench.recovery.pod_processes import WorkerProcess
from hack.bench.recovery.trial_statistics import (
    TrialResult,
    longest_step,
    phases,
    usual_step,
    where,
)
from hack.bench.recovery.worker_log import LoggedSession, LoggedStep, LoggedVersion

RECOVER_SECONDS = 60.0
IDLE_SECONDS = 0.1  # after a publication, within which the next one never begins


def kill(job: BenchJob, aim: str) -> list[TrialResult]:
    """SIGKILL a rollout while the job is idle or in mid-STAGE, as `aim` says.

    The log shows afterwards what was hit: a kill in mid-COMMIT counts as an event of its own.
    """
    uid, victim = _victim(job)
    name = job.pod_name(uid)
    _aim(job, aim)
    at = victim.send(signal.SIGKILL)
    session, published = _recovered(job, at)
    hit = where(at, began=published.began, staged=published.staged)
    under_way = published.began < session.at
    end = max(session.at, published.staged) if under_way else session.at
    details = {
        "cause": session.cause,
        "session": session.at - at,
        "version": published.at - at,
        "under_way": under_way,
        "phases": phases(
            [
                ("kill", at),
                ("noticed", job.trainer_log.first(f"member {uid}", after=at)),
                ("session", session.at),
                ("weights resent", end if end > session.at else None),
            ]
        ),
    }
    records = [TrialResult(f"kill_{hit}", end - at, details)]
    serves = "next_version" if hit == "idle" else "serves"
    records.append(TrialResult(f"kill_{hit}_{serves}", max(end, published.at) - at))
    records += _stall(job, f"kill_{hit}", at=at, end=max(end, published.at))
    job.delete_now(name)  # another pod, so that no back-off delays its container
    _back(job, without=uid)
    return records


def stop(job: BenchJob) -> list[TrialResult]:
    """SIGSTOP a rollout until the survivors have a session; then let it come back."""
    _, victim = _victim(job)
    time.sleep(random.uniform(0.0, 1.0))
    at = victim.send(signal.SIGSTOP)
    try:
        session, published = _recovered(job, at)
        seconds = session.at - at
        details = {"cause": session.cause, "version": published.at - at}
        records = [
            TrialResult("stop", seconds, details),
            TrialResult("stop_beyond_bound", seconds - SUSPECT_AFTER_MS / 1000),
            *_stall(job, "stop", at=at, end=max(session.at, published.at)),
        ]
    finally:
        victim.send(signal.SIGCONT)
    _back(job)
    return records


def _victim(job: BenchJob) -> tuple[str, WorkerProcess]:
    return random.choice(sorted(job.rollouts().items()))


def _aim(job: BenchJob, at: str) -> None:
    """Wait for a moment of that kind, as the last publications were."""
    now = time.time()
    if at == "idle":
        job.trainer_log.wait(LoggedVersion, after=now, seconds=RECOVER_SECONDS)
        time.sleep(random.uniform(0.0, IDLE_SECONDS))
        return
    step = job.trainer_log.wait(LoggedStep, after=now, seconds=RECOVER_SECONDS)
    last = [found for found in job.trainer_log.events if isinstance(found, LoggedVersion)][-10:]
    ends = {found.number: found.at for found in job.trainer_log.steps()}
    # Step n makes the version that follows; its transfer begins when it is sealed.
    lag = statistics.median(_lag(found, ends) for found in last)
    length = statistics.median(found.staged - found.began for found in last)
    time.sleep(max(0.0, step.at + lag + random.uniform(0.1, 0.9) * length - time.time()))


def _lag(published: LoggedVersion, ends: dict[int, float]) -> float:
    before = [end for end in ends.values() if end <= published.began]
    return published.began - max(before) if before else 0.0


def _recovered(job: BenchJob, at: float) -> tuple[LoggedSession, LoggedVersion]:
    """The survivors' session, and the first version that it got or was given before."""
    members = job.settings.rollouts  # the trainer, and all but one
    session = job.trainer_log.wait(
        LoggedSession, after=at, seconds=RECOVER_SECONDS, that=lambda s: s.members == members
    )
    return session, job.trainer_log.wait(LoggedVersion, after=at, seconds=RECOVER_SECONDS)


def _stall(job: BenchJob, fault: str, *, at: float, end: float) -> list[TrialResult]:
    """The longest step around a fault, beyond the usual one."""
    job.trainer_log.wait(LoggedStep, after=end, seconds=RECOVER_SECONDS)
    ends = [step.at for step in job.trainer_log.steps()]
    usual, longest = usual_step(ends, before=at), longest_step(ends, since=at, until=end)
    details = {"fault": fault, "usual": usual, "longest": longest}
    stall = max(0.0, longest - usual)
    kind = "kill" if fault.startswith("kill") else fault
    return [TrialResult("stall", stall, details), TrialResult(f"stall_{kind}", stall)]


def _back(job: BenchJob, *, without: str = "") -> None:
    """Wait until all are back, and for some steps."""
    job.stream.until(
        lambda seen: (
            len(seen.in_sync) == job.settings.rollouts
            and without not in seen.in_sync
            and seen.members == job.settings.rollouts + 1
        ),
        seconds=120,
    )
    job.steps(SETTLE_STEPS)
