"""A pod's role follows from its name and the roster; a lent pool's pods are rollouts as others."""

import pytest

from rollcall_protocol import pod_contract
from rollcall_runtime.worker.identity.roles import ROLES_OF_ROUTE, CallerRole, RoleBook
from rollcall_runtime.worker.identity.token_verifier import Identity

LENT = Identity("team", "lent-5d9f7c6b8-x2x7z", "lent-uid", "system:serviceaccount:team:guest")
BESIDE_THE_TRAINER = (
    "mine-trainer",
    "mine-trainer-2",
    "mine-trainer-00",
    "mine-trainer-0-0",
    "mine-trainer-5d9f7c6b8-x2x7z",
    "not-mine-trainer-0",
)


def test_a_lent_pools_pod_is_registered_until_it_is_on_the_roster_and_then_a_member() -> None:
    roster = set[str]()
    book = RoleBook("mine", 2, is_member=roster.__contains__)
    assert book.role(LENT) is CallerRole.REGISTERED
    roster.add(LENT.pod_uid)
    assert book.role(LENT) is CallerRole.MEMBER


@pytest.mark.parametrize("pod", BESIDE_THE_TRAINER)
def test_no_pool_can_be_named_so_that_its_pods_are_trainer_ranks(pod: str) -> None:
    caller = Identity("team", pod, "lent-uid", LENT.service_account)
    book = RoleBook("mine", 2, is_member=lambda _: True)
    assert (book.role(caller), book.trainer_ordinal(caller)) == (CallerRole.MEMBER, None)


def test_a_member_may_use_its_own_routes_and_none_of_the_job() -> None:
    mine = {route for route, roles in ROLES_OF_ROUTE.items() if CallerRole.MEMBER in roles}
    assert mine == {
        pod_contract.MEMBER_STREAM_ROUTE,
        pod_contract.COMPLETIONS_ROUTE,
        pod_contract.REGISTER_ROUTE,
    }
