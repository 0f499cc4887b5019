"""Who may use the routes of a supervised trainer: every pair of a route and a role."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from rollcall_plugins.trainers.supervised import app as supervised_app
from rollcall_protocol import pod_contract
from rollcall_runtime.worker.identity.roles import CallerRole
from rollcall_runtime.worker.telemetry import TrainerMetrics
from tests.unit.rollcall_runtime.credentials import bearer
from tests.unit.rollcall_runtime.worker.test_routes import (
    headers_of,
    reached,
    routes_of,
    status_at,
    trainer,
)

WHO = "supervised trainer"
ALLOWED = {
    ("GET", pod_contract.OPERATOR_STREAM_ROUTE): CallerRole.OPERATOR,
    ("GET", pod_contract.GANG_ROUTE): CallerRole.TRAINER_RANK,
}


def application() -> web.Application:
    """The routes, with handlers that record that they were reached."""
    leader = supervised_app._Leader.__new__(supervised_app._Leader)
    leader._process = cast(
        "Any", SimpleNamespace(metrics=TrainerMetrics(namespace="n", job="j", group="default"))
    )
    leader._environment, leader._stream = trainer(), cast("Any", SimpleNamespace(serve=reached))
    return leader._routes(cast("Any", SimpleNamespace(serve=reached)))


def test_these_are_all_routes() -> None:
    assert routes_of(application()) == set(ALLOWED)


@pytest.mark.parametrize("role", CallerRole)
@pytest.mark.parametrize("route", ALLOWED, ids=" ".join)
async def test_a_role_may_use_its_routes_and_no_others(
    route: tuple[str, str], role: CallerRole
) -> None:
    headers = headers_of(role, who=WHO, path=route[1])
    found = await status_at([application()], *route, headers=headers)
    assert (found in {401, 403}) is (role is not ALLOWED[route])


@pytest.mark.parametrize("route", ALLOWED, ids=" ".join)
@pytest.mark.parametrize("token", ["guess", "x" * 5000])
async def test_what_is_no_token_gets_nothing(route: tuple[str, str], token: str) -> None:
    assert await status_at([application()], *route, headers=bearer(token)) == 401
