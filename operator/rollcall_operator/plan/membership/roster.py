"""Who may be a member, and when that makes a new epoch.

Losses count at once. Newcomers are gathered, so that a scale-up is one epoch.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rollcall_operator.api.labels import GROUP_DEFAULT
from rollcall_operator.plan.failure import describe_exit
from rollcall_operator.plan.job_view import JobView
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


def decide(view: JobView) -> Decision:
    """The roster for now; what was seen before comes with `view.observed.memory`."""
    if view.outcome is not None or view.spec.suspend:
        return Decision()
    members = eligible(view)
    seen_before = view.observed.memory.first_seen
    first_seen = {m.pod_uid: seen_before.get(m.pod_uid, view.now) for m in members}
    if view.coordinator is None:
        return Decision(first_seen=first_seen)
    group, in_force = view.group, _in_force(view)
    if group and group["rosterDigest"] == roster_digest(view.coordinator.uid, members):
        last = EpochCause(group["history"][-1]["cause"])
        same = _roster(view, group["epoch"], last, members)
        return Decision(roster=same, first_seen=first_seen)
    change = _compare(view, in_force, members)
    wait = _wait(view, change, first_seen)
    if wait > 0:
        held = None if change.replaced else in_force
        forever = wait == float("inf")
        return Decision(held, first_seen=first_seen, wait=None if forever else wait)
    cause, message = _explain(view, change, members)
    opened = _roster(view, (group["epoch"] if group else 0) + 1, cause, members)
    return Decision(opened, opened=True, message=message, first_seen=first_seen)


def eligible(view: JobView) -> Members:
    """Rollout pods that may be members now."""
    return tuple(
        RosterMember(
            pod_uid=pod.uid,
            pod=pod.name,
            address=pod.ip,
            pool=pool.name,
            group=pool.spec.sync_group if pool.spec else GROUP_DEFAULT,
        )
        for pool in view.pools
        for pod in pool.pods
        if pod.ip and pod.running and pod.phase == "Running"
    )


def _roster(view: JobView, epoch: int, cause: EpochCause, members: Members) -> Roster:
    if view.coordinator is None:
        raise ValueError("a roster needs a coordinator")
    return Roster(
        job_uid=view.uid,
        group=GROUP_DEFAULT,
        epoch=epoch,
        coordinator_uid=view.coordinator.uid,
        cause=cause,
        members=members,
    )


def _in_force(view: JobView) -> Roster | None:
    """The roster in memory, if it is the one that status tells of."""
    roster, group = view.observed.memory.roster, view.group
    if roster is None or group is None or roster.job_uid != view.uid:
        return None
    same = (roster.epoch, roster.digest) == (group["epoch"], group["rosterDigest"])
    return roster if same else None


def _compare(view: JobView, in_force: Roster | None, members: Members) -> _Change:
    group = view.group
    before = set(in_force.members) if in_force else set()
    now = set(members)
    coordinator = view.coordinator.uid if view.coordinator else ""
    return _Change(
        joined=tuple(sorted(now - before)),
        lost=tuple(sorted(before - now)),
        stayed=len(now & before),
        replaced=group is not None and group.get("coordinator") != coordinator,
        known=in_force is not None or group is None,
    )


def _wait(view: JobView, change: _Change, first_seen: Mapping[str, float]) -> float:
    """Seconds until the change makes an epoch: 0 for at once, infinity for "not by itself"."""
    if not change.joined and (change.replaced or view.group is None):
        return 0.0 if change.stayed else float("inf")  # nobody to call the roll for yet
    if not change.known:
        return 0.0  # after a restart of the operator: whatever happened, happened a while ago
    if change.replaced:
        if change.stayed:
            return 0.0
    elif change.lost:
        return 0.0
    if _all_there(view):
        return 0.0
    seen = [first_seen[member.pod_uid] for member in change.joined]
    settle = view.spec.membership.settle_seconds
    due = min(max(seen) + settle, min(seen) + settle * _PATIENCE)
    return max(0.0, due - view.now)


def _all_there(view: JobView) -> bool:
    here = [member.pool for member in eligible(view)]
    return all(here.count(pool.name) >= pool.wanted for pool in view.pools)


def _explain(view: JobView, change: _Change, members: Members) -> tuple[EpochCause, str]:
    group = view.group
    parts = []
    if change.joined and change.known:
        parts.append(f"joined: {_names([m.pod for m in change.joined])}")
    if change.lost:
        parts.append(f"lost: {_names([_fate(view, member) for member in change.lost])}")
    if change.replaced and view.coordinator:
        parts.append(f"trainer rank 0 is a new pod on {view.coordinator.node or 'some node'}")
    if not change.known:
        parts.append("found by an operator that has just started")
    return _cause(view, change, len(members), group), "; ".join(parts)


def _cause(
    view: JobView, change: _Change, count: int, group: Mapping[str, object] | None
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
    return EpochCause.SCALED_DOWN if _all_scaled_down(view, change) else EpochCause.MEMBER_LOST


def _all_scaled_down(view: JobView, change: _Change) -> bool:
    """Whether each pool lost no more than it should have fewer."""
    in_force = view.observed.memory.roster
    wanted = {pool.name: pool.wanted for pool in view.pools}
    lost = [member.pool for member in change.lost]
    before = [member.pool for member in in_force.members] if in_force else []
    return all(lost.count(p) <= before.count(p) - wanted.get(p, 0) for p in set(lost))


def _fate(view: JobView, member: RosterMember) -> str:
    """A lost member's pod and what became of it."""
    pod = next((pod for pod in view.observed.pods if pod.uid == member.pod_uid), None)
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
