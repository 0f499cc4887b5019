"""Who is on the roster, and when a change of it opens a new epoch.

| change against the roster in force | opens an epoch |
|---|---|
| no pod is eligible, and there is no epoch yet or the coordinator was replaced | never by itself |
| unknown, as the operator restarted and forgot that roster | at once |
| the coordinator was replaced, and members of that roster are still eligible | at once |
| a member was lost, and the coordinator is the same | at once |
| pods joined, and all pools have all their pods | at once |
| pods joined | `settleSeconds` after the last, at most 10 times that after the first |

Waiting gathers newcomers, so that a scale-up is one epoch. Losses never wait.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rollcall_operator.api.labels import GROUP_DEFAULT
from rollcall_operator.api.status import SyncGroupStatus
from rollcall_operator.plan.failure import describe_exit
from rollcall_operator.plan.job_view import JobView, PoolView
from rollcall_operator.plan.model import PodFacts
from rollcall_protocol.wire.roster import EpochCause, Roster, RosterMember, roster_digest

_LONGEST_WAIT = 10
"""Newcomers that keep coming are let in after so many settle times."""
_NAMED_PODS = 4
_LONGEST_EXIT = 120

Members = tuple[RosterMember, ...]


@dataclass(frozen=True, slots=True)
class RosterDecision:
    """`roster` is what the coordinator should hold; None leaves it unchanged. `opened`: its epoch
    is new, and `message` says why. `first_seen`: see `ReconcileMemory`. `wait`: seconds until
    gathered newcomers are let in.
    """

    roster: Roster | None = None
    opened: bool = False
    message: str = ""
    first_seen: Mapping[str, float] = field(default_factory=dict)
    wait: float | None = None


@dataclass(frozen=True, slots=True)
class _RosterChange:
    """The eligible pods against the roster in force.

    `first`: there is no epoch yet. `replaced`: another pod is the coordinator. `known` is False
    when the operator has forgotten the roster in force.
    """

    joined: Members
    lost: Members
    stayed: int
    first: bool
    replaced: bool
    known: bool


def decide_roster(view: JobView) -> RosterDecision:
    """The roster that the coordinator should hold at `view.now`."""
    if view.stopped:
        return RosterDecision()
    now, group, memory = view.now, view.group, view.observed.memory
    members = eligible(view.pools)
    first_seen = {m.pod_uid: memory.first_seen.get(m.pod_uid, now) for m in members}
    coordinator = view.coordinator
    if coordinator is None:
        return RosterDecision(first_seen=first_seen)

    def roster(epoch: int, cause: EpochCause) -> Roster:
        return Roster(
            job_uid=view.uid,
            group=GROUP_DEFAULT,
            epoch=epoch,
            coordinator_uid=coordinator.uid,
            cause=cause,
            members=members,
        )

    if group and group.roster_digest == roster_digest(coordinator.uid, members):
        same = roster(group.epoch, EpochCause(group.history[-1].cause))
        return RosterDecision(same, first_seen=first_seen)
    in_force = _in_force(memory.roster, group, view.uid)
    change = _compare(in_force, members, group, coordinator.uid)
    due = _epoch_due(
        change,
        first_seen,
        complete=_pools_are_complete(view.pools, members),
        settle=view.spec.membership.settle_seconds,
        now=now,
    )
    if due is None or due > now:
        held = None if change.replaced else in_force
        wait = None if due is None else due - now
        return RosterDecision(held, first_seen=first_seen, wait=wait)
    opened = roster((group.epoch if group else 0) + 1, _cause(change, group, in_force, view.pools))
    message = _describe(change, coordinator, view.observed.pods)
    return RosterDecision(opened, opened=True, message=message, first_seen=first_seen)


def eligible(pools: Iterable[PoolView]) -> Members:
    """Rollout pods that may be members now."""
    return tuple(
        RosterMember(
            pod_uid=pod.uid,
            pod=pod.name,
            address=pod.ip,
            pool=pool.name,
            group=pool.spec.sync_group if pool.spec else GROUP_DEFAULT,
        )
        for pool in pools
        for pod in pool.pods
        if pod.ip and pod.running and pod.phase == "Running"
    )


def _in_force(roster: Roster | None, group: SyncGroupStatus | None, uid: str) -> Roster | None:
    """The roster in memory, if it is the one that status names."""
    if roster is None or group is None or roster.job_uid != uid:
        return None
    same = (roster.epoch, roster.digest) == (group.epoch, group.roster_digest)
    return roster if same else None


def _compare(
    in_force: Roster | None, members: Members, group: SyncGroupStatus | None, coordinator: str
) -> _RosterChange:
    before = set(in_force.members) if in_force else set()
    now = set(members)
    return _RosterChange(
        joined=tuple(sorted(now - before)),
        lost=tuple(sorted(before - now)),
        stayed=len(now & before),
        first=group is None,
        replaced=group is not None and group.coordinator != coordinator,
        known=in_force is not None or group is None,
    )


def _epoch_due(
    change: _RosterChange,
    first_seen: Mapping[str, float],
    *,
    complete: bool,
    settle: float,
    now: float,
) -> float | None:
    """When (Unix seconds) the change opens an epoch, by the table at the top; None: never.

    `complete`: all pools have all their pods. `settle`: `spec.membership.settleSeconds`.
    """
    empty = not change.joined and not change.stayed
    if empty and (change.replaced or change.first):
        return None
    at_once = (
        not change.known
        or (change.replaced and change.stayed > 0)
        or (bool(change.lost) and not change.replaced)
        or complete
    )
    if at_once:
        return now
    seen = [first_seen[member.pod_uid] for member in change.joined]
    return min(max(seen) + settle, min(seen) + settle * _LONGEST_WAIT)


def _pools_are_complete(pools: Iterable[PoolView], members: Members) -> bool:
    here = [member.pool for member in members]
    return all(here.count(pool.name) >= pool.wanted for pool in pools)


def _describe(change: _RosterChange, coordinator: PodFacts, pods: Collection[PodFacts]) -> str:
    """Who joined and who was lost, for the epoch's record and event."""
    parts = []
    if change.joined and change.known:
        parts.append(f"joined: {_names([m.pod for m in change.joined])}")
    if change.lost:
        parts.append(f"lost: {_names([_fate(member, pods) for member in change.lost])}")
    if change.replaced:
        node = coordinator.node or "an unknown node"
        parts.append(f"the coordinator is a new pod, {coordinator.name} on {node}")
    if not change.known:
        parts.append("the operator restarted and compared the roster with the running pods")
    return "; ".join(parts)


