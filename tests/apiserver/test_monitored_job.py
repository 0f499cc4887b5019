"""Every query of every dashboard, rule and alert returns data of a real run in a real Prometheus.

Either while nothing goes wrong, or after the fault that CAUSED names, and not before. A metric that
is renamed, no longer counted or not scraped turns its queries red.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator

import pytest

from hack.monitoring.dashboard_queries import panel_queries
from hack.monitoring.prometheus_server import Line
from tests.apiserver.cluster import Cluster
from tests.apiserver.monitored_job import FAULTS, NAMESPACE, VARIABLES, Recording, record

pytestmark = [pytest.mark.monitoring, pytest.mark.timeout(600)]

KILLED, STOPPED = "a rollout is killed", "all rollouts stop"
HANGS = "a rollout is replaced while the trainer's node hangs"
THROTTLED, OUTSIDER = (
    "the API server throttles the operator",
    "an unauthenticated client asks the coordinator",
)
ENDS = "the operator ends"

CAUSED = {
    "fleet/Alerts that fire/{{alertname}} {{namespace}}/{{job}}": "rewards are not finite",
    "fleet/Requests to the API server, a second/status {{status}}": THROTTLED,
    "job/Time to form a session/{{cause}}": KILLED,
    "weight-sync/Time to form a session (p99)/{{group}} {{cause}}": KILLED,
    "weight-sync/Time to detect a failed member/{{group}} {{cause}}": KILLED,
    "weight-sync/Refused requests and messages/{{what}}": OUTSIDER,
}
"""Queries without data while all is well, and the fault after which they have some."""

FIRED_BY = {
    "RollcallRewardNotFinite": "rewards are not finite",
    "RollcallCheckpointFailing": "checkpoints cannot be written",
    "RollcallRolloutsStale": STOPPED,
    "RollcallTrainerStarved": STOPPED,
    "RollcallSyncSlow": STOPPED,
    "RollcallRebuildStorm": STOPPED,
    "RollcallCoordinatorSilent": HANGS,
    "RollcallEpochUnacknowledged": HANGS,
    "RollcallJobStuck": HANGS,
    "RollcallApiThrottled": THROTTLED,
    "RollcallReconcileErrors": THROTTLED,
    "RollcallOperatorDown": ENDS,
    "RollcallNoLeader": ENDS,
}

QUERIES = [query.name for query in panel_queries(VARIABLES)]
RECORDS = (
    "job:rollcall_trainer_idle:ratio",
    "job:rollcall_wait_for_batch:ratio",
    "job:rollcall_tokens:rate",
    "job:rollcall_staleness_versions:mean",
    "job:rollcall_param_sync_seconds:mean",
    "job:rollcall_rollouts_behind:sum",
)


@pytest.fixture(scope="module")
def recording(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Of one run; it takes three minutes."""
    return asyncio.run(record(cluster, tmp_path_factory.mktemp("monitored"), say=print))


def values(lines: Iterable[Line], *, begin: float, end: float) -> Iterator[float]:
    """The finite ones between two times."""
    for line in lines:
        yield from (v for at, v in line.points if begin <= at < end and math.isfinite(v))


def calm(recording: Recording, lines: Iterable[Line]) -> list[float]:
    """Those before the first fault."""
    return list(values(lines, begin=recording.calm, end=recording.faults[0].began))


def test_all_queries_have_names_of_their_own() -> None:
    assert len(set(QUERIES)) == len(QUERIES) > 80
    assert set(CAUSED) <= set(QUERIES)
    assert {*CAUSED.values(), *FIRED_BY.values()} <= set(FAULTS)


@pytest.mark.parametrize("name", [name for name in QUERIES if name not in CAUSED])
def test_a_panel_shows_data_while_all_is_well(name: str, recording: Recording) -> None:
    assert calm(recording, recording.lines[name])


@pytest.mark.parametrize("name", CAUSED)
def test_a_panel_shows_data_once_its_fault_has_happened(name: str, recording: Recording) -> None:
    fault = recording.fault(CAUSED[name])
    lines = recording.lines[name]
    assert not calm(recording, lines), "it has data without the fault"
    assert list(values(lines, begin=fault.began, end=fault.ended))


@pytest.mark.parametrize("name", RECORDS)
def test_a_rule_records_data_while_all_is_well(name: str, recording: Recording) -> None:
    assert calm(recording, recording.records[name])


@pytest.mark.parametrize("name", FIRED_BY)
def test_an_alert_fires_once_its_fault_has_happened_and_not_before(
    name: str, recording: Recording
) -> None:
    fault = recording.fault(FIRED_BY[name])
    assert not calm(recording, recording.firing[name])
    assert list(values(recording.firing[name], begin=fault.began, end=fault.ended))


def test_all_rules_are_evaluated_without_an_error(recording: Recording) -> None:
    assert {rule["name"] for rule in recording.rules} == {*RECORDS, *FIRED_BY}
    assert [rule for rule in recording.rules if rule["health"] != "ok"] == []


def test_each_epoch_is_a_mark_on_the_jobs_dashboard(recording: Recording) -> None:
    fault = recording.fault(HANGS)
    causes = {line.labels["cause"] for line in recording.marks}
    assert "MemberLost" in causes
    assert list(values(recording.marks, begin=fault.began, end=fault.ended))


def test_every_worker_and_the_operator_are_scraped(recording: Recording) -> None:
    """Once each: no other port, and no pod twice."""
    found = [
        (target["labels"].get("role", "operator"), target["labels"]["namespace"])
        for target in recording.targets
    ]
    workers = [(role, NAMESPACE) for role in ("rollout", "rollout", "trainer")]
    assert sorted(found) == sorted([*workers, ("operator", "rollcall-system")])


def test_the_weight_lag_is_that_of_each_pod(recording: Recording) -> None:
    lines = recording.lines["job/Weight lag of each pod/{{pod}}"]
    pods = {line.labels["pod"] for line in lines}
    assert len(pods) == 3, "two rollouts, and the one that took the place of another"
    assert all(pod.startswith("reverse-cpu-") for pod in pods)
