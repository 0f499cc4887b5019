"""Tables of one search: interned machines, messages and rosters; states hold their numbers."""

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import (
    CoordinatorMessage,
    MemberMessage,
)
from rollcall_protocol.wire.roster import Roster
from tests.unit.rollcall_protocol.model.coordinator_steps import (
    CoordinatorSteps,
    make_roster,
    trainer_uid,
)
from tests.unit.rollcall_protocol.model.member_steps import MemberSteps
from tests.unit.rollcall_protocol.model.search_scopes import SearchScope
from tests.unit.rollcall_protocol.model.state import (
    GroupState,
    Interned,
    RolloutSlot,
    TrainerPod,
)

Message = MemberMessage | CoordinatorMessage


class GroupTables:
    """The tables of a scope: interned parts, messages, rosters."""

    def __init__(self, scope: SearchScope) -> None:
        self.scope = scope
        self.members = MemberSteps()
        self.coordinators = CoordinatorSteps(
            max_staleness=scope.max_staleness, allowed=self.allowed
        )
        self.messages: Interned[Message] = Interned()
        self._rosters: dict[tuple[int, int], Roster] = {}

    def rollouts(self, epoch: int) -> tuple[int, ...]:
        """Rollout pods on the roster of `epoch`, by number."""
        rosters = self.scope.rosters
        return rosters[min(epoch, len(rosters)) - 1]

    def allowed(self, epoch: int) -> frozenset[str]:
        """The same by uid."""
        return frozenset(f"uid-{slot}" for slot in self.rollouts(epoch))

    def roster(self, epoch: int, pod: int) -> Roster:
        """The roster of `epoch`, which names the trainer's `pod`-th pod."""
        if (epoch, pod) not in self._rosters:
            self._rosters[epoch, pod] = make_roster(epoch, pod, self.rollouts(epoch))
        return self._rosters[epoch, pod]

    def number(self, message: Message) -> int:
        """Of a message."""
        return self.messages.number(message, message)

    def initial(self) -> GroupState:
        """Nothing runs but the trainer; no roster is written yet."""
        slots = tuple(RolloutSlot(None, None, (), 0) for _ in range(self.scope.pods))
        trainer = self.new_trainer(0, 1, None)
        return GroupState((trainer,), slots, (), self.scope.faults, self.scope.versions)

    def new_trainer(self, pod: int, boot: int, since_epoch: int | None) -> TrainerPod:
        """A trainer's container that has just started."""
        sender = self.members.start(MemberId(trainer_uid(pod), f"b{boot}"))
        return TrainerPod(self.coordinators.start(pod, boot, since_epoch), True, sender, (), -1)
