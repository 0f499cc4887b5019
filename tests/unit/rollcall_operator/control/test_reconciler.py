"""One reconcile: an epoch is in status before its roster goes out, and only then remembered."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.control.job_reader import BehindError
from rollcall_operator.control.node_watch import NodeWatch
from rollcall_operator.control.reconciler import JobState, Reconciler
from rollcall_operator.control.work_queue import RetryError
from rollcall_operator.kube.errors import ConflictError
from rollcall_operator.plan.model import JobKey, JobPlan, ObservedJob, PolicyPeers, ReconcileMemory
from rollcall_operator.telemetry.metrics import OperatorMetrics
from rollcall_protocol.wire.roster import Roster
from tests.unit.rollcall_operator.plan.simulator import JOB, NAMESPACE, TRUST, JobSimulator

if TYPE_CHECKING:
    from rollcall_operator.control.apply import Applier
    from rollcall_operator.control.coordinator_link import CoordinatorLink
    from rollcall_operator.control.job_certificates import JobCertificates
    from rollcall_operator.control.job_reader import JobReader
    from rollcall_operator.control.operator_tokens import OperatorTokens
    from rollcall_operator.control.own_writes import OwnWrites
    from rollcall_operator.control.trust_keys import TrustKeys
    from rollcall_operator.kube.pod_dialer import PodDialer

KEY = (NAMESPACE, JOB)


class Calls:
    """Stands in for reader, applier and link: records what is called, in its order."""

    snapshot = facts = None

    def __init__(self, observed: ObservedJob) -> None:
        self.observed = observed
        self.made: list[str] = []
        self.roster: Roster | None = None
        self.conflict = False
        self.behind = False

    async def read(self, _key: JobKey) -> ObservedJob:
        if self.behind:
            raise BehindError(0.4)
        return self.observed

    def writing(self, _key: JobKey) -> AbstractContextManager[None]:
        return nullcontext()

    def doubt(self, _key: JobKey) -> None:
        self.made.append("doubt")

    async def write_objects(self, _observed: ObservedJob, plan: JobPlan) -> dict[str, str]:
        self.made.append("status with an epoch" if plan.epoch_change else "objects")
        if self.conflict:
            raise ConflictError(status=409, reason="Conflict", message="", what="patch_status")
        return {}

    async def write_pods_and_pools(self, *_: Any) -> None:
        self.made.append("pods")

    def set_roster(self, roster: Roster | None) -> None:
        self.made.append("roster")
        self.roster = roster

    async def make(self, _: ObservedJob) -> str:
        return ""

    authority = ""

    async def retry_refused(self, _key: JobKey) -> None: ...

    def refusals(self, _key: JobKey) -> dict[str, Any]:
        return {}

    def next_reconcile(self, *_: Any) -> None: ...

    def forget(self, key: JobKey | str) -> None:
        if not isinstance(key, str):  # else a job's token
            self.made.append("forget refusals")

    def serves(self, *_: Any) -> bool:
        return True

    def retry_now(self) -> None: ...

    async def close(self) -> None: ...


def about_to_open_an_epoch() -> ObservedJob:
    """All pods run, and no epoch was opened yet."""
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    simulator.run()
    return simulator.observed()


def reconciler_of(calls: Calls) -> tuple[Reconciler, JobState]:
    made = Reconciler(
        reader=cast("JobReader", calls),
        applier=cast("Applier", calls),
        writes=cast("OwnWrites", calls),
        nodes=NodeWatch(taints=(), enqueue=lambda _: None),
        dialer=cast("PodDialer", None),
        tokens=cast("OperatorTokens", calls),
        keys=cast("TrustKeys", SimpleNamespace(current=TRUST)),
        certificates=cast("JobCertificates", calls),
        policy_peers=PolicyPeers(),
        worker_user=None,
        metrics=OperatorMetrics(),
        enqueue=lambda _key, _delay: None,
    )
    state = JobState(uid=calls.observed.job_uid, link=cast("CoordinatorLink", calls))
    made._states[KEY] = state
    return made, state


async def test_the_roster_goes_out_after_its_epoch_is_in_status() -> None:
    calls = Calls(about_to_open_an_epoch())
    reconciler, state = reconciler_of(calls)
    await reconciler(KEY)
    assert calls.made == ["status with an epoch", "roster", "pods"]
    assert calls.roster is not None
    assert state.memory.roster == calls.roster


async def test_after_a_lost_race_for_the_epoch_nothing_is_handed_out_nor_remembered() -> None:
    calls = Calls(about_to_open_an_epoch())
    calls.conflict = True
    reconciler, state = reconciler_of(calls)
    with pytest.raises(RetryError):
        await reconciler(KEY)
    assert calls.made == ["status with an epoch", "doubt"]
    assert state.memory == ReconcileMemory()


async def test_nothing_is_planned_while_the_store_is_behind_the_last_deletions() -> None:
    calls = Calls(about_to_open_an_epoch())
    calls.behind = True
    reconciler, _ = reconciler_of(calls)
    assert await reconciler(KEY) == 0.4
    assert calls.made == []


async def test_another_job_of_the_same_name_starts_with_an_empty_memory() -> None:
    calls = Calls(about_to_open_an_epoch())
    reconciler, state = reconciler_of(calls)
    await reconciler(KEY)
    assert state.memory.roster is not None
    calls.made.clear()
    calls.conflict = True  # so that what the plan remembers is not kept
    job = dict(calls.observed.job or {})
    job["metadata"] = job["metadata"] | {"uid": "another"}
    calls.observed = replace(calls.observed, job=job)
    with pytest.raises(RetryError):
        await reconciler(KEY)
    assert state.memory == ReconcileMemory()
    assert calls.made[0] == "forget refusals"


async def test_what_all_jobs_depend_on_has_each_of_them_reconciled() -> None:
    calls = Calls(about_to_open_an_epoch())
    reconciler, _ = reconciler_of(calls)
    reconciler._states[("ns", "other")] = JobState()
    asked: list[JobKey] = []
    reconciler._enqueue = lambda key, _delay: asked.append(key)
    reconciler.reconcile_all()
    assert set(asked) == {KEY, ("ns", "other")}


@pytest.mark.parametrize(("links", "seconds"), [(1, 10.0), (50, 10.0), (500, 100.0)])
async def test_with_many_jobs_that_train_steps_are_written_less_often(
    links: int, seconds: float
) -> None:
    reconciler, _ = reconciler_of(Calls(about_to_open_an_epoch()))
    reconciler._links = links
    assert reconciler._numbers_every(JobState(pace=1.0)) == seconds


async def test_steps_of_many_jobs_are_not_written_all_at_once() -> None:
    reconciler, _ = reconciler_of(Calls(about_to_open_an_epoch()))
    reconciler._links = 500
    every = [reconciler._numbers_every(JobState()) for _ in range(200)]
    assert 75.0 <= min(every) < 85.0
    assert 115.0 < max(every) <= 125.0
    reconciler._links = 5
    assert reconciler._numbers_every(JobState()) == 10.0, "few jobs are written as often as ever"
