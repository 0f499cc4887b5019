"""Refusals, as the Kubernetes API answers them: a status code and a reason.

https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from http import HTTPStatus
from typing import Any


class ApiStatusError(Exception):
    """A request that is answered with a metav1.Status; the message is for people."""

    code = HTTPStatus.INTERNAL_SERVER_ERROR
    reason = "InternalError"

    def status(self) -> dict[str, Any]:
        """The answer's body."""
        return {
            "apiVersion": "v1",
            "kind": "Status",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": int(self.code),
        }


class MissingObjectError(ApiStatusError):
    """There is no such object, or no such kind."""

    code, reason = HTTPStatus.NOT_FOUND, "NotFound"


class AlreadyExistsError(ApiStatusError):
    """There is an object of this name."""

    code, reason = HTTPStatus.CONFLICT, "AlreadyExists"


class ChangedObjectError(ApiStatusError):
    """The object was written since it was read, or is another one by now."""

    code, reason = HTTPStatus.CONFLICT, "Conflict"


class ForgottenVersionError(ApiStatusError):
    """Changes since that resourceVersion are no longer known."""

    code, reason = HTTPStatus.GONE, "Expired"


class MalformedRequestError(ApiStatusError):
    """The request cannot be read."""

    code, reason = HTTPStatus.BAD_REQUEST, "BadRequest"


class InvalidError(ApiStatusError):
    """The object breaks a rule of its kind."""

    code, reason = HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid"


class MissingTokenError(ApiStatusError):
    """The request shows no token of this server."""

    code, reason = HTTPStatus.UNAUTHORIZED, "Unauthorized"


class UnavailableError(ApiStatusError):
    """What the request is passed on to does not answer."""

    code, reason = HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable"


class UnsupportedMediaTypeError(ApiStatusError):
    """A patch of a kind that is not known here."""

    code, reason = HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType"


class StorageError(ApiStatusError):
    """The disk did not take the object; nothing has changed."""
