"""What each role may do: one table of every route, and who has which role.

| role | who |
|---|---|
| operator | the operator's service account, wherever it runs |
| trainer rank | a pod of the trainer's StatefulSet, by name |
| member | a rollout on the roster, or one that left it and still holds prompts that it was leased |
| front | a pod of the front's StatefulSet, by name |
| registered | another pod of the namespace with a token for this job, such as a newcomer's |
| itself | the pod that listens |
| ticket holder | a newcomer with the coordinator's ticket for a version, or a front with that for a
rollout's generation endpoint (`sync.weights.tickets`) |
| unauthenticated | everybody else |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol import pod_contract
from rollcall_runtime.worker.identity.token_verifier import Identity


class CallerRole(StrEnum):
    """What a caller is to the one that it calls."""

    OPERATOR = "operator"
    TRAINER_RANK = "trainer rank"
    MEMBER = "member"
    FRONT = "front"
    REGISTERED = "registered"
    ITSELF = "itself"
    TICKET_HOLDER = "ticket holder"
    UNAUTHENTICATED = "unauthenticated"


RENDEZVOUS = "rendezvous"
"""Stands for RENDEZVOUS_PORT of trainer rank 0, where the other ranks meet it; no route."""

_POD_ROLES = frozenset({CallerRole.MEMBER, CallerRole.REGISTERED, CallerRole.TRAINER_RANK})

ROLES_OF_ROUTE: Mapping[str, frozenset[CallerRole]] = {
    pod_contract.ROSTER_ROUTE: frozenset({CallerRole.OPERATOR}),
    pod_contract.OPERATOR_STREAM_ROUTE: frozenset({CallerRole.OPERATOR}),
    pod_contract.MEMBER_STREAM_ROUTE: _POD_ROLES,
    pod_contract.COMPLETIONS_ROUTE: frozenset({CallerRole.MEMBER}),
    pod_contract.GANG_ROUTE: frozenset({CallerRole.TRAINER_RANK}),
    RENDEZVOUS: frozenset({CallerRole.TRAINER_RANK}),
    pod_contract.LOGPROBS_ROUTE: frozenset({CallerRole.TRAINER_RANK}),
    pod_contract.DRAIN_ROUTE: frozenset({CallerRole.OPERATOR, CallerRole.ITSELF}),
    pod_contract.WEIGHTS_ROUTE: frozenset({CallerRole.TICKET_HOLDER}),
    pod_contract.GENERATE_ROUTE: frozenset({CallerRole.TICKET_HOLDER}),
    pod_contract.FRONT_STREAM_ROUTE: frozenset({CallerRole.FRONT}),
    pod_contract.TRAJECTORIES_ROUTE: frozenset({CallerRole.FRONT}),
    pod_contract.TURNS_ROUTE: frozenset({CallerRole.FRONT}),
    # Harmless: the member looks up its coordinator, and opens a stream to nothing else.
    pod_contract.REGISTER_ROUTE: frozenset(CallerRole),
}


@dataclass(frozen=True, slots=True)
class RoleBook:
    """Who has which role, as one listener of `job` sees it.

    `is_member` says whether the pod of a uid is a member; `own_pod_uid` is the listener's, where
    that is a role of its own; `has_front`: the job has a front.
    """

    job: str
    trainer_replicas: int
    is_member: Callable[[str], bool] = lambda _: False
    own_pod_uid: str = ""
    has_front: bool = False

    def role(self, identity: Identity) -> CallerRole:
        """The first role of the table above that fits."""
        if identity.is_operator:
            return CallerRole.OPERATOR
        if self.own_pod_uid and identity.pod_uid == self.own_pod_uid:
            return CallerRole.ITSELF
        if self.trainer_ordinal(identity) is not None:
            return CallerRole.TRAINER_RANK
        if self.has_front and self._is_front(identity.pod):
            return CallerRole.FRONT
        return CallerRole.MEMBER if self.is_member(identity.pod_uid) else CallerRole.REGISTERED

    def trainer_ordinal(self, identity: Identity) -> int | None:
        """Which pod of the trainer the bearer is; None if it is none."""
        pods = (pod_contract.trainer_pod(self.job, i) for i in range(self.trainer_replicas))
        return next((i for i, pod in enumerate(pods) if pod == identity.pod), None)

    def _is_front(self, pod: str) -> bool:
        ordinal = pod.removeprefix(pod_contract.front_pod(self.job, 0).removesuffix("0"))
        return ordinal.isdecimal() and pod == pod_contract.front_pod(self.job, int(ordinal))
