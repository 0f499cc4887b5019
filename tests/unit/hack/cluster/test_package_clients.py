"""How package clients of this machine reach registries, for other roots to do the same."""

import shutil

import pytest

from hack.cluster import package_clients


def test_variables_that_lead_to_registries_are_passed_on_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for name in list(package_clients.environment()):
        monkeypatch.delenv(name)
    wanted = {
        "https_proxy": "http://proxy.test:3128",
        "NO_PROXY": "localhost",
        "SSL_CERT_FILE": "/etc/ssl/bundle.pem",
        "UV_INDEX_URL": "https://packages.test/simple",
        "GOPROXY": "https://modules.test",
    }
    others = {"PYTHONPATH": "/srv", "UV_CACHE_DIR": "/srv/uv", "GITHUB_TOKEN": "secret"}
    for name, value in (wanted | others).items():
        monkeypatch.setenv(name, value)
    assert package_clients.environment() == wanted
