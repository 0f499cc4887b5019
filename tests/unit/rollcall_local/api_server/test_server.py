"""The server over HTTP: to the operator's client it is a Kubernetes API server."""

import asyncio
import errno
import gzip
import itertools
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollcall_local.api_server.admission import admit
from rollcall_local.api_server.folder import ObjectFolder
from rollcall_local.api_server.kinds import KINDS
from rollcall_local.api_server.store import Entry, Key, ObjectStore
from rollcall_operator.kube.errors import (
    ConflictError,
    NotFoundError,
    RefusedError,
    ServerError,
)
from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    SERVICE_ACCOUNTS,
)
from rollcall_operator.kube.transport import (
    APPLY_PATCH,
    JSON,
    MERGE_PATCH,
    STRATEGIC_PATCH,
)
from rollcall_runtime.worker.identity.token_verifier import TokenVerifier
from rollcall_runtime.worker.identity.trust_file import TrustFile
from tests.unit.rollcall_local.api_server.objects import Object, config_map, job, pod, pool
from tests.unit.rollcall_local.api_server.served import TOKEN, Served, served

MAPS = "/api/v1/namespaces/ns/configmaps"
JOBS = "/apis/rollcall.dev/v1alpha1/namespaces/ns/rljobs"
POOLS = "/apis/rollcall.dev/v1alpha1/namespaces/ns/rolloutpools"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as made:
        yield made


# --- the operator's client -----------------------------------------------------------------------


async def test_it_creates_reads_and_deletes(api: Served) -> None:
    client = api.client
    made = await client.create(CONFIG_MAPS, config_map(x="1"))
    assert await client.get(CONFIG_MAPS, namespace="ns", name="a") == made
    assert await client.find(CONFIG_MAPS, namespace="ns", name="b") is None
    with pytest.raises(ConflictError, match="AlreadyExists"):
        await client.create(CONFIG_MAPS, config_map())
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, namespace="ns", name="a", uid="another")
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, namespace="ns", name="a", version="1")
    await client.delete(
        CONFIG_MAPS,
        namespace="ns",
        name="a",
        uid=made["metadata"]["uid"],
        version=made["metadata"]["resourceVersion"],
    )
    with pytest.raises(NotFoundError, match='configmaps "a" not found'):
        await client.get(CONFIG_MAPS, namespace="ns", name="a")
    await client.delete(CONFIG_MAPS, namespace="ns", name="a")


async def test_it_lists_by_selectors(api: Served) -> None:
    for name in ("a", "b", "c"):
        await api.client.create(CONFIG_MAPS, config_map(name, labels={"is": name}))
    listed = await api.client.list(
        CONFIG_MAPS, namespace="ns", labels="is in (a, b)", fields="metadata.name!=a"
    )
    assert [(each["kind"], each["metadata"]["name"]) for each in listed] == [("ConfigMap", "b")]
    assert len(await api.client.list(CONFIG_MAPS, namespace=None)) == 3
    assert await api.client.list(CONFIG_MAPS, namespace="other") == ()
    page = await api.client.probe(CONFIG_MAPS, namespace=None)
    assert page["metadata"]["resourceVersion"] == str(api.store.version)


