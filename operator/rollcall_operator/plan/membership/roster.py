"""Who may be a member, and when that makes a new epoch.

Losses count at once. Newcomers are gathered, so that a scale-up is one epoch.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rollcall_operator.api.labels import GROUP_DEFAULT
from rollcall_operator.plan.failure import describe_exit
from rollcall_operator.plan.job_view import World
from rollcall_protocol.wire.roster import EpochCause, Roster, RosterMember, roster_digest

_PATIENCE = 10
"""A steady trickle of newcomers is let in after so many settle times."""
_NAMED = 4
"""So many pods are named in a message."""

Members = tuple[RosterMember, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """`roster` is what the coordinator should hold (None: leave it alone). `opened`: its epoch is
    new, and `message` says why. `wait`: seconds until gathered newcomers are let in.
    """

    roster: Roster | None = None
    opened: bool = False
    message: str = ""
    first_seen: Mapping[str, float] = field(default_factory=dict)
    wait: float | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """Against the roster in force. `known` is False when the operator has forgotten that one."""

    joined: Members
    lost: Members
    stayed: int
    replaced: bool
    known: bool


def decide(world: World) -> Decision:
    """The roster for now; what was seen before comes with `world.observed.memory`."""
    if world.outcome is not None or world.spec.suspend:
        return Decision()
    members = eligible(world)
    seen_before = world.observed.memory.first_seen
    first_seen = {m.pod_uid: seen_before.get(m.pod_uid, world.now) for m in members}
    if world.coordinator is None:
        return Decision(first_seen=first_seen)
    group, in_force = world.group, _in_force(world)
    if group and group["rosterDigest"] == roster_digest(world.coordinator.uid, members):
        last = EpochCause(group["history"][-1]["cause"])
        same = _roster(world, group["epoch"], last, members)
        return Decision(roster=same, first_seen=first_seen)
    change = _compare(world, in_force, members)
    wait = _wait(world, change, first_seen)
    if wait > 0:
        held = None if change.replaced else in_force
        forever = wait == float("inf")
        return Decision(held, first_seen=first_seen, wait=None if forever else wait)
    cause, message = _explain(world, change, members)
    opened = _roster(world, (group["epoch"] if group else 0) + 1, cause, members)
    return Decision(opened, opened=True, message=message, first_seen=first_seen)


def eligible(world: World) -> Members:
    """Rollout pods that may be members now."""
    return tuple(
        RosterMember(
            pod_uid=pod.uid,
            pod=pod.name,
            address=pod.ip,
            pool=pool.name,
            group=pool.spec.sync_group if pool.spec else GROUP_DEFAULT,
        )
        for pool in world.pools
        for pod in pool.pods
        if pod.ip and pod.running and pod.phase == "Running"
    )


def _roster(world: World, epoch: int, cause: EpochCause, members: Members) -> Roster:
    if world.coordinator is None:
        raise ValueError("a roster needs a coordinator")
    return Roster(
        job_uid=world.uid,
        group=GROUP_DEFAULT,
        epoch=epoch,
        coordinator_uid=world.coordinator.uid,
        cause=cause,
        members=members,
    )


def _in_force(world: World) -> Roster | None:
    """The roster in memory, if it is the one that status tells of."""
    roster, group = world.observed.memory.roster, world.group
    if roster is None or group is None or roster.job_uid != world.uid:
        return None
    same = (roster.epoch, roster.digest) == (group["epoch"], group["rosterDigest"])
    return roster if same else None


def _compare(world: World, in_force: Roster | None, members: Members) -> _Change:
    group = world.group
    before = set(in_force.members) if in_force else set()
    now = set(members)
    coordinator = world.coordinator.uid if world.coordinator else ""
    return _Change(
        joined=tuple(sorted(now - before)),
        lost=tuple(sorted(before - now)),
        stayed=len(now & before),
        replaced=group is not None and group.get("coordinator") != coordinator,
        known=in_force is not None or group is None,
    )


def _wait(world: World, change: _Change, first_seen: Mapping[str, float]) -> float:
    """Seconds until the change makes an epoch: 0 for at once, infinity for "not by itself"."""
    if not change.joined and (change.replaced or world.group is None):
        return 0.0 if change.stayed else float("inf")  # nobody to call the roll for yet
    if not change.known:
        return 0.0  # after a restart of the operator: whatever happened, happened a while ago
    if change.replaced:
        if change.stayed:
            return 0.0
    elif change.lost:
        return 0.0
    if _all_there(world):
        return 0.0
    seen = [first_seen[member.pod_uid] for member in change.joined]
    settle = world.spec.membership.settle_seconds
    due = min(max(seen) + settle, min(seen) + settle * _PATIENCE)
    return max(0.0, due - world.now)


def _all_there(world: World) -> bool:
    here = [member.pool for member in eligible(world)]
    return all(here.count(pool.name) >= pool.wanted for pool in world.pools)


def _explain(world: World, change: _Change, members: Members) -> tuple[EpochCause, str]:
    group = world.group
    parts = []
    if change.joined and change.known:
        parts.append(f"joined: {_names([m.pod for m in change.joined])}")
    if change.lost:
        parts.append(f"lost: {_names([_fate(world, member) for member in change.lost])}")
    if change.replaced and world.coordinator:
        parts.append(f"trainer rank 0 is a new pod on {world.coordinator.node or 'some node'}")
    if not change.known:
        parts.append("found by an operator that has just started")
    return _cause(world, change, len(members), group), "; ".join(parts)


def _cause(
    world: World, change: _Change, count: int, group: Mapping[str, object] | None
) -> EpochCause:
    if group is None:
        return EpochCause.JOB_STARTED
    if change.replaced:
        return EpochCause.COORDINATOR_REPLACED
    if not change.known:
        history = group["history"]
        before = history[-1]["members"] - 1 if isinstance(history, list) and history else 0
        return EpochCause.MEMBERS_JOINED if count > before else EpochCause.MEMBER_LOST
    if not change.lost:
        return EpochCause.MEMBERS_JOINED
    return EpochCause.SCALED_DOWN if _all_scaled_down(world, change) else EpochCause.MEMBER_LOST


def _all_scaled_down(world: World, change: _Change) -> bool:
    """Whether each pool lost no more than it should have fewer."""
    in_force = world.observed.memory.roster
    wanted = {pool.name: pool.wanted for pool in world.pools}
    lost = [member.pool for member in change.lost]
    before = [member.pool for member in in_force.members] if in_force else []
    return all(lost.count(p) <= before.count(p) - wanted.get(p, 0) for p in set(lost))


def _fate(world: World, member: RosterMember) -> str:
    """A lost member's pod and what became of it."""
    pod = next((pod for pod in world.observed.pods if pod.uid == member.pod_uid), None)
    if pod is None:
        return f"{member.pod} (gone)"
    if pod.terminating:
        return f"{member.pod} (being deleted)"
    if pod.exit_code is not None and not pod.running:
        first_line = describe_exit(pod).splitlines()[0]
        return f"{member.pod} ({first_line[:80]})"
    return f"{member.pod} ({pod.waiting_reason or pod.phase})"


def _names(names: Collection[str]) -> str:
    shown = sorted(names)[:_NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
