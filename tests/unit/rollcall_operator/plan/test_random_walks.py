"""Random walks: whatever happens to pods, operator and status writes, the invariants hold."""

import copy
import random
from collections.abc import Callable

import pytest

from rollcall_operator.api import labels
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import Memory, NodeFacts, Plan, Taint
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import Stage, lent_pool

STEPS = 40
NODES = (
    NodeFacts("node", (Taint("karpenter.sh/disrupted"),)),
    NodeFacts("node", lost=True),
)


class Walk:
    """One stage, one source of chance, and what was promised on the way."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.stage = Stage()
        self.promised: dict[int, str] = {}

    def step(self) -> None:
        """Something happens, and the operator looks, or not, or dies half-way."""
        self.chance.choice(self._events())()
        self.stage.schedule()
        for pod in list(self.stage.pods.values()):
            if self.chance.random() < 0.5 and not pod.terminating:
                self.stage.run(pod)
        if self.chance.random() < 0.2:
            self._lost_write()
        else:
            before = dict(self.stage.pods)
            plan = self.stage.reconcile(self.chance.choice([0.0, 0.1, 0.6, 3.0, 20.0]))
            for removal in plan.removals:
                pod = before[removal.uid]
                lost = pod.terminating and pod.node in self.stage.nodes
                assert removal.force == (pod.role == labels.TRAINER)
                assert lost if removal.force else not pod.terminating
            self._check_costs(plan)
            if plan.roster is not None:
                self._check_promise(plan.roster.epoch, plan.roster.digest)
        self._check_status()

    def _check_costs(self, plan: Plan) -> None:
        lowered = {b["metadata"]["name"] for b in plan.applies if b["kind"] == "Deployment"}
        assert {self.stage.pods[cost.uid].pool for cost in plan.costs} <= lowered

    def settle(self) -> None:
        """The faults stop: all pods run, everybody is in sync."""
        self.stage.nodes.clear()
        self.stage.edit({"spec.suspend": False})
        self.stage.pools["bad-cpu"]["spec"].setdefault("replicas", 2)
        if self.stage.pools["bad-cpu"]["spec"]["replicas"] == 0:
            self.stage.scale("bad-cpu", 1)
        for pod in list(self.stage.pods.values()):
            if pod.terminating:
                del self.stage.pods[pod.uid]
        for _ in range(6):
            self.stage.schedule()
            self.stage.run()
            self.stage.converge(2)
            if self.stage.roster is not None:
                self.stage.report(step=200)
            self.stage.converge(20)

    def _events(self) -> list[Callable[[], object]]:
        stage, chance = self.stage, self.chance
        pods = list(stage.pods.values())
        events: list[Callable[[], object]] = [lambda: None]
        if pods:
            pod = chance.choice(pods)
            events += [
                lambda: stage.change(pod, terminating=True, leaves_by=stage.now + 5),
                lambda: stage.change(pod, node="node"),
                lambda: stage.nodes.update(node=chance.choice(NODES)),
                stage.nodes.clear,
                lambda: stage.pods.pop(pod.uid),
                lambda: stage.change(pod, running=False, exit_code=1),
                lambda: stage.change(pod, waiting_reason="ImagePullBackOff"),
            ]
        if "bad-cpu" in stage.pools:
            events.append(lambda: stage.scale("bad-cpu", chance.randrange(5)))
        if stage.roster is not None:
            uids = [member.pod_uid for member in stage.roster.members]
            states = {uid: chance.choice(list(MemberState)) for uid in uids}
            events += [stage.report, lambda: stage.report(states=states)]
        events += [
            lambda: setattr(stage, "memory", Memory()),
            lambda: setattr(stage, "snapshot", None),
            lambda: stage.delete_pool("lent"),
            lambda: stage.pools.setdefault("lent", lent_pool()),
            lambda: stage.edit({"spec.suspend": chance.random() < 0.3}),
        ]
        return events

    def _lost_write(self) -> None:
        """The operator was killed before its status write, or the write met a conflict."""
        job, memory = copy.deepcopy(self.stage.job), self.stage.memory
        roster = self.stage.roster
        self.stage.reconcile(0.1)
        self.stage.job, self.stage.memory, self.stage.roster = job, memory, roster

    def _check_promise(self, epoch: int, digest: str) -> None:
        assert self.promised.setdefault(epoch, digest) == digest, "one roster for an epoch"
        assert epoch == max(self.promised), "epochs do not go back"
        group = self.stage.status["syncGroups"][0]
        assert (group["epoch"], group["rosterDigest"]) == (epoch, digest), "in status first"

    def _check_status(self) -> None:
        observed = self.stage.observed()
        assert make_plan(observed) == make_plan(observed), "planning is pure"


@pytest.mark.parametrize("seed", range(10))
def test_invariants_hold_on_a_random_walk_and_the_world_converges(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
    walk.settle()
    stage = walk.stage
    assert stage.status["phase"] == "Running", stage.status
    assert stage.roster is not None
    running = {pod.uid for pod in stage.pods.values() if pod.role == "rollout"}
    assert {member.pod_uid for member in stage.roster.members} == running
    assert all(stage.reconcile(60).writes_nothing for _ in range(3))
