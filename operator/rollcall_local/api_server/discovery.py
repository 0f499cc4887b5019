"""What the server says about itself: groups, versions and kinds."""

from typing import Any

from aiohttp import web

from rollcall_local.api_server import scale
from rollcall_local.api_server.kinds import KINDS, Kind

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def add_routes(router: web.UrlDispatcher) -> None:
    """The routes that clients ask before all others."""
    router.add_get("/version", _version)
    router.add_get("/api", _core_versions)
    router.add_get("/apis", _groups)
    router.add_get("/api/{version:v1}", _resources)
    router.add_get("/apis/{group}", _group)
    router.add_get("/apis/{group}/{version}", _resources)


async def _version(_: web.Request) -> web.Response:
    return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.0+rollcall.local"})


async def _core_versions(_: web.Request) -> web.Response:
    return web.json_response({"kind": "APIVersions", "versions": ["v1"]})


async def _groups(_: web.Request) -> web.Response:
    names = sorted({kind.resource.group for kind in KINDS.values()} - {""})
    groups = [_described(name) for name in names]
    return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})


async def _group(request: web.Request) -> web.Response:
    found = _described(request.match_info["group"])
    if not found["versions"]:
        raise web.HTTPNotFound
    return web.json_response({"kind": "APIGroup", "apiVersion": "v1", **found})


async def _resources(request: web.Request) -> web.Response:
    info = request.match_info
    group = info.get("group", "")
    version = f"{group}/{info['version']}" if group else info["version"]
    listed = [
        entry
        for kind in KINDS.values()
        if kind.resource.api_version == version
        for entry in _entries(kind)
    ]
    if not listed:
        raise web.HTTPNotFound
    body = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version}
    return web.json_response({**body, "resources": listed})


def _described(group: str) -> dict[str, Any]:
    versions = sorted(
        {kind.resource.api_version for kind in KINDS.values() if kind.resource.group == group}
    )
    listed = [{"groupVersion": each, "version": each.rpartition("/")[2]} for each in versions]
    return {
        "name": group,
        "versions": listed,
        **({"preferredVersion": listed[0]} if listed else {}),
    }


def _entries(kind: Kind) -> list[dict[str, Any]]:
    resource = kind.resource
    whole = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "kind": resource.kind,
        "namespaced": resource.namespaced,
        "verbs": _VERBS,
    }
    found = [{**whole, "shortNames": [kind.short] if kind.short else []}]
    if kind.has_status:
        found.append({**whole, "name": f"{resource.plural}/status", "verbs": ["patch"]})
    if kind.has_scale:
        group, _, version = scale.API_VERSION.partition("/")
        found.append(
            {
                **whole,
                "name": f"{resource.plural}/scale",
                "kind": scale.KIND,
                "group": group,
                "version": version,
                "verbs": ["get", "patch", "update"],
            }
        )
    return found
