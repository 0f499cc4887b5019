"""What /metrics says, and that a dead job's series end with it."""

from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from rollcall_operator.api.conditions import JobPhase, SyncGroupPhase
from rollcall_operator.api.status import (
    EpochRecord,
    PoolSummary,
    RLJobStatus,
    SessionRecord,
    SyncGroupStatus,
    TrainerStatus,
)
from rollcall_operator.plan.timestamps import to_time
from rollcall_operator.telemetry.job_metrics import JobMetricsCollector
from rollcall_operator.telemetry.metrics import OperatorMetrics
from rollcall_protocol.wire.job_snapshot import (
    JobSnapshot,
    MemberReport,
    MemberState,
    TrainingProgress,
)

KEY = ("ns", "reverse")
TIME = "2026-11-22T00:00:00.000000Z"


def samples(metrics: OperatorMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.expose()[0].decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: OperatorMetrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, tuple(sorted(labels.items()))))


def session(name: str, cause: str, seconds: str) -> SessionRecord:
    return SessionRecord(session=name, cause=cause, members=3, seconds=seconds, time=TIME)


def status(
    epoch: int, causes: dict[int, str], *, members: int = 0, sessions: Sequence[SessionRecord] = ()
) -> RLJobStatus:
    group = SyncGroupStatus(
        name="default",
        engine="gloo",
        epoch=epoch,
        phase=SyncGroupPhase.STABLE,
        members=members,
        history=tuple(
            EpochRecord(epoch=e, cause=c, members=3, time=TIME) for e, c in causes.items()
        ),
        sessions=tuple(sessions),
    )
    return RLJobStatus(phase=JobPhase.RUNNING, sync_groups=(group,))


GROUP = {"namespace": "ns", "job": "reverse", "group": "default"}


def test_counts_of_queue_links_and_requests() -> None:
    metrics = OperatorMetrics()
    metrics.queue_depth(3)
    metrics.reconciled(seconds=0.02, result="ok")
    metrics.api_request("apply", "statefulsets", 201)
    metrics.event_seen("pods")
    metrics.link_connected(up=True)
    metrics.roster_pushed("accepted")
    metrics.snapshot_refused("other_pod")
    metrics.leading(held=True)
    assert value(metrics, "rollcall_queue_depth") == 3
    assert value(metrics, "rollcall_reconcile_seconds_count", result="ok") == 1
    assert (
        value(
            metrics,
            "rollcall_api_requests_total",
            verb="apply",
            resource="statefulsets",
            status="201",
        )
        == 1
    )
    assert value(metrics, "rollcall_watch_events_total", resource="pods") == 1
    assert value(metrics, "rollcall_coordinator_streams") == 1
    assert value(metrics, "rollcall_roster_pushes_total", result="accepted") == 1
    assert value(metrics, "rollcall_snapshots_refused_total", reason="other_pod") == 1
    assert value(metrics, "rollcall_leader") == 1


def test_a_first_failure_is_an_increase() -> None:
    metrics = OperatorMetrics()
    for result in ("retry", "error", "timeout"):
        assert value(metrics, "rollcall_reconcile_seconds_count", result=result) == 0


def test_a_job_shows_its_epoch_members_and_rebuilds_by_cause() -> None:
    metrics = OperatorMetrics()
    metrics.jobs.update(KEY, status(1, {1: "JobStarted"}, members=3))
    sessions = [
        session("2.1.9", "MemberLost", "0.25"),
        session("2.1.10", "MemberLost", "0.5"),
        session("3.1.1", "NewRoster", "0.25"),
    ]
    causes = {1: "JobStarted", 2: "MemberLost", 3: "MembersJoined"}
    metrics.jobs.update(KEY, status(3, causes, members=4, sessions=sessions))
    assert value(metrics, "rollcall_job_epoch", **GROUP) == 3
    assert value(metrics, "rollcall_job_members", **GROUP) == 4
    assert value(metrics, "rollcall_job_epochs_total", cause="MemberLost", **GROUP) == 1
    assert value(metrics, "rollcall_job_epochs_total", cause="JobStarted", **GROUP) == 1
    assert value(metrics, "rollcall_job_sessions_total", cause="MemberLost", **GROUP) == 2
    assert value(metrics, "rollcall_job_sessions_total", cause="NewRoster", **GROUP) == 1
    assert value(metrics, "rollcall_job_session_seconds_count", **GROUP) == 3
    assert value(metrics, "rollcall_job_session_seconds_sum", **GROUP) == 1.0
    assert value(metrics, "rollcall_jobs", phase="Running") == 1


def test_the_same_status_again_counts_nothing() -> None:
    metrics = OperatorMetrics()
    for _ in range(3):
        metrics.jobs.update(KEY, status(2, {1: "JobStarted", 2: "MemberLost"}))
    assert value(metrics, "rollcall_job_epochs_total", cause="MemberLost", **GROUP) == 1


