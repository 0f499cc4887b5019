"""What each request of the client says: which object is meant, and under which precondition."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from rollcall_operator.kube.client import FIELD_MANAGER, KubeClient
from rollcall_operator.kube.errors import ConflictError, NotFoundError
from rollcall_operator.kube.resources import DEPLOYMENTS, PODS, RL_JOBS
from rollcall_operator.kube.transport import APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Transport

Request = dict[str, Any]
Answer = dict[str, Any] | Exception


class Requests:
    """Stands in for the transport: records requests, and answers with `answer`."""

    def __init__(self, answer: Callable[[Request], Answer] = lambda _: {}) -> None:
        self.sent: list[Request] = []
        self._answer = answer

    async def request(self, method: str, path: str, **details: Any) -> dict[str, Any]:
        request = {"method": method, "path": path} | details
        self.sent.append(request)
        answer = self._answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer


def client_of(requests: Requests) -> KubeClient:
    return KubeClient(cast("Transport", requests))


async def test_a_status_is_written_only_over_the_version_that_was_read() -> None:
    requests = Requests()
    await client_of(requests).patch_status(
        RL_JOBS, namespace="ns", name="a", patch={"epoch": 2}, resource_version="17"
    )
    (sent,) = requests.sent
    assert sent["path"].endswith("/namespaces/ns/rljobs/a/status")
    assert sent["content_type"] == MERGE_PATCH
    assert sent["body"] == {"metadata": {"resourceVersion": "17"}, "status": {"epoch": 2}}


async def test_a_pods_condition_is_set_on_that_very_pod() -> None:
    requests = Requests()
    await client_of(requests).set_pod_condition(
        namespace="ns", name="p", uid="uid-1", condition={"type": "Gate", "status": "True"}
    )
    (sent,) = requests.sent
    assert sent["path"].endswith("/pods/p/status")
    assert sent["content_type"] == STRATEGIC_PATCH
    assert sent["body"]["metadata"] == {"uid": "uid-1"}


async def test_an_annotation_is_set_on_that_very_pod() -> None:
    requests = Requests()
    await client_of(requests).set_pod_annotation(
        namespace="ns", name="p", uid="uid-1", key="k", value=None
    )
    (sent,) = requests.sent
    assert sent["body"] == {"metadata": {"uid": "uid-1", "annotations": {"k": None}}}


@pytest.mark.parametrize(("grace", "seconds"), [(None, {}), (0, {"gracePeriodSeconds": 0})])
async def test_a_deletion_is_of_one_uid_and_in_the_background(
    grace: int | None, seconds: dict[str, int]
) -> None:
    requests = Requests()
    await client_of(requests).delete(PODS, namespace="ns", name="p", uid="uid-1", grace=grace)
    (sent,) = requests.sent
    background = {"propagationPolicy": "Background", "preconditions": {"uid": "uid-1"}}
    assert sent["body"] == background | seconds


async def test_what_is_gone_already_is_deleted() -> None:
    gone = NotFoundError(status=404, reason="NotFound", message="", what="delete")
    await client_of(Requests(lambda _: gone)).delete(PODS, namespace="ns", name="p", uid="uid-1")


async def test_another_object_of_the_name_is_not_deleted() -> None:
    other = ConflictError(status=409, reason="Conflict", message="", what="delete")
    with pytest.raises(ConflictError):
        await client_of(Requests(lambda _: other)).delete(
            PODS, namespace="ns", name="p", uid="uid-1"
        )


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("force", [False, True])
async def test_an_apply_owns_its_fields_and_tolerates_no_unknown_ones(
    force: bool, dry_run: bool
) -> None:
    requests = Requests()
    body = {"kind": "Deployment", "metadata": {"namespace": "ns", "name": "d"}}
    await client_of(requests).apply(body, force=force, dry_run=dry_run)
    (sent,) = requests.sent
    assert (sent["method"], sent["content_type"]) == ("PATCH", APPLY_PATCH)
    query = {
        "fieldManager": FIELD_MANAGER,
        "force": str(force).lower(),
        "fieldValidation": "Strict",
    }
    assert sent["query"] == query | ({"dryRun": "All"} if dry_run else {})


async def test_a_list_reads_every_page_of_both_selectors() -> None:
    pages: dict[str, dict[str, Any]] = {
        "": {"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "more"}},
        "more": {"items": [{"metadata": {"name": "b"}}], "metadata": {}},
    }
    asked: list[dict[str, str]] = []

    def answer(request: Request) -> Answer:
        asked.append(dict(request["query"]))
        return pages[request["query"].get("continue", "")]

    found = await client_of(Requests(answer)).list(
        DEPLOYMENTS, namespace="ns", labels="l=1", fields="f=2"
    )
    assert [item["metadata"]["name"] for item in found] == ["a", "b"]
    assert {item["kind"] for item in found} == {"Deployment"}
    assert [(q["labelSelector"], q["fieldSelector"]) for q in asked] == [("l=1", "f=2")] * 2
