"""The DNS names of pods inside of their processes."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from rollcall_local.kubelet import host_names

NAME, ADDRESS = "db-0.db.default.svc", "127.9.9.1"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The hosts that the machine itself is asked for."""
    hosts: list[Any] = []

    def usual(host: Any, *_rest: Any, **_more: Any) -> list[Any]:
        hosts.append(host)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", usual)
    return hosts


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps({NAME: ADDRESS}))
    monkeypatch.setenv(host_names.HOSTS, str(path))
    return path


@pytest.mark.parametrize(
    "name", [NAME, f"{NAME}.cluster.local", f"{NAME}.", f"{NAME}.cluster.local.", NAME.encode()]
)
def test_the_name_of_a_pod_leads_to_its_address(file: Path, asked: list[Any], name: Any) -> None:
    host_names.install()
    socket.getaddrinfo(name, 80)
    assert asked == [ADDRESS]


@pytest.mark.parametrize(
    "name", ["example.org", "other.db.default.svc", b"example.org", None, "127.0.0.1"]
)
def test_any_other_name_is_left_to_the_machine(file: Path, asked: list[Any], name: Any) -> None:
    host_names.install()
    socket.getaddrinfo(name, 80)
    assert asked == [name]


def test_only_names_of_services_need_the_file(file: Path, asked: list[Any]) -> None:
    host_names.install()
    file.write_text("not JSON")
    socket.getaddrinfo("example.org", 80)
    assert asked == ["example.org"]


def test_an_address_is_found_as_a_socket_needs_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)  # to be put back
    host_names.install()
    found = socket.getaddrinfo(NAME, 80, type=socket.SOCK_STREAM)
    assert [(family, address) for family, *_, address in found] == [(socket.AF_INET, (ADDRESS, 80))]


def test_a_file_that_changes_is_read_again(file: Path, asked: list[Any]) -> None:
    host_names.install()
    file.write_text(json.dumps({NAME: "127.9.9.2"}))
    socket.getaddrinfo(host=NAME, port=80)
    file.unlink()
    socket.getaddrinfo(NAME, 80)
    assert asked == ["127.9.9.2", NAME]


def test_without_a_file_nothing_changes(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(host_names.HOSTS, raising=False)
    before = socket.getaddrinfo
    host_names.install()
    assert socket.getaddrinfo is before
