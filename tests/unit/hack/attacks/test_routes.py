"""The attacker knows every endpoint of the workers."""

from hack.attacks.routes import ROUTES
from rollcall_protocol import pod_contract
from rollcall_runtime.worker.identity.roles import RENDEZVOUS, ROLES_OF_ROUTE


def test_every_route_is_attacked() -> None:
    known = {route.path.partition("?")[0] for route in ROUTES}
    open_to_all, no_route = pod_contract.REGISTER_ROUTE, RENDEZVOUS
    assert known == set(ROLES_OF_ROUTE) - {open_to_all, no_route}
