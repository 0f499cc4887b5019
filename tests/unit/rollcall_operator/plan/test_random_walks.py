"""Random walks: whatever happens to pods, operator and status writes, the invariants hold."""

import copy
import random
from collections.abc import Callable

import pytest

from rollcall_operator.api import labels
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import JobPlan, NodeFacts, ReconcileMemory, Taint
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import JobSimulator, lent_pool, writes_anything

STEPS = 40
NODES = (
    NodeFacts("node", (Taint("karpenter.sh/disrupted"),)),
    NodeFacts("node", lost=True),
)


class Walk:
    """One simulator, one source of chance, and what was promised on the way."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.simulator = JobSimulator()
        self.promised: dict[int, str] = {}

    def step(self) -> None:
        """Something happens, and the operator looks, or not, or dies half-way."""
        self.chance.choice(self._events())()
        self.simulator.schedule()
        for pod in list(self.simulator.pods.values()):
            if self.chance.random() < 0.5 and not pod.terminating:
                self.simulator.run(pod)
        if self.chance.random() < 0.2:
            self._lost_write()
        else:
            before = dict(self.simulator.pods)
            plan = self.simulator.reconcile(self.chance.choice([0.0, 0.1, 0.6, 3.0, 20.0]))
            for removal in plan.pod_deletions:
                pod = before[removal.uid]
                lost = pod.terminating and pod.node in self.simulator.nodes
                assert removal.force == (pod.role == labels.TRAINER)
                assert lost if removal.force else not pod.terminating
            self._check_costs(plan)
            if plan.roster is not None:
                self._check_promise(plan.roster.epoch, plan.roster.digest)
        self._check_status()

    def _check_costs(self, plan: JobPlan) -> None:
        lowered = {b["metadata"]["name"] for b in plan.applies if b["kind"] == "Deployment"}
        assert {self.simulator.pods[cost.uid].pool for cost in plan.costs} <= lowered

    def settle(self) -> None:
        """The faults stop: all pods run, all rollouts are in sync."""
        self.simulator.nodes.clear()
        self.simulator.edit({"spec.suspend": False})
        self.simulator.pools["bad-cpu"]["spec"].setdefault("replicas", 2)
        if self.simulator.pools["bad-cpu"]["spec"]["replicas"] == 0:
            self.simulator.scale("bad-cpu", 1)
        for pod in list(self.simulator.pods.values()):
            if pod.terminating:
                del self.simulator.pods[pod.uid]
        for _ in range(6):
            self.simulator.schedule()
            self.simulator.run()
            self.simulator.converge(2)
            if self.simulator.roster is not None:
                self.simulator.report(step=200)
            self.simulator.converge(20)

    def _events(self) -> list[Callable[[], object]]:
        simulator, chance = self.simulator, self.chance
        pods = list(simulator.pods.values())
        events: list[Callable[[], object]] = [lambda: None]
        if pods:
            pod = chance.choice(pods)
            events += [
                lambda: simulator.change(pod, terminating=True, leaves_by=simulator.now + 5),
                lambda: simulator.change(pod, node="node"),
                lambda: simulator.nodes.update(node=chance.choice(NODES)),
                simulator.nodes.clear,
                lambda: simulator.pods.pop(pod.uid),
                lambda: simulator.change(pod, running=False, exit_code=1),
                lambda: simulator.change(pod, waiting_reason="ImagePullBackOff"),
            ]
        if "bad-cpu" in simulator.pools:
            events.append(lambda: simulator.scale("bad-cpu", chance.randrange(5)))
        if simulator.roster is not None:
            uids = [member.pod_uid for member in simulator.roster.members]
            states = {uid: chance.choice(list(MemberState)) for uid in uids}
            events += [simulator.report, lambda: simulator.report(states=states)]
        events += [
            lambda: setattr(simulator, "memory", ReconcileMemory()),
            lambda: setattr(simulator, "snapshot", None),
            lambda: simulator.delete_pool("lent"),
            lambda: simulator.pools.setdefault("lent", lent_pool()),
            lambda: simulator.edit({"spec.suspend": chance.random() < 0.3}),
        ]
        return events

    def _lost_write(self) -> None:
        """The operator was killed before its status write, or the write met a conflict."""
        job, memory = copy.deepcopy(self.simulator.job), self.simulator.memory
        roster = self.simulator.roster
        self.simulator.reconcile(0.1)
        self.simulator.job, self.simulator.memory, self.simulator.roster = job, memory, roster

    def _check_promise(self, epoch: int, digest: str) -> None:
        assert self.promised.setdefault(epoch, digest) == digest, "one roster for an epoch"
        assert epoch == max(self.promised), "epochs do not go back"
        group = self.simulator.status["syncGroups"][0]
        assert (group["epoch"], group["rosterDigest"]) == (epoch, digest), "in status first"

    def _check_status(self) -> None:
        observed = self.simulator.observed()
        assert make_plan(observed) == make_plan(observed), "planning is pure"


@pytest.mark.parametrize("seed", range(10))
def test_invariants_hold_on_a_random_walk_and_the_world_converges(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
    walk.settle()
    simulator = walk.simulator
    assert simulator.status["phase"] == "Running", simulator.status
    assert simulator.roster is not None
    running = {pod.uid for pod in simulator.pods.values() if pod.role == "rollout"}
    assert {member.pod_uid for member in simulator.roster.members} == running
    assert not any(writes_anything(simulator.reconcile(60)) for _ in range(3))