async def test_it_applies_and_takes_nothing_over(api: Served) -> None:
    body = {**job(), "metadata": {"name": "reverse", "namespace": "ns"}}
    made = await api.client.apply(body, force=False)
    assert made["spec"]["suspend"] is False
    assert await api.client.apply(body) == made
    assert await api.client.apply(job(suspend=True), dry_run=True) != made
    assert await api.client.get(RL_JOBS, namespace="ns", name="reverse") == made
    await api.client.merge(
        RL_JOBS, namespace="ns", name="reverse", patch={"spec": {"suspend": True}}
    )
    with pytest.raises(RefusedError, match="it exists, and others have set its fields"):
        await api.client.apply(job(suspend=False), force=False)
    old = job()
    old["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    with pytest.raises(ConflictError):
        await api.client.apply(old)
    assert (await api.client.apply(job(suspend=False)))["spec"]["suspend"] is False


async def test_what_breaks_a_rule_is_refused_with_its_field(api: Served) -> None:
    bad = job()
    bad["spec"]["trainer"]["replicas"] = 0
    with pytest.raises(RefusedError, match=r"spec\.trainer\.replicas: must be at least 1") as no:
        await api.client.apply(bad)
    assert (no.value.status, no.value.reason) == (422, "Invalid")
    await api.client.apply(job())
    moved = job()
    moved["spec"]["model"]["path"] = "/models/other"
    with pytest.raises(RefusedError, match=r"spec\.model: is immutable"):
        await api.client.apply(moved)


async def test_a_status_is_written_over_the_version_that_was_read(api: Served) -> None:
    made = await api.client.apply(job())
    version = made["metadata"]["resourceVersion"]

    async def write(phase: str) -> Object:
        return await api.client.patch_status(
            RL_JOBS,
            namespace="ns",
            name="reverse",
            patch={"phase": phase},
            resource_version=version,
        )

    written = await write("Running")
    assert written["status"] == {"phase": "Running"}
    assert written["metadata"]["generation"] == 1
    with pytest.raises(ConflictError):
        await write("Failed")


async def test_a_pods_condition_and_annotation_are_set_on_that_very_pod(api: Served) -> None:
    made = api.store.create(PODS, pod())
    uid = made["metadata"]["uid"]
    for kind in ("A", "B"):
        written = await api.client.set_pod_condition(
            namespace="ns", name="p", uid=uid, condition={"type": kind, "status": "True"}
        )
    assert [each["type"] for each in written["status"]["conditions"]] == ["A", "B"]
    written = await api.client.set_pod_annotation(
        namespace="ns", name="p", uid=uid, key="k", value="v"
    )
    assert written["metadata"]["annotations"] == {"k": "v"}
    for write in (
        api.client.set_pod_condition(
            namespace="ns", name="p", uid="other", condition={"type": "A"}
        ),
        api.client.set_pod_annotation(namespace="ns", name="p", uid="other", key="k", value=None),
    ):
        with pytest.raises(RefusedError, match="not other"):
            await write


async def test_a_lease_is_replaced_under_its_version(api: Served) -> None:
    lease = {"metadata": {"name": "l", "namespace": "ns"}, "spec": {"holderIdentity": "a"}}
    made = await api.client.create(LEASES, lease)
    taken = await api.client.replace(LEASES, {**made, "spec": {"holderIdentity": "b"}})
    assert taken["spec"] == {"holderIdentity": "b"}
    with pytest.raises(ConflictError):
        await api.client.replace(LEASES, {**made, "spec": {"holderIdentity": "c"}})


async def test_a_pod_ends_in_its_time_or_at_once(api: Served) -> None:
    api.store.create(PODS, pod(node="n"))
    await api.client.delete(PODS, namespace="ns", name="p")
    marked = await api.client.get(PODS, namespace="ns", name="p")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    await api.client.delete(PODS, namespace="ns", name="p", grace=0)
    assert await api.client.find(PODS, namespace="ns", name="p") is None


async def test_the_kinds_are_discovered(api: Served) -> None:
    assert await api.client.plurals("rollcall.dev") == {
        "rljobs",
        "rljobs/status",
        "rolloutpools",
        "rolloutpools/status",
        "rolloutpools/scale",
    }
    with pytest.raises(NotFoundError):
        await api.client.plurals("nobody.dev")
    _, core = await api.ask("GET", "/api/v1")
    assert {each["name"] for each in core["resources"]} >= {"pods", "pods/status", "configmaps"}
    short = {each["name"]: each["shortNames"] for each in core["resources"] if "shortNames" in each}
    assert (short["pods"], short["configmaps"]) == (["po"], ["cm"])
    assert "pods/status" not in short, "kubectl would not know which is meant"
    assert {each["kind"] for each in core["resources"]} >= {"Pod", "Node", "Namespace"}
    _, groups = await api.ask("GET", "/apis")
    listed = {each["name"] for each in groups["groups"]}
    assert listed == {kind.resource.group for kind in KINDS.values()} - {""}
    assert (await api.ask("GET", "/version"))[1]["major"] == "1"
    assert (await api.ask("GET", "/api"))[1]["versions"] == ["v1"]


async def test_a_token_is_believed_by_the_keys_that_are_served(api: Served, tmp_path: Path) -> None:
    account = {"metadata": {"name": "default", "namespace": "ns"}}
    await api.client.create(SERVICE_ACCOUNTS, account)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "uid-p"}
    issued = await api.client.create_token(
        namespace="ns", account="default", spec={"audiences": ["job"], "boundObjectRef": bound}
    )
    issuer, keys = await api.client.token_keys()
    trust = {"issuer": issuer, "operator": "system:serviceaccount:s:o", "keys": list(keys)}
    (tmp_path / "trust.json").write_text(json.dumps(trust))
    verifier = TokenVerifier(TrustFile(tmp_path / "trust.json"), audience="job", namespace="ns")
    assert verifier.verify(issued["token"]).pod == "p"
    with pytest.raises(NotFoundError, match='serviceaccounts "other" not found'):
        await api.client.create_token(namespace="ns", account="other", spec={})
    with pytest.raises(RefusedError, match=r"spec\.expirationSeconds"):
        await api.client.create_token(
            namespace="ns", account="default", spec={"expirationSeconds": 1}
        )