def _cause(
    change: _RosterChange,
    group: SyncGroupStatus | None,
    in_force: Roster | None,
    pools: Iterable[PoolView],
) -> EpochCause:
    if group is None:
        return EpochCause.JOB_STARTED
    if change.replaced:
        return EpochCause.COORDINATOR_REPLACED
    if in_force is None:
        grew = len(change.joined) > _members_before(group)
        return EpochCause.MEMBERS_JOINED if grew else EpochCause.MEMBER_LOST
    if not change.lost:
        return EpochCause.MEMBERS_JOINED
    scaled_down = _all_scaled_down(change.lost, in_force, pools)
    return EpochCause.SCALED_DOWN if scaled_down else EpochCause.MEMBER_LOST


def _members_before(group: SyncGroupStatus) -> int:
    """Rollouts on the last roster; its record counts the trainer too."""
    return group.history[-1].members - 1 if group.history else 0


def _all_scaled_down(lost: Members, in_force: Roster, pools: Iterable[PoolView]) -> bool:
    """Whether each pool lost no more members than its replicas were lowered by."""
    wanted = {pool.name: pool.wanted for pool in pools}
    gone = [member.pool for member in lost]
    before = [member.pool for member in in_force.members]
    return all(gone.count(p) <= before.count(p) - wanted.get(p, 0) for p in set(gone))


def _fate(member: RosterMember, pods: Iterable[PodFacts]) -> str:
    """A lost member's pod and what happened to it."""
    pod = next((pod for pod in pods if pod.uid == member.pod_uid), None)
    if pod is None:
        return f"{member.pod} (deleted)"
    if pod.terminating:
        return f"{member.pod} (terminating)"
    if pod.exit_code is not None and not pod.running:
        return f"{member.pod} ({describe_exit(pod)[:_LONGEST_EXIT]})"
    return f"{member.pod} ({pod.waiting_reason or pod.phase})"


def _names(names: Collection[str]) -> str:
    shown = sorted(names)[:_NAMED_PODS]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
