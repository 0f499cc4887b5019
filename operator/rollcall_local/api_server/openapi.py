"""Of OpenAPI what kubectl asks before it sends a manifest: that the server checks it itself.

https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-v3
"""

from typing import Any

from aiohttp import web

from rollcall_local.api_server.kinds import KINDS, Kind

_ROOT = "/openapi/v3"


def add_routes(router: web.UrlDispatcher) -> None:
    """The list of groups, and what each of them takes."""
    router.add_get(_ROOT, _groups)
    router.add_get(_ROOT + "/{place:.+}", _group)


def _place(kind: Kind) -> str:
    return f"{'apis' if kind.resource.group else 'api'}/{kind.resource.api_version}"


async def _groups(_: web.Request) -> web.Response:
    places = {_place(kind) for kind in KINDS.values()}
    paths = {place: {"serverRelativeURL": f"{_ROOT}/{place}"} for place in sorted(places)}
    return web.json_response({"paths": paths})


async def _group(request: web.Request) -> web.Response:
    place = request.match_info["place"]
    paths = {
        kind.resource.path(namespace="{namespace}", name="{name}"): {"patch": _operation(kind)}
        for kind in KINDS.values()
        if _place(kind) == place
    }
    if not paths:
        raise web.HTTPNotFound
    about = {"title": "rollcall local", "version": "v1"}
    return web.json_response({"openapi": "3.0.0", "info": about, "paths": paths})


def _operation(kind: Kind) -> dict[str, Any]:
    resource = kind.resource
    named = {
        "group": resource.group,
        "version": resource.api_version.rpartition("/")[2],
        "kind": resource.kind,
    }
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    return {
        "parameters": [parameter],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-group-version-kind": named,
    }
