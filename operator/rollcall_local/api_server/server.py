"""The HTTP server: paths and verbs of the Kubernetes API, for the operator, kopf and `rollcall`.

https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

import hmac
import ssl
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from rollcall_local.api_server import discovery, openapi, scale
from rollcall_local.api_server.errors import (
    ApiStatusError,
    MalformedRequestError,
    MissingObjectError,
    MissingTokenError,
    UnsupportedMediaTypeError,
)
from rollcall_local.api_server.kinds import NAMESPACES
from rollcall_local.api_server.pod_routes import PodRoutes, ReadLog
from rollcall_local.api_server.requests import (
    MOST_BYTES,
    Target,
    body_of,
    delete_options_of,
    is_dry_run,
    number_of,
    placed,
    target_of,
)
from rollcall_local.api_server.service_tokens import ISSUER, ServiceTokens
from rollcall_local.api_server.store import ObjectStore
from rollcall_local.api_server.watch_stream import WatchStream
from rollcall_operator.kube.resources import SERVICE_ACCOUNTS
from rollcall_operator.kube.transport import APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH

Object = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_WATCH_SECONDS = 1800
_COLLECTION = "/{plural:[a-z]+}"
_OBJECT = _COLLECTION + "/{name}"
_ROOTS = ("/api/{version:v1}", "/apis/{group}/{version}")


class ApiServer:
    """Serves a store to those who show `token`."""

    def __init__(
        self, store: ObjectStore, tokens: ServiceTokens, *, token: str, read_log: ReadLog
    ) -> None:
        self._store, self._tokens, self._read_log = store, tokens, read_log
        self._bearer = f"Bearer {token}".encode()
        self._runner: web.AppRunner | None = None
        self._pods: PodRoutes | None = None
        self.url = ""

    async def start(self, *, host: str, tls: ssl.SSLContext | None = None) -> None:
        """Listen; `url` then says where. OSError if that cannot be had."""
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BYTES)
        self._pods = PodRoutes(self._store, read_log=self._read_log)
        self._pods.add_to(app.router)
        discovery.add_routes(app.router)
        openapi.add_routes(app.router)
        app.router.add_get("/.well-known/openid-configuration", self._openid)
        app.router.add_get("/openid/v1/jwks", self._keys)
        for root in _ROOTS:
            for place in (root, root + "/namespaces/{namespace}"):
                self._add_verbs(app.router, place)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=1.0, auto_decompress=False
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0, ssl_context=tls)
        await site.start()
        self.url = f"{'https' if tls else 'http'}://{host}:{self._runner.addresses[0][1]}"

    def _add_verbs(self, router: web.UrlDispatcher, place: str) -> None:
        router.add_get(place + _COLLECTION, self._list)
        router.add_post(place + _COLLECTION, self._create)
        router.add_get(place + _OBJECT, self._get)
        router.add_put(place + _OBJECT, self._replace)
        router.add_patch(place + _OBJECT, self._patch)
        router.add_delete(place + _OBJECT, self._delete)
        router.add_patch(place + _OBJECT + "/status", self._patch_status)
        router.add_get(place + _OBJECT + "/scale", self._get_scale)
        for add in (router.add_put, router.add_patch):
            add(place + _OBJECT + "/scale", self._scale)
        router.add_post(place + _OBJECT + "/token", self._token)

    async def close(self) -> None:
        """Stop listening, and end all watches."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._pods is not None:
            await self._pods.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(shown, self._bearer):
                raise MissingTokenError("the request shows no token of this server")
            return await handler(request)
        except ApiStatusError as error:
            return _json(error.status(), status=int(error.code))
        except web.HTTPException as error:
            return _json(_status_of(error), status=error.status)

    # --- verbs ---------------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> web.StreamResponse:
        target, query = target_of(request), request.query
        if query.get("watch") in {"1", "true"}:
            return await self._watch(request)
        items = self._store.listed(
            target.resource,
            target.namespace,
            labels=query.get("labelSelector", ""),
            fields=query.get("fieldSelector", ""),
        )
        metadata = {"resourceVersion": str(self._store.version)}
        kind, version = f"{target.resource.kind}List", target.resource.api_version
        return _json({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        target, query = target_of(request), request.query
        place = (target.resource, target.namespace)
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        since = number_of(request, "resourceVersion", 0)
        seconds = number_of(request, "timeoutSeconds", 0) or _WATCH_SECONDS
        watch = self._store.watch(
            *place, since=since or self._store.version, labels=labels, fields=fields
        )
        found = [] if since else self._store.listed(*place, labels=labels, fields=fields)
        bookmarks = query.get("allowWatchBookmarks") in {"1", "true"}
        stream = WatchStream(request, target.resource, bookmarks=bookmarks)
        return await stream.follow(watch, found, seconds=seconds)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        target = target_of(request)
        return _json(self._store.get(target.resource, target.namespace, target.name))

    async def _create(self, request: web.Request) -> web.StreamResponse:
        target = self._in_a_namespace(target_of(request))
        body = placed(await body_of(request), target)
        made = self._store.create(target.resource, body, dry_run=_is_dry(request))
        return _json(made, status=HTTPStatus.CREATED)

    async def _replace(self, request: web.Request) -> web.StreamResponse:
        target = target_of(request)
        body = placed(await body_of(request), target)
        return _json(self._store.replace(target.resource, body, dry_run=_is_dry(request)))

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        target = target_of(request)
        patch = placed(await body_of(request), target)
        place = (target.resource, target.namespace, target.name)
        if request.content_type != APPLY_PATCH:
            written = self._store.merge(
                *place, patch, strategic=_is_strategic(request), dry_run=_is_dry(request)
            )
            return _json(written)
        if not request.query.get("fieldManager"):
            raise MalformedRequestError("fieldManager: is required for an apply")
        is_new = self._store.find(*place) is None
        applied = self._store.apply(
            self._in_a_namespace(target).resource,
            patch,
            manager=request.query["fieldManager"],
            force=request.query.get("force") == "true",
            dry_run=_is_dry(request),
        )
        return _json(applied, status=HTTPStatus.CREATED if is_new else HTTPStatus.OK)

    def _in_a_namespace(self, target: Target) -> Target:
        """The target, unless it would be in a namespace that is not there: MissingObjectError."""
        if target.resource.namespaced and target.namespace:
            self._store.get(NAMESPACES, "", target.namespace)
        return target

    async def _patch_status(self, request: web.Request) -> web.StreamResponse:
        target = target_of(request)
        patch = placed(await body_of(request), target)
        place = (target.resource, target.namespace, target.name)
        written = self._store.set_status(
            *place, patch, strategic=_is_strategic(request), dry_run=_is_dry(request)
        )
        return _json(written)

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        target = target_of(request)
        options = await delete_options_of(request)
        gone = self._store.delete(
            target.resource,
            target.namespace,
            target.name,
            uid=options.uid,
            version=options.version,
            grace=options.grace,
            dry_run=options.dry_run,
        )
        return _json(gone)

    # --- subresources --------------------------------------------------------------------------

    async def _get_scale(self, request: web.Request) -> web.StreamResponse:
        target = _scaled(request)
        found = self._store.get(target.resource, target.namespace, target.name)
        return _json(scale.scale_of(found))

    async def _scale(self, request: web.Request) -> web.StreamResponse:
        target = _scaled(request)
        body = await body_of(request)
        patch = scale.patch_of(placed(body, target, kind=scale.KIND, api_version=scale.API_VERSION))
        place = (target.resource, target.namespace, target.name)
        return _json(scale.scale_of(self._store.merge(*place, patch, dry_run=_is_dry(request))))

    async def _token(self, request: web.Request) -> web.StreamResponse:
        target, body = target_of(request), await body_of(request)
        if target.resource != SERVICE_ACCOUNTS:
            raise MissingObjectError(f"{target.resource.plural} have no tokens")
        spec = body.get("spec", {})
        if not isinstance(spec, dict):
            raise MalformedRequestError("spec: must be a map")
        account = self._store.get(SERVICE_ACCOUNTS, target.namespace, target.name)
        issued = self._tokens.issue(
            namespace=target.namespace,
            account=target.name,
            account_uid=account["metadata"]["uid"],
            spec=spec,
        )
        return _json({**body, "status": issued}, status=HTTPStatus.CREATED)

    async def _openid(self, _: web.Request) -> web.StreamResponse:
        return _json({"issuer": ISSUER, "jwks_uri": f"{self.url}/openid/v1/jwks"})

    async def _keys(self, _: web.Request) -> web.StreamResponse:
        return _json(self._tokens.keys())


def _scaled(request: web.Request) -> Target:
    target = target_of(request)
    if not target.kind.has_scale:
        raise MissingObjectError(f"{target.resource.plural} have no scale")
    return target


def _is_dry(request: web.Request) -> bool:
    return is_dry_run(request.query.get("dryRun"))


def _is_strategic(request: web.Request) -> bool:
    """UnsupportedMediaTypeError for another kind of patch than the two that merge."""
    if request.content_type not in {MERGE_PATCH, STRATEGIC_PATCH}:
        raise UnsupportedMediaTypeError(
            f"{request.content_type}: send {MERGE_PATCH}, {STRATEGIC_PATCH} or, but for a "
            f"status, {APPLY_PATCH}"
        )
    return request.content_type == STRATEGIC_PATCH


def _status_of(error: web.HTTPException) -> Object:
    """Of what aiohttp itself refuses."""
    refused = ApiStatusError(error.reason)
    reason = error.reason.replace(" ", "")
    return refused.status() | {"reason": reason, "code": error.status}


def _json(body: Any, *, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
