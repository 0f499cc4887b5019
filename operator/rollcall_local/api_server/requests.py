"""What a request asks for: the object that its path names, its body, and its parameters."""

from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from rollcall_local.api_server.errors import (
    MalformedRequestError,
    MissingObjectError,
    UnsupportedMediaTypeError,
)
from rollcall_local.api_server.kinds import KINDS, Kind
from rollcall_operator.kube.resources import Resource
from rollcall_operator.kube.transport import APPLY_PATCH, JSON, MERGE_PATCH, STRATEGIC_PATCH

Object = dict[str, Any]

MOST_BYTES = 3 << 20  # of a body, as in a cluster
MOST_LEVELS = 100
_MOST_DIGITS = 18
_TEXTS = (JSON, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names; `name` is empty for all of a kind."""

    kind: Kind
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> Resource:
        """Of its kind."""
        return self.kind.resource


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """How an object is deleted; `grace` in seconds, None: its own."""

    uid: str = ""
    version: str = ""
    grace: int | None = None
    dry_run: bool = False


def target_of(request: web.Request) -> Target:
    """MissingObjectError for a kind that is not served."""
    info = request.match_info
    kind = KINDS.get(info["plural"])
    group = info.get("group", "")
    version = f"{group}/{info['version']}" if group else info["version"]
    if kind is None or kind.resource.api_version != version:
        raise MissingObjectError(f"{version} {info['plural']}: not served on one machine")
    named = (info.get(part, "") for part in ("namespace", "name", "subresource"))
    return Target(kind, *named)


async def body_of(request: web.Request) -> Object:
    """A JSON object.

    MalformedRequestError, UnsupportedMediaTypeError, and aiohttp's HTTPRequestEntityTooLarge.
    """
    if request.content_type not in _TEXTS:
        raise UnsupportedMediaTypeError(f"{request.content_type}: send {', '.join(_TEXTS)}")
    if "Content-Encoding" in request.headers:
        raise UnsupportedMediaTypeError("send the body as it is, without Content-Encoding")
    text = await request.read()
    try:
        found = orjson.loads(text)
    except ValueError as error:
        raise MalformedRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise MalformedRequestError("the body is not an object")
    if not _is_flat(found, MOST_LEVELS):
        raise MalformedRequestError(f"the body is nested more than {MOST_LEVELS} levels deep")
    return found


def placed(body: Object, target: Target, *, kind: str = "", api_version: str = "") -> Object:
    """A body, or a patch, with the place that its path names.

    MalformedRequestError if it has another one.

    `kind` and `api_version` are the target's own unless given.
    """
    metadata = body.get("metadata", {})
    if not isinstance(metadata, dict):
        raise MalformedRequestError("metadata: must be a map")
    place = {"namespace": target.namespace, "name": target.name}
    place = {field: wanted for field, wanted in place.items() if wanted}
    wanted_types = {
        "kind": kind or target.resource.kind,
        "apiVersion": api_version or target.resource.api_version,
    }
    for path, found, wanted in (
        *((f"metadata.{field}", metadata.get(field), wanted) for field, wanted in place.items()),
        *((field, body.get(field), wanted) for field, wanted in wanted_types.items()),
    ):
        if found is not None and found != wanted:
            raise MalformedRequestError(f"{path}: {found!r} is not {wanted!r}")
    return {**body, "metadata": {**metadata, **place}}


def is_dry_run(value: Any) -> bool:
    """What `dryRun` says, as a parameter or in the body; MalformedRequestError."""
    if value in (None, "", []):
        return False
    if value in ("All", ["All"]):
        return True
    raise MalformedRequestError(f"dryRun: {value!r}: only 'All' is known")


async def delete_options_of(request: web.Request) -> DeleteOptions:
    """Of its parameters and its body; MalformedRequestError."""
    options = await body_of(request) if request.body_exists else {}
    conditions = options.get("preconditions") or {}
    grace, policy = options.get("gracePeriodSeconds"), options.get("propagationPolicy")
    if not isinstance(conditions, dict):
        raise MalformedRequestError("preconditions: must be a map")
    if grace is not None and (type(grace) is not int or grace < 0):
        raise MalformedRequestError(f"gracePeriodSeconds: {grace!r} is no number of seconds")
    if policy not in (None, "Background", "Foreground"):
        raise MalformedRequestError(
            f"propagationPolicy: {policy!r} is not known here: what it owns is deleted as well"
        )
    return DeleteOptions(
        conditions.get("uid", ""),
        conditions.get("resourceVersion", ""),
        grace,
        is_dry_run(request.query.get("dryRun")) or is_dry_run(options.get("dryRun")),
    )


def number_of(request: web.Request, name: str, default: int) -> int:
    """A parameter that is a number of at least 0; MalformedRequestError."""
    text = request.query.get(name, "")
    if text and not (text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise MalformedRequestError(f"{name}: {text!r} is no number")
    return int(text) if text else default


def _is_flat(body: Object, most: int) -> bool:
    """Whether it has at most so many levels; later steps recurse into them."""
    level: list[Any] = [body]
    for _ in range(most):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return True
    return False


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
