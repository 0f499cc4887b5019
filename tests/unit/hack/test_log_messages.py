"""The soak and the recovery bench read workers' logs: lines that the workers' own code wrote."""

import logging

import pytest

from hack.bench.recovery.worker_log import LoggedSession, LoggedVersion, WorkerLogLine, event
from hack.soak import invariants, soak_statistics
from hack.soak.soak_history import LogLine, SoakHistory
from rollcall_protocol.wire.ids import Lineage, SessionId, Version
from rollcall_protocol.wire.job_snapshot import SessionCause, SessionReport
from rollcall_protocol.wire.messages import Sample
from rollcall_runtime.coordinator.prometheus_metrics import PrometheusCoordinatorMetrics
from rollcall_runtime.coordinator.sync_group_driver import Publication
from rollcall_runtime.train.policy_batch import policy_batch
from rollcall_runtime.worker.telemetry import TrainerMetrics

REPORT = SessionReport(SessionId(3, 1, 2), SessionCause.MEMBER_LOST, 4, 0.25, "r-1: reset")


@pytest.fixture
def written(caplog: pytest.LogCaptureFixture) -> list[str]:
    """A session's message and a version's, as the trainer logs them."""
    metrics = TrainerMetrics(namespace="default", job="reverse", group="default")
    observer = PrometheusCoordinatorMetrics(metrics, {})
    version = Version(Lineage(1, 1), 7)
    with caplog.at_level(logging.INFO):
        observer.session_formed(REPORT)
        observer.published(
            Publication(
                version=version,
                members=4,
                received_bytes=192,
                stage_seconds=0.05,
                commit_seconds=0.2,
                delta=False,
            )
        )
    return caplog.messages


def test_the_recovery_bench_reads_sessions_and_versions(written: list[str]) -> None:
    session, version = (event(WorkerLogLine(10.0, message)) for message in written)
    assert session == LoggedSession(10.0, 4, "MemberLost")
    assert isinstance(version, LoggedVersion)
    assert (version.number, version.staged, version.began) == pytest.approx((7, 9.8, 9.75))


def test_the_soak_counts_sessions_by_their_cause(written: list[str]) -> None:
    history = SoakHistory(began=0.0, max_staleness=2)
    history.lines = [LogLine(1.0, "trainer-0", "uid", message) for message in written]
    found = soak_statistics.figures(history)
    assert found["sessions"] == {"total": 1, "MemberLost": 1}
    assert found["rebuild"]["worst"] == 0.25


def test_the_soak_notices_a_sample_without_a_version_for_each_token() -> None:
    with pytest.raises(ValueError, match=invariants._UNVERSIONED):
        policy_batch(
            [[1]], [[Sample(tokens=(1,), logprobs=(0.0,), versions=(), reward=0.0)]], version=0
        )