async def test_over_tls_it_is_asked_by_those_who_believe_its_authority(tmp_path: Path) -> None:
    async with served(tmp_path, with_tls=True) as api:
        assert api.server.url.startswith("https://127.0.0.1:")
        made = await api.client.create(CONFIG_MAPS, config_map())
        assert await api.client.get(CONFIG_MAPS, namespace="ns", name="a") == made
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await api.ask("GET", "/version")


# --- who may ask, and what -----------------------------------------------------------------------


async def test_who_does_not_show_the_token_gets_nothing(api: Served) -> None:
    tokens = (
        "",
        f"Basic {TOKEN}",
        "Bearer ",
        f"Bearer {TOKEN}x",
        TOKEN,
        f"bearer {TOKEN}",
    )
    for path, shown in itertools.product(("/version", MAPS, "/openid/v1/jwks", "/no"), tokens):
        status, body = await api.ask("GET", path, headers={"Authorization": shown})
        assert (status, body["reason"], body["kind"]) == (401, "Unauthorized", "Status"), shown


async def test_a_token_of_strange_bytes_is_another_token(api: Served) -> None:
    reader, writer = await asyncio.open_connection(
        *api.server.url.removeprefix("http://").split(":")
    )
    writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
    assert b"401" in await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    await writer.wait_closed()


async def test_what_is_not_served_is_not_found(api: Served) -> None:
    for path in (
        "/api/v1/namespaces/ns/unknowns",
        "/apis/apps/v1/namespaces/ns/replicasets",
        "/apis/rollcall.dev/v1/namespaces/ns/rljobs",
        "/apis/nobody.dev/v1",
        "/api/v2/pods",
        "/nowhere",
        "/api/v1/namespaces/ns/pods/p/exec",
    ):
        status, body = await api.ask("GET", path)
        assert (status, body["code"], body["kind"]) == (404, 404, "Status"), path
        assert body["reason"] == "NotFound"


async def test_a_verb_that_is_not_there_is_named_as_such(api: Served) -> None:
    status, body = await api.ask("DELETE", MAPS)
    assert (status, body["reason"]) == (405, "MethodNotAllowed")


async def test_a_namespace_has_to_be_there(api: Served) -> None:
    body = config_map()
    body["metadata"]["namespace"] = "typo"
    with pytest.raises(NotFoundError, match='namespaces "typo" not found'):
        await api.client.create(CONFIG_MAPS, body)
    with pytest.raises(NotFoundError, match='namespaces "typo" not found'):
        await api.client.apply({**job(), "metadata": {"name": "j", "namespace": "typo"}})
    await api.client.create(NODES, {"metadata": {"name": "n"}})


MISPLACED: tuple[tuple[Object, str], ...] = (
    ({"kind": "Secret"}, "kind: 'Secret' is not 'ConfigMap'"),
    ({"apiVersion": "v2"}, "apiVersion: 'v2' is not 'v1'"),
    ({"metadata": {"name": "a", "namespace": "other"}}, "metadata.namespace: 'other' is not"),
    ({"metadata": {"name": "b"}}, "metadata.name: 'b' is not 'a'"),
    ({"metadata": None}, "metadata: must be a map"),
    ({"metadata": []}, "metadata: must be a map"),
)


async def test_a_body_is_of_the_place_that_the_path_names(api: Served) -> None:
    before = api.store.create(CONFIG_MAPS, config_map(x="1"))
    kinds = (APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH, JSON)
    for kind, (change, message) in itertools.product(kinds, MISPLACED):
        status, answer = await api.ask(
            "PUT" if kind == JSON else "PATCH",
            f"{MAPS}/a?fieldManager=m",
            json.dumps({**config_map(x="2"), **change}).encode(),
            headers={"Content-Type": kind},
        )
        assert (status, answer["reason"]) == (400, "BadRequest")
        assert message in answer["message"]
    assert api.store.get(CONFIG_MAPS, "ns", "a") == before


