"""Histories to judge: a sound one, and the parts of it that a test breaks."""

from __future__ import annotations

from hack.soak.fault_plan import FaultKind
from hack.soak.soak_history import (
    ROLLOUT,
    TRAINER,
    ApiObservation,
    InjectedFault,
    Leftovers,
    LogLine,
    MetricsReading,
    SoakHistory,
    WorkerInstance,
)

BEGAN = 1_000.0
PODS = ("cpu-a", "cpu-b")
CAUSES = {1: "JobStarted", 2: "MembersJoined"}


def trainer(time: float, *, incarnation: str = "t1", **values: float) -> MetricsReading:
    """A reading of the trainer; its step and version follow from the time unless given."""
    values_by_name = {
        "step": time * 10,
        "weight_version": time * 10,
        "staleness_versions_count": 100.0,
        "staleness_versions_bucket{2.0}": 100.0,
        **ledger(dispatched=100 + time * 10, accepted=60 + time * 10),
    }
    worker = WorkerInstance("job-trainer-0", "uid-t", TRAINER, incarnation, "10.0.0.1", 1)
    return MetricsReading(worker, BEGAN + time, values_by_name | values)


def ledger(**counts: float) -> dict[str, float]:
    """The ledger's metrics; without arguments it adds up."""
    known = {
        "dispatched": 100.0,
        "accepted": 60.0,
        "rejected": 5.0,
        "requeued": 5.0,
        "in_flight": 30.0,
        "duplicate": 1.0,
    }
    found = known | counts
    in_flight = {"prompts_in_flight": found.pop("in_flight")}
    return {f"prompts_total{{{name}}}": count for name, count in found.items()} | in_flight


def rollout(time: float, pod: str, *, incarnation: str = "", **values: float) -> MetricsReading:
    """A reading of a rollout that serves the trainer's version."""
    worker = WorkerInstance(pod, f"uid-{pod}", ROLLOUT, incarnation or f"{pod}.1", "10.0.0.2", 2)
    return MetricsReading(
        worker, BEGAN + time, {"weight_version": time * 10, "rollout_reward": 0.97} | values
    )


def sight(time: float, **ready: bool) -> ApiObservation:
    """What the API says: both rollouts Ready by default; `a=False` makes cpu-a unready."""
    ready_by_uid = {f"uid-{pod}": ready.get(pod[-1], True) for pod in PODS}
    return ApiObservation(BEGAN + time, ready_by_uid, ready_by_uid, CAUSES)


def sound(seconds: int = 40) -> SoakHistory:
    """Nothing is wrong with it: one kill after 10 s."""
    history = SoakHistory(BEGAN, max_staleness=2, ended=BEGAN + seconds, wanted=len(PODS))
    history.faults = [
        InjectedFault(FaultKind.KILL_ROLLOUT, BEGAN + 10, BEGAN + 10, "cpu-a", "uid-cpu-a")
    ]
    for second in range(seconds):
        history.readings.append([trainer(second), *(rollout(second + 0.1, pod) for pod in PODS)])
        history.sights.append(sight(second + 0.5))
        history.lines += [
            LogLine(
                BEGAN + second + tenth / 10, "job-trainer-0", "uid-t", f"step {second}: reward 1"
            )
            for tenth in range(10)
        ]
    history.lines += [
        LogLine(
            BEGAN + 10.02, "job-trainer-0", "uid-t", "member uid-cpu-a/1 lost: ConnectionLost: x"
        ),
        LogLine(
            BEGAN + 10.1,
            "job-trainer-0",
            "uid-t",
            "session 1.1.2 formed: 2 members, 0.080 s after MemberLost cpu-a: x",
        ),
    ]
    history.lines.sort(key=lambda line: line.time)
    history.final = [rollout(seconds - 1, pod) for pod in PODS]
    history.leftovers = Leftovers()
    return history
