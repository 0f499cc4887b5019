"""The way to the API server: its address and a proxy, read once."""

from pathlib import Path

import pytest

from rollcall_operator.kube.connection import connect, proxy_of_environment
from tests.unit.kubeconfig import write_kubeconfig

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("server", "variables", "proxy"),
    [
        ("https://10.0.0.1:6443", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://10.0.0.1:6443", {"https_proxy": PROXY, "no_proxy": "10.0.0.1,other"}, None),
        ("https://api.example", {"HTTPS_PROXY": PROXY, "NO_PROXY": ".example"}, None),
        ("https://10.0.0.1:6443", {"HTTP_PROXY": PROXY}, None),
        ("http://10.0.0.1:8080", {"http_proxy": PROXY}, PROXY),
        ("https://10.0.0.1:6443", {}, None),
    ],
)
def test_the_environment_names_a_proxy_by_scheme(
    server: str, variables: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_proxies(monkeypatch, **variables)
    assert proxy_of_environment(server) == proxy


@pytest.mark.parametrize("own", ["http://own.example:8080", None])
async def test_a_kubeconfig_names_a_proxy_before_the_environment_does(
    own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_proxies(monkeypatch, HTTPS_PROXY=PROXY)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    more = {"proxy-url": own} if own else {}
    kubeconfig = write_kubeconfig(tmp_path, "https://10.0.0.1:6443", **more)
    connection = await connect(kubeconfig=kubeconfig)
    try:
        assert connection.proxy == (own or PROXY)
        assert connection.api.configuration.client_session_kwargs["trust_env"] is False
    finally:
        await connection.close()


def set_proxies(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY", "REQUEST_METHOD"):
        for spelling in (name, name.lower()):
            monkeypatch.delenv(spelling, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