async def test_what_a_body_leaves_out_is_that_of_the_path(api: Served) -> None:
    status, made = await api.ask("POST", MAPS, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    assert (status, made["metadata"]["namespace"], made["kind"]) == (201, "ns", "ConfigMap")
    for expected in (201, 200):
        status, applied = await api.ask(
            "PATCH",
            f"{MAPS}/b?fieldManager=m",
            b'{"data": {"x": "1"}}',
            headers={"Content-Type": APPLY_PATCH},
        )
        assert status == expected
        assert (applied["metadata"]["name"], applied["apiVersion"]) == ("b", "v1")


async def test_an_apply_names_its_manager(api: Served) -> None:
    status, body = await api.ask("PATCH", f"{MAPS}/a", b"{}", headers={"Content-Type": APPLY_PATCH})
    assert (status, body["message"]) == (400, "fieldManager: is required for an apply")


async def test_a_kind_of_patch_that_is_not_known_is_named(api: Served) -> None:
    for path in (f"{MAPS}/a", f"{MAPS}/a/status"):
        status, body = await api.ask(
            "PATCH", path, {"data": {}}, headers={"Content-Type": "application/json-patch+json"}
        )
        assert (status, body["reason"]) == (415, "UnsupportedMediaType")
        assert MERGE_PATCH in body["message"]


async def test_a_body_that_is_not_json_by_its_type_is_not_read(api: Served) -> None:
    headers = {"Content-Type": "application/vnd.kubernetes.protobuf"}
    for method, path in (("POST", MAPS), ("PUT", f"{MAPS}/a"), ("DELETE", f"{MAPS}/a")):
        status, body = await api.ask(method, path, b"k8s", headers=headers)
        assert (status, body["reason"]) == (415, "UnsupportedMediaType")
        assert "protobuf: send application/json, " in body["message"]


async def test_a_parameter_that_cannot_be_read_is_named(api: Served) -> None:
    for query, message in (
        ("labelSelector=a%20in%20b", "labelSelector: 'a in b'"),
        ("fieldSelector=a", "fieldSelector: 'a'"),
        ("watch=true&resourceVersion=x", "resourceVersion: 'x' is no number"),
        ("watch=true&timeoutSeconds=-1", "timeoutSeconds: '-1' is no number"),
        (f"watch=true&timeoutSeconds={'9' * 5000}", "timeoutSeconds"),
        ("watch=true&labelSelector=(", "labelSelector: '('"),
    ):
        status, body = await api.ask("GET", f"{MAPS}?{query}")
        assert (status, body["reason"]) == (400, "BadRequest")
        assert message in body["message"]


# --- bodies that make no sense -------------------------------------------------------------------

NONSENSE = (
    (b"{", "the body is not JSON"),
    (b"metadata:\n  name: a\n", "the body is not JSON"),
    (b"\xff\xfe", "the body is not JSON"),
    (b"[]", "the body is not an object"),
    (b'"x"', "the body is not an object"),
    (b'{"x": ' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 100 levels"),
    (b'{"x": ' + b'{"x": ' * 200 + b"1" + b"}" * 201, "nested more than 100 levels"),
    (b'{"x": ' + b"[" * 1_500_000 + b"]" * 1_500_000 + b"}", "the body is not JSON"),
)


async def test_a_body_that_is_no_object_is_refused(api: Served) -> None:
    for method, (body, message) in itertools.product(("POST", "PATCH", "DELETE"), NONSENSE):
        path = MAPS if method == "POST" else f"{MAPS}/a"
        status, answer = await api.ask(method, path, body, headers={"Content-Type": MERGE_PATCH})
        assert (status, answer["reason"]) == (400, "BadRequest")
        assert message in answer["message"]


async def test_a_body_may_have_many_levels(api: Served) -> None:
    deep = {"x": json.loads("[" * 98 + "]" * 98)}
    status, made = await api.ask("POST", MAPS, {**config_map(), "deep": deep})
    assert (status, made["deep"]) == (201, deep)
    assert (await api.ask("GET", MAPS))[1]["items"] == [made]


async def test_three_mebibytes_of_lists_are_no_trouble(api: Served) -> None:
    wide = b"[" + b"[]," * ((1 << 20) - 100) + b"[]]"
    body = b'{"metadata": {"name": "a"}, "data": ' + wide + b"}"
    status, answer = await api.ask("POST", MAPS, body)
    assert (status, answer["reason"]) == (422, "Invalid")
    assert len(answer["message"]) < 1000


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_body_that_is_too_large_is_not_read(api: Served, compressed: bool) -> None:
    body = b'{"data": {"x": "' + b"a" * (3 << 20) + b'"}}'
    headers = {"Content-Type": JSON}
    if compressed:
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    status, answer = await api.ask("POST", MAPS, body, headers=headers)
    refused = (415, "UnsupportedMediaType") if compressed else (413, "RequestEntityTooLarge")
    assert (status, answer["reason"]) == refused


async def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    kept = ObjectFolder(tmp_path / "objects")
    async with served(tmp_path, store=ObjectStore(admit=admit, changed=kept.changed)) as api:
        before = sorted(tmp_path.rglob("*"))
        for name in ("../../../evil", "a/b", "..", "%2e%2e%2fevil", "a%2fb", "a\x00b", "-"):
            status, answer = await api.ask("POST", MAPS, {"metadata": {"name": name}})
            assert (status, answer["reason"]) == (422, "Invalid")
            for path in (f"{MAPS}/{name}", f"/api/v1/namespaces/{name}/configmaps/a"):
                status, _ = await api.ask(
                    "PATCH",
                    f"{path}?fieldManager=m",
                    b"{}",
                    headers={"Content-Type": APPLY_PATCH},
                )
                assert status in {400, 404, 405, 422}
        assert sorted(tmp_path.rglob("*")) == before


async def test_a_deletion_that_asks_for_something_else_deletes_nothing(api: Served) -> None:
    api.store.create(CONFIG_MAPS, config_map())
    for body, message in (
        ({"gracePeriodSeconds": "5"}, "gracePeriodSeconds: '5' is no number"),
        ({"gracePeriodSeconds": -1}, "gracePeriodSeconds: -1"),
        ({"gracePeriodSeconds": True}, "gracePeriodSeconds: True"),
        ({"propagationPolicy": "Orphan"}, "propagationPolicy: 'Orphan' is not known here"),
        ({"propagationPolicy": ["Background"]}, "propagationPolicy: ['Background']"),
        ({"preconditions": [1]}, "preconditions: must be a map"),
        ({"dryRun": ["Some"]}, "dryRun"),
    ):
        status, answer = await api.ask("DELETE", f"{MAPS}/a", body)
        assert (status, answer["reason"]) == (400, "BadRequest")
        assert message in answer["message"]
    assert api.store.find(CONFIG_MAPS, "ns", "a") is not None


async def test_a_dry_run_changes_nothing(api: Served) -> None:
    api.store.create(CONFIG_MAPS, config_map(x="1"))
    api.store.create(RL_JOBS, job())
    api.store.create(ROLLOUT_POOLS, pool())
    before = api.store.version
    for method, path, body in (
        ("POST", MAPS, config_map("b")),
        ("PUT", f"{MAPS}/a", config_map(x="2")),
        ("PATCH", f"{MAPS}/a", {"data": {"x": "2"}}),
        ("DELETE", f"{MAPS}/a", {}),
        ("PATCH", f"{JOBS}/reverse/status", {"status": {"phase": "X"}}),
        ("PATCH", f"{POOLS}/lent/scale", {"spec": {"replicas": 5}}),
    ):
        headers = {"Content-Type": MERGE_PATCH if method == "PATCH" else JSON}
        content = json.dumps(body).encode()
        status, _ = await api.ask(method, f"{path}?dryRun=All", content, headers=headers)
        assert status < 300, path
        status, answer = await api.ask(method, f"{path}?dryRun=Some", content, headers=headers)
        assert (status, answer["message"]) == (400, "dryRun: 'Some': only 'All' is known")
    status, _ = await api.ask("DELETE", f"{MAPS}/a", {"dryRun": ["All"]})
    assert (status, api.store.version) == (200, before)


# --- scale ---------------------------------------------------------------------------------------


async def test_a_number_of_replicas_is_read_and_set_by_its_scale(api: Served) -> None:
    api.store.create(ROLLOUT_POOLS, pool(replicas=2))
    api.store.set_status(
        ROLLOUT_POOLS, "ns", "lent", {"status": {"replicas": 1, "selector": "a=b"}}
    )
    _, found = await api.ask("GET", f"{POOLS}/lent/scale")
    assert (found["kind"], found["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert found["spec"] == {"replicas": 2}
    assert found["status"] == {"replicas": 1, "selector": "a=b"}
    status, written = await api.ask(
        "PUT", f"{POOLS}/lent/scale", {**found, "spec": {"replicas": 3}}
    )
    assert (status, written["spec"]) == (200, {"replicas": 3})
    status, answer = await api.ask("PUT", f"{POOLS}/lent/scale", found)
    assert (status, answer["reason"]) == (409, "Conflict")
    status, _ = await api.ask(
        "PATCH",
        f"{POOLS}/lent/scale",
        b'{"spec": {"replicas": 4}}',
        headers={"Content-Type": MERGE_PATCH},
    )
    assert status == 200
    live = api.store.get(ROLLOUT_POOLS, "ns", "lent")
    assert (live["spec"]["replicas"], live["metadata"]["generation"]) == (4, 3)


async def test_a_number_of_replicas_is_a_number(api: Served) -> None:
    api.store.create(ROLLOUT_POOLS, pool())
    specs: tuple[Any, ...] = (None, [], {}, {"replicas": -1}, {"replicas": "2"}, {"replicas": True})
    for spec in specs:
        body = {"spec": spec}
        status, answer = await api.ask("PUT", f"{POOLS}/lent/scale", body)
        assert (status, answer["reason"]) == (422, "Invalid")
        assert "spec.replicas" in answer["message"]


async def test_a_scale_keeps_the_pools_bounds(api: Served) -> None:
    api.store.create(ROLLOUT_POOLS, pool(maxReplicas=3))
    status, answer = await api.ask("PUT", f"{POOLS}/lent/scale", {"spec": {"replicas": 4}})
    assert status == 422
    assert "spec.replicas: must not be above maxReplicas" in answer["message"]


async def test_what_has_no_replicas_has_no_scale(api: Served) -> None:
    api.store.create(RL_JOBS, job())
    for method in ("GET", "PUT"):
        status, _ = await api.ask(method, f"{JOBS}/reverse/scale", {"spec": {"replicas": 1}})
        assert status == 404


# --- faults --------------------------------------------------------------------------------------


async def test_of_two_clients_that_have_read_the_same_one_writes(api: Served) -> None:
    await api.client.create(CONFIG_MAPS, config_map(x="0"))
    read = await api.client.get(CONFIG_MAPS, namespace="ns", name="a")
    writes = [
        api.client.replace(CONFIG_MAPS, {**read, "data": {"x": str(number)}})
        for number in range(1, 9)
    ]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["ConflictError"] * 7 + ["dict"]


async def test_no_write_of_two_clients_is_lost(api: Served) -> None:
    await api.client.create(CONFIG_MAPS, config_map())
    await asyncio.gather(
        *(
            api.client.merge(CONFIG_MAPS, namespace="ns", name="a", patch={"data": {f"k{n}": "1"}})
            for n in range(20)
        )
    )
    live = await api.client.get(CONFIG_MAPS, namespace="ns", name="a")
    assert live["data"] == {f"k{n}": "1" for n in range(20)}


async def test_a_write_that_the_disk_does_not_take_fails_and_has_not_happened(
    tmp_path: Path,
) -> None:
    is_full = False

    def changed(_key: Key, _entry: Entry | None) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with served(tmp_path, store=ObjectStore(changed=changed)) as api:
        made = await api.client.create(CONFIG_MAPS, config_map(x="1"))
        is_full = True
        patch = {"data": {"x": "2"}}
        with pytest.raises(ServerError, match='configmaps "a" cannot be written: No space left'):
            await api.client.merge(CONFIG_MAPS, namespace="ns", name="a", patch=patch)
        assert await api.client.get(CONFIG_MAPS, namespace="ns", name="a") == made
        is_full = False
        await api.client.merge(CONFIG_MAPS, namespace="ns", name="a", patch=patch)


async def test_a_server_that_is_closed_frees_its_port(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        url = api.server.url
    port = int(url.rpartition(":")[2])
    again = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    again.close()
    await again.wait_closed()


async def test_events_of_one_group_are_not_those_of_another(api: Served) -> None:
    assert (await api.ask("GET", "/api/v1/namespaces/ns/events"))[0] == 404
    assert await api.client.list(EVENTS, namespace="ns") == ()


async def test_a_deployment_that_no_controller_could_read_is_refused(api: Served) -> None:
    with pytest.raises(RefusedError, match="spec: is required"):
        await api.client.create(DEPLOYMENTS, {"metadata": {"name": "d", "namespace": "ns"}})
