"""kopf's part: which job an event is about, and settings that neither write nor give up."""

import itertools
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollcall_operator.handlers import (
    WATCHED,
    EndlessBackoffs,
    OutlinesResponse,
    make_settings,
    register,
)


def test_back_offs_never_end_rise_and_start_again_for_each_request() -> None:
    backoffs = EndlessBackoffs()
    first = list(itertools.islice(backoffs, 200))
    assert len(first) == 200
    assert first[0] < 1.0 < first[20] <= 15.0
    assert next(iter(backoffs)) < 1.0


def test_nothing_of_kopf_writes() -> None:
    settings = make_settings()
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    body = kopf.Body({"metadata": {"name": "j", "annotations": {"a": "b"}}, "spec": {"x": [1]}})
    difference, progress = (
        settings.persistence.diffbase_storage,
        settings.persistence.progress_storage,
    )
    assert difference.fetch(body=body) is None
    assert difference.build(body=body) == {}, "an object is not copied"
    patch = kopf.Patch()
    difference.store(body=body, patch=patch, essence=kopf.BodyEssence({}))
    progress.touch(body=body, patch=patch, value="now")
    assert not patch


async def test_every_watched_kind_has_one_handler_that_names_job_object_and_version() -> None:
    registry = kopf.OperatorRegistry()
    reported: list[object] = []
    register(registry, reported=lambda *event: reported.append(event))
    handlers = registry._watching.get_all_handlers()
    assert len(handlers) == len(WATCHED)
    body = {
        "metadata": {"namespace": "n", "name": "x", "resourceVersion": "5"},
        "spec": {"jobRef": {"name": "j"}},
    }
    for handler in handlers:
        run: Any = handler.fn
        await run(body=body, event={}, type=None)
        await run(body={**body, "spec": {}}, event={}, type=None)  # a pool that names no job
    assert reported == [
        (("n", "x"), "rljobs", "x", "5"),
        (("n", "x"), "rljobs", "x", "5"),
        (("n", "j"), "rolloutpools", "x", "5"),
    ]
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    assert not registry._indexing.get_all_handlers()


LISTED = {
    "metadata": {
        "namespace": "n",
        "name": "j-cpu",
        "uid": "u",
        "resourceVersion": "5",
        "managedFields": [{}],
    },
    "spec": {"jobRef": {"name": "j"}, "template": {}},
    "status": {"replicas": 1},
}
OUTLINE = {
    "metadata": {"namespace": "n", "name": "j-cpu", "uid": "u", "resourceVersion": "5"},
    "spec": {"jobRef": {"name": "j"}},
}


@pytest.mark.parametrize(
    ("kind", "held"), [("RLJobList", OUTLINE), ("RolloutPoolList", OUTLINE), ("Other", LISTED)]
)
async def test_kopf_holds_little_of_a_listed_object(kind: str, held: object) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"kind": kind, "metadata": {}, "items": [LISTED]})

    app = web.Application()
    app.router.add_get("/", answer)
    async with (
        TestServer(app) as server,
        aiohttp.ClientSession(response_class=OutlinesResponse) as session,
        session.get(server.make_url("/")) as response,
    ):
        assert await response.json() == {"kind": kind, "metadata": {}, "items": [held]}
