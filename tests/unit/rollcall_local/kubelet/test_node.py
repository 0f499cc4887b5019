"""What all pods of the machine share: names, tokens, events, content."""

import errno
import json
import socket
from pathlib import Path
from typing import Any

import jwt
import pytest

from rollcall_local.api_server.errors import MissingObjectError
from rollcall_local.api_server.kinds import CLAIMS
from rollcall_local.api_server.service_tokens import ISSUER, ServiceTokens
from rollcall_local.api_server.store import ObjectStore
from rollcall_local.kubelet.addresses import PodAddresses
from rollcall_local.kubelet.machine import Machine
from rollcall_local.kubelet.node import Node, fields_of
from rollcall_local.kubelet.processes import ContainerRuntimes
from rollcall_operator.kube.resources import CONFIG_MAPS, EVENTS, PODS, SERVICE_ACCOUNTS

Object = dict[str, Any]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    with socket.socket(socket.AF_UNIX) as holder:
        nothing: Any = None
        return Node(
            store=ObjectStore(),
            tokens=ServiceTokens(tmp_path / "key.pem"),
            machine=Machine({}),
            addresses=PodAddresses("127.9.9", holder),
            runtimes=ContainerRuntimes(tmp_path),
            session=nothing,
            folder=tmp_path,
            python=Path("/own/python"),
            images={"vllm": Path("/vllm/python")},
        )


def pod(node: Node, name: str = "web-0", **spec: Any) -> Object:
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    return node.store.create(PODS, body)


def test_an_image_stands_for_an_environment_and_any_other_for_that_of_this_program(
    node: Node,
) -> None:
    assert node.python_of({"image": "vllm"}) == Path("/vllm/python")
    assert node.python_of({"image": "other"}) == node.python_of({}) == Path("/own/python")


def test_pods_with_a_host_name_a_subdomain_and_an_address_have_names(node: Node) -> None:
    for name in ("web-0", "web-1"):
        pod(node, name, hostname=name, subdomain="web")
    pod(node, "nameless")
    node.addresses.of("default", "nameless")
    address = node.addresses.of("default", "web-0")
    node.write_hosts()
    assert json.loads(node.hosts_file.read_text()) == {"web-0.web.default.svc": address}
    written = node.hosts_file.stat().st_ino
    node.write_hosts()
    assert node.hosts_file.stat().st_ino == written
    node.addresses.of("default", "web-1")
    node.write_hosts()
    assert json.loads(node.hosts_file.read_text()).keys() == {
        "web-0.web.default.svc",
        "web-1.web.default.svc",
    }


@pytest.mark.parametrize(("source", "audience"), [({"audience": "them"}, "them"), ({}, ISSUER)])
def test_a_token_is_that_of_the_pods_account_and_is_bound_to_the_pod(
    node: Node, source: Object, audience: str
) -> None:
    account = {"metadata": {"name": "worker", "namespace": "default"}}
    account = node.store.create(SERVICE_ACCOUNTS, account)
    made = pod(node, serviceAccountName="worker")
    token = node.sources(made, {}).token({**source, "path": "token", "expirationSeconds": 900})
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["sub"] == "system:serviceaccount:default:worker"
    assert claims["aud"] == [audience]
    assert claims["exp"] - claims["iat"] == 900
    assert claims["kubernetes.io"] == {
        "namespace": "default",
        "serviceaccount": {"name": "worker", "uid": account["metadata"]["uid"]},
        "pod": {"name": "web-0", "uid": made["metadata"]["uid"]},
    }


def test_a_token_needs_its_account(node: Node) -> None:
    with pytest.raises(MissingObjectError, match='serviceaccounts "default" not found'):
        node.sources(pod(node), {}).token({"path": "token"})


def test_content_and_claims_are_those_of_the_pods_namespace(node: Node) -> None:
    metadata = {"name": "settings", "namespace": "default"}
    node.store.create(CONFIG_MAPS, {"metadata": metadata, "data": {"a": "1"}})
    node.store.create(CLAIMS, {"metadata": {**metadata, "name": "mine"}})
    sources = node.sources(pod(node), {})
    assert sources.read("ConfigMap", "settings") == {"a": b"1"}
    assert sources.has_claim("mine")
    assert not sources.has_claim("other")
    assert sources.claims == node.folder / "claims" / "default"
    with pytest.raises(MissingObjectError):
        node.read("other", "ConfigMap", "settings")


def test_an_event_that_says_the_same_again_is_counted(node: Node) -> None:
    made = pod(node)
    for note in ("secret is away", "secret is away", "secret is away", "key is away"):
        node.record(made, reason="FailedMount", note=note)
    first, second = sorted(node.store.listed(EVENTS), key=lambda event: str(event["note"]))
    assert (second["note"], second["series"]["count"]) == ("secret is away", 3)
    assert "series" not in first
    assert first["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "web-0",
        "namespace": "default",
        "uid": made["metadata"]["uid"],
    }
    assert first["type"] == "Warning"


def test_an_event_that_the_disk_does_not_take_is_logged(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    made = pod(node)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    node.store = ObjectStore(changed=full)
    node.record(made, reason="FailedMount", note="secret is away")
    assert "No space left on device; it says: secret is away" in caplog.text


def test_the_downward_api_knows_labels_and_annotations_by_their_keys() -> None:
    metadata = {"name": "web", "namespace": "default", "uid": "1", "labels": {"app": "web"}}
    body = {"metadata": {**metadata, "annotations": {"a/b": "c"}}, "spec": {}}
    found = fields_of(body, "127.9.9.1")
    assert found["metadata.labels['app']"] == "web"
    assert found["metadata.annotations['a/b']"] == "c"
    assert found["status.podIP"] == "127.9.9.1"
    assert found["spec.serviceAccountName"] == "default"
