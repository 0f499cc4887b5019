"""How a coordinator is reached: directly, or through the API server's pod proxy."""

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import trustme

from rollcall_operator.kube.pod_dialer import PodAddress, PodDialer
from rollcall_protocol.pod_contract import OPERATOR_TOKEN_HEADER
from tests.certificates import certificate_of

if TYPE_CHECKING:
    from rollcall_operator.kube.connection import Connection

POD = PodAddress(namespace="ns", name="j-trainer-0", uid="u", ip="10.1.2.3")


async def test_direct_uses_the_pod_address_and_a_bearer_token() -> None:
    endpoint = await PodDialer(None, direct=True).endpoint(POD, port=7070, token="t")
    assert endpoint.url == "http://10.1.2.3:7070"
    assert endpoint.headers == {"Authorization": "Bearer t"}, "once: headers are bounded"


async def test_a_pod_that_speaks_tls_must_prove_that_it_is_the_host_that_is_meant() -> None:
    pod = replace(POD, host="j-trainer-0.j", authorities=certificate_of(trustme.CA()))
    endpoint = await PodDialer(None, direct=True).endpoint(pod, port=7070, token="t")
    assert endpoint.url == "https://10.1.2.3:7070"
    assert endpoint.tls["server_hostname"] == "j-trainer-0.j"
    context = endpoint.tls["ssl"]
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1


async def test_an_ipv6_address_is_bracketed() -> None:
    pod = PodAddress(namespace="ns", name="p", uid="u", ip="fd00::1")
    endpoint = await PodDialer(None, direct=True).endpoint(pod, port=7070, token="t")
    assert endpoint.url == "http://[fd00::1]:7070"


async def test_the_proxy_is_asked_to_speak_tls() -> None:
    async def auth_headers() -> dict[str, str]:
        return {}

    connection = SimpleNamespace(server="https://api:6443", auth_headers=auth_headers)
    dialer = PodDialer(cast("Connection", connection), direct=False)
    pod = replace(POD, host="j-trainer-0.j", authorities=certificate_of(trustme.CA()))
    endpoint = await dialer.endpoint(pod, port=7070, token="t")
    assert endpoint.url.endswith("/pods/https:j-trainer-0:7070/proxy")
    assert endpoint.tls == {}


async def test_the_proxy_gets_the_cluster_credentials_and_the_pod_its_token() -> None:
    async def auth_headers() -> dict[str, str]:
        return {"Authorization": "bearer of-the-cluster"}

    connection = SimpleNamespace(server="https://api:6443", auth_headers=auth_headers)
    dialer = PodDialer(cast("Connection", connection), direct=False)
    endpoint = await dialer.endpoint(POD, port=7070, token="t")
    assert endpoint.url == "https://api:6443/api/v1/namespaces/ns/pods/j-trainer-0:7070/proxy"
    assert endpoint.headers == {
        OPERATOR_TOKEN_HEADER: "t",
        "Authorization": "bearer of-the-cluster",
    }


def test_a_proxy_without_a_connection_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="connection"):
        PodDialer(None, direct=False)


async def test_headers_are_kept_out_of_the_repr() -> None:
    endpoint = await PodDialer(None, direct=True).endpoint(POD, port=1, token="secret-token")
    assert "secret-token" not in repr(endpoint)
