"""Errors of requests to the API server, by what the caller may do about them."""

import json
from http import HTTPStatus
from typing import Any

import aiohttp


class ApiError(Exception):
    """An answer that is not a success. `reason` is the Status object's, `message` for people."""

    def __init__(self, *, status: int, reason: str, message: str, what: str) -> None:
        super().__init__(f"{what}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFoundError(ApiError):
    """404: the object, its namespace or its resource definition is not there."""


class ConflictError(ApiError):
    """409: the object was written since it was read, was replaced (another uid), or exists."""


class ExpiredError(ApiError):
    """410: the server has forgotten the resourceVersion, or the rest of the list, asked for."""


class RefusedError(ApiError):
    """400, 403, 413, 422, or 409 for fields that others have set: the same object will be refused
    again.
    """


class TerminatingError(RefusedError):
    """403: the namespace is being deleted and takes no new objects."""


class UnauthorizedError(ApiError):
    """401: credentials are expired or wrong."""


class ThrottledError(ApiError):
    """429: retry after `retry_after` seconds; the request had no effect."""

    def __init__(
        self, *, status: int, reason: str, message: str, what: str, retry_after: float
    ) -> None:
        super().__init__(status=status, reason=reason, message=message, what=what)
        self.retry_after = retry_after


class ServerError(ApiError):
    """5xx: the request may have taken effect."""


class UnreachableError(Exception):
    """No answer in time, or no connection: the request may have taken effect."""


_BY_STATUS: dict[int, type[ApiError]] = {
    HTTPStatus.BAD_REQUEST: RefusedError,
    HTTPStatus.UNAUTHORIZED: UnauthorizedError,
    HTTPStatus.FORBIDDEN: RefusedError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.GONE: ExpiredError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: RefusedError,
    HTTPStatus.UNPROCESSABLE_ENTITY: RefusedError,
}

# Server-side apply answers 500 to a field that is not in the schema; retrying cannot help.
_BAD_OBJECT = ("failed to create typed patch object", "failed to convert new object")
# Without `force`: Apply failed with 1 conflict: conflict with "kubectl" using v1: .spec.ports
_SET_BY_OTHERS = "Apply failed with"


def error_from(*, status: int, body: bytes, retry_after: str | None, what: str) -> ApiError:
    """The exception for an answer; `body` is a metav1.Status where the server sent one."""
    details = _status_object(body)
    reason = str(details.get("reason") or HTTPStatus(status).phrase.replace(" ", ""))
    message = str(details.get("message") or body[:500].decode(errors="replace"))
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        seconds = _seconds(retry_after)
        return ThrottledError(
            status=status, reason=reason, message=message, what=what, retry_after=seconds
        )
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else RefusedError)
    if kind is RefusedError and _has_cause(details, "NamespaceTerminating"):
        kind = TerminatingError
    if kind is ServerError and any(text in message for text in _BAD_OBJECT):
        kind = RefusedError
    if kind is ConflictError and _SET_BY_OTHERS in message:
        kind, message = RefusedError, f"it exists, and others have set its fields: {message}"
    return kind(status=status, reason=reason, message=message, what=what)


def error_of_watch(status: dict[str, Any], what: str) -> ApiError:
    """The exception for the metav1.Status of an ERROR event, which ends a WATCH."""
    code = status.get("code")
    if not isinstance(code, int) or not 400 <= code < 600:
        code = int(HTTPStatus.INTERNAL_SERVER_ERROR)
    body = json.dumps(status).encode()
    return error_from(status=code, body=body, retry_after=None, what=what)


def _has_cause(details: dict[str, Any], reason: str) -> bool:
    causes = (details.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == reason for cause in causes)


def _status_object(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _seconds(text: str | None) -> float:
    try:
        return max(0.1, min(float(text or "1"), 30.0))
    except ValueError:
        return 1.0


def connection_error_text(error: Exception) -> str:
    """Why a connection failed, for people, the same each time.

    aiohttp's own text names its SSLContext by an address in memory.
    """
    cause: Exception = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    return str(cause) or type(cause).__name__
