"""Two sync groups in one job, bridged at a trainer of two ranks that both send."""

from pathlib import Path

from rollcall_protocol.job_config import EngineRef, GroupConfig
from rollcall_protocol.wire.job_snapshot import MemberState
from rollcall_protocol.wire.roster import EpochCause
from tests.process.harness import FAST, WHOLE_TRAINING, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = WHOLE_TRAINING

STEPS = 25
OTHER = GroupConfig("other-vendor", EngineRef("gloo", {"operationTimeout": 3}))


async def test_rollouts_of_both_groups_learn_from_one_trainer(tmp_path: Path) -> None:
    config = job_config(
        algorithm={"max_steps": STEPS},
        membership=FAST,
        trainer_replicas=2,
        weight_sync={"groups": (OTHER,)},
    )
    async with LocalJob(tmp_path, config) as job:
        other = await job.launch(group=OTHER.name)
        await job.start(rollouts=1)
        await job.operator.until(
            lambda s: [m.state for m in s.members] == [MemberState.IN_SYNC] * 2, seconds=60
        )
        before = job.operator.last.session
        late = await job.launch(group=OTHER.name)
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        seen = await job.operator.until(
            lambda s: [m.state for m in s.members] == [MemberState.IN_SYNC] * 3, seconds=60
        )
        assert seen.snapshot.session == before, "the default group was left alone"
        _, group = seen.snapshot.groups
        assert (group.name, group.epoch) == (OTHER.name, 2)
        assert group.session is not None
        assert group.session.members == 3
        seen = await job.finished()
        assert {m.version for m in seen.snapshot.members} == {STEPS}
        for pod in (job.rollouts[1], other, late):
            assert (await pod.metrics())["weight_version"] == STEPS
