"""An answer of the API server becomes the exception that says what to do about it."""

import json
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from rollcall_operator.kube.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    RefusedError,
    ServerError,
    TerminatingError,
    ThrottledError,
    UnauthorizedError,
    connection_error_text,
    error_from,
)


def answer(
    status: int, reason: str = "", message: str = "", retry_after: str | None = None
) -> ApiError:
    body = json.dumps({"kind": "Status", "reason": reason, "message": message}).encode()
    return error_from(status=status, body=body, retry_after=retry_after, what="get /x")


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", RefusedError),
        (401, "Unauthorized", UnauthorizedError),
        (403, "Forbidden", RefusedError),
        (404, "NotFound", NotFoundError),
        (409, "Conflict", ConflictError),
        (409, "AlreadyExists", ConflictError),
        (413, "RequestEntityTooLarge", RefusedError),
        (422, "Invalid", RefusedError),
        (429, "TooManyRequests", ThrottledError),
        (500, "InternalError", ServerError),
        (503, "ServiceUnavailable", ServerError),
        (418, "", RefusedError),
    ],
)
def test_each_status_has_its_kind(status: int, reason: str, kind: type[ApiError]) -> None:
    error = answer(status, reason, "because")
    assert type(error) is kind
    assert (error.status, error.message) == (status, "because")
    assert "get /x" in str(error)


def test_an_apply_of_a_field_that_is_not_in_the_schema_is_a_refusal_whatever_its_status() -> None:
    message = "failed to create typed patch object (...): .spec.template.spec.nope: field not ..."
    assert type(answer(500, "", message)) is RefusedError


def test_an_apply_to_an_object_of_others_is_refused_and_the_message_names_them() -> None:
    message = 'Apply failed with 1 conflict: conflict with "kubectl": .spec.replicas'
    error = answer(409, "Conflict", message)
    assert type(error) is RefusedError
    assert error.message == f"it exists, and others have set its fields: {message}"


def test_another_conflict_is_to_be_tried_again() -> None:
    assert type(answer(409, "Conflict", "the object has been modified")) is ConflictError


def test_a_namespace_that_is_being_deleted_is_no_fault_of_the_object() -> None:
    details = {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}
    body = json.dumps({"reason": "Forbidden", "message": "no", "details": details}).encode()
    error = error_from(status=403, body=body, retry_after=None, what="apply")
    assert type(error) is TerminatingError


@pytest.mark.parametrize(
    ("header", "seconds"), [("2", 2.0), (None, 1.0), ("soon", 1.0), ("9999", 30.0), ("0", 0.1)]
)
def test_the_wait_after_429_is_bounded(header: str | None, seconds: float) -> None:
    error = answer(429, "TooManyRequests", retry_after=header)
    assert isinstance(error, ThrottledError)
    assert error.retry_after == seconds


def test_a_body_that_is_no_status_object_is_quoted() -> None:
    error = error_from(status=502, body=b"<html>bad gateway</html>", retry_after=None, what="w")
    assert (error.reason, error.message) == ("BadGateway", "<html>bad gateway</html>")


def to_a_pod(context: ssl.SSLContext) -> ConnectionKey:
    return ConnectionKey("10.0.0.1", 7070, True, context, None, None, None)


def test_why_a_connection_failed_is_the_same_text_each_time() -> None:
    refused = OSError(111, "Connect call failed ('10.0.0.1', 7070)")
    unknown = ssl.SSLCertVerificationError("self-signed certificate")
    texts = [
        (
            connection_error_text(aiohttp.ClientConnectorError(key, refused)),
            connection_error_text(aiohttp.ClientConnectorCertificateError(key, unknown)),
            connection_error_text(TimeoutError()),
        )
        for key in (to_a_pod(ssl.create_default_context()) for _ in range(2))
    ]
    assert texts[0] == texts[1], "no address in memory is in it"
    assert "Connect call failed" in texts[0][0]
    assert "self-signed certificate" in texts[0][1]
    assert texts[0][2] == "TimeoutError"
