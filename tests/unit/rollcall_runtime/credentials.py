"""Tokens for unit tests, from one issuer, and the other end that checks them."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_runtime.worker import auth
from rollcall_runtime.worker.auth import Caller, RouteHandler
from rollcall_runtime.worker.identity.roles import CallerRole
from rollcall_runtime.worker.identity.token_verifier import Identity, TokenVerifier
from rollcall_runtime.worker.identity.trust_file import TrustFile
from tests.token_issuer import TokenIssuer

ISSUER = TokenIssuer()
_FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


@functools.cache
def trust() -> TrustFile:
    """The issuer's keys, as a pod mounts them."""
    path = _FOLDER / pod_contract.TRUST_FILE
    path.write_text(ISSUER.trust())
    return TrustFile(path)


def verifier(job_uid: str, *, namespace: str = "default", audience: str = "") -> TokenVerifier:
    """Checks tokens for the coordinator of a job, or for another audience."""
    wanted = audience or pod_contract.audience(job_uid)
    return TokenVerifier(trust(), audience=wanted, namespace=namespace)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def introduced(
    handler: RouteHandler, *, pod: str, pod_uid: str, trainer_ordinal: int | None = None
) -> RouteHandler:
    """A handler that takes all callers for this pod, whatever they show."""
    role = CallerRole.MEMBER if trainer_ordinal is None else CallerRole.TRAINER_RANK
    caller = Caller(Identity("default", pod, pod_uid, "sa"), role, trainer_ordinal)

    async def handle(request: web.Request) -> Any:
        with auth.introduced(caller):
            return await handler(request)

    return handle
