"""Lets callers in by the table of roles, and tells handlers who they are."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_runtime.worker.identity.roles import ROLES_OF_ROUTE, CallerRole, RoleBook
from rollcall_runtime.worker.identity.token_verifier import (
    Identity,
    TokenRefusal,
    TokenRefusedError,
    TokenVerifier,
)

log = logging.getLogger(__name__)

RouteHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a request comes from. `trainer_ordinal`: which pod of the trainer, if it is one."""

    identity: Identity
    role: CallerRole
    trainer_ordinal: int | None = None


class Authenticator:
    """Guards the routes of one listener. `refused` counts refusals by reason."""

    def __init__(
        self, verifier: TokenVerifier, book: RoleBook, refused: Callable[[str], None]
    ) -> None:
        self._verifier, self._book, self._refused = verifier, book, refused

    def guard(self, route: str, handler: RouteHandler) -> RouteHandler:
        """Wrap the handler of `route`: 401 without a valid token, 403 for another role."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                caller = self.admit(route, _token_of(request))
            except TokenRefusedError as error:
                return _refusal(error)
            with introduced(caller):
                return await handler(request)

        return guarded

    def refuse(self, route: str, request: web.Request) -> web.Response | None:
        """The answer to a request that may not pass `route`; None if it may."""
        try:
            self.admit(route, _token_of(request))
        except TokenRefusedError as error:
            return _refusal(error)
        return None

    def admit(self, route: str, token: str) -> Caller:
        """Who may pass `route` with this token; TokenRefusedError, which is counted."""
        try:
            return self._caller(route, self._verifier.verify(token))
        except TokenRefusedError as error:
            self._refused(error.reason.value)
            log.debug("refused at %s: %s: %s", route, error.reason, error)
            raise

    def _caller(self, route: str, identity: Identity) -> Caller:
        role = self._book.role(identity)
        if role not in ROLES_OF_ROUTE[route]:
            problem = f"{identity.pod or identity.service_account} is {role.value} here"
            raise TokenRefusedError(TokenRefusal.NOT_ALLOWED, problem)
        return Caller(identity, role, self._book.trainer_ordinal(identity))


_CALLER: ContextVar[Caller] = ContextVar("caller")


def current_caller() -> Caller:
    """Whom the guarded request comes from that is handled now; LookupError without a guard."""
    return _CALLER.get()


@contextlib.contextmanager
def introduced(caller: Caller) -> Iterator[None]:
    """Handle a request of `caller`."""
    before = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(before)


def _token_of(request: web.Request) -> str:
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return request.headers.get(pod_contract.OPERATOR_TOKEN_HEADER) or given


def _refusal(error: TokenRefusedError) -> web.Response:
    known = error.reason is TokenRefusal.NOT_ALLOWED
    body = {"error": str(error), "reason": error.reason.value}
    return web.json_response(body, status=403 if known else 401)


def impersonation(refused: Callable[[str], None], problem: str) -> web.Response:
    """The answer to a caller that speaks in another's name, which is counted."""
    refused(TokenRefusal.IMPERSONATED.value)
    return web.json_response({"error": problem, "reason": TokenRefusal.IMPERSONATED}, status=403)