def test_sessions_from_before_the_operator_started_are_not_counted_again() -> None:
    metrics = OperatorMetrics()
    old = session("1.1.1", "MemberLost", "0.25")
    new = session("1.1.2", "EngineError", "0.5")
    for sessions in ([old], [old, new], [old, new]):
        metrics.jobs.update(KEY, status(1, {1: "JobStarted"}, sessions=sessions))
    assert value(metrics, "rollcall_job_sessions_total", cause="MemberLost", **GROUP) == 0
    assert value(metrics, "rollcall_job_sessions_total", cause="EngineError", **GROUP) == 1
    assert value(metrics, "rollcall_job_session_seconds_sum", **GROUP) == 0.5


def test_a_job_that_is_gone_leaves_no_series() -> None:
    metrics = OperatorMetrics()
    metrics.jobs.update(KEY, status(1, {1: "JobStarted"}))
    metrics.jobs.forget(KEY)
    assert not [key for key in samples(metrics) if dict(key[1]).get("job") == "reverse"]
    assert value(metrics, "rollcall_jobs", phase="Running") is None


def test_another_job_of_the_name_starts_its_counts_at_zero() -> None:
    metrics = OperatorMetrics()
    metrics.jobs.update(KEY, status(5, {4: "MemberLost", 5: "MembersJoined"}))
    metrics.jobs.update(KEY, status(1, {1: "JobStarted"}))
    assert value(metrics, "rollcall_job_epochs_total", cause="JobStarted", **GROUP) == 1
    assert value(metrics, "rollcall_job_epochs_total", cause="MemberLost", **GROUP) == 0


def test_a_job_without_a_sync_group_yet_is_fine() -> None:
    metrics = OperatorMetrics()
    metrics.jobs.update(KEY, RLJobStatus())
    assert value(metrics, "rollcall_job_epoch", **GROUP) is None


def snapshot(epoch: int, *states: MemberState) -> JobSnapshot:
    return JobSnapshot(
        pod_uid="uid",
        boot=1,
        roster_epoch=epoch,
        roster_digest="",
        members=tuple(MemberReport(str(i), str(i), "cpu", s) for i, s in enumerate(states)),
        progress=TrainingProgress(1, 10, 1, None),
    )


def test_the_epoch_that_the_coordinator_holds_is_shown_once_it_has_reported() -> None:
    """A trainer that takes long to start has not failed to acknowledge an epoch."""
    metrics, job = OperatorMetrics(), {"namespace": "ns", "job": "reverse"}

    def acknowledged() -> float | None:
        return value(metrics, "rollcall_job_acknowledged_epoch", **job)

    metrics.jobs.update(KEY, RLJobStatus())
    assert acknowledged() is None
    metrics.jobs.update(KEY, RLJobStatus(), snapshot=snapshot(4))
    assert acknowledged() == 4
    metrics.jobs.update(KEY, RLJobStatus())
    assert acknowledged() is None


def test_rollouts_are_counted_by_pool_and_state() -> None:
    metrics = OperatorMetrics()
    pools = (PoolSummary(name="cpu", replicas=3, ready=2), PoolSummary(name="new", replicas=1))
    states = (MemberState.IN_SYNC, MemberState.IN_SYNC, MemberState.SUSPECT)
    metrics.jobs.update(KEY, RLJobStatus(pools=pools), snapshot=snapshot(1, *states))

    def rollouts(pool: str) -> dict[str, float]:
        found = samples(metrics).items()
        return {
            dict(labels)["state"]: count
            for (name, labels), count in found
            if name == "rollcall_job_rollouts" and dict(labels)["pool"] == pool
        }

    none = {state.value: 0 for state in MemberState}
    assert rollouts("cpu") == none | {"Wanted": 3, "Ready": 2, "InSync": 2, "Suspect": 1}
    assert rollouts("new") == none | {"Wanted": 1, "Ready": 0}


def test_a_job_shows_its_phase_and_the_restarts_of_its_trainer() -> None:
    metrics, job = OperatorMetrics(), {"namespace": "ns", "job": "reverse"}
    trainer = TrainerStatus(total_restarts=2)
    for phase in (JobPhase.STARTING, JobPhase.RUNNING):
        metrics.jobs.update(KEY, RLJobStatus(phase=phase, trainer=trainer))
    assert value(metrics, "rollcall_job_phase", phase="Running", **job) == 1
    assert value(metrics, "rollcall_job_phase", phase="Starting", **job) is None
    assert value(metrics, "rollcall_job_trainer_restarts_total", **job) == 2


def test_the_silence_of_a_coordinator_grows_while_it_lasts() -> None:
    now = [1_800_000_000.0]
    jobs = JobMetricsCollector(clock=lambda: now[0])

    def silence() -> list[float]:
        (family,) = (f for f in jobs.collect() if f.name.endswith("coordinator_silent_seconds"))
        assert [s.labels for s in family.samples] == [{"namespace": "ns", "job": "reverse"}]
        return [s.value for s in family.samples]

    jobs.update(KEY, RLJobStatus())
    assert silence() == [0]
    jobs.update(KEY, RLJobStatus(stale_since=to_time(now[0] - 20)))
    now[0] += 5
    assert silence() == [25]
    jobs.update(KEY, RLJobStatus())
    assert silence() == [0]
