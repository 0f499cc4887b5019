"""Addresses of pods: each has its own, and this process alone gives those of its network."""

import socket
from typing import Any

import pytest

from rollcall_local.kubelet import addresses
from rollcall_local.kubelet.addresses import NoAddressError, PodAddresses, hold_network


@pytest.fixture
def given() -> PodAddresses:
    return PodAddresses("127.9.9", socket.socket(socket.AF_UNIX))


def test_each_pod_has_an_address_of_its_own_and_keeps_it(given: PodAddresses) -> None:
    first, second = given.of("default", "a"), given.of("default", "b")
    assert (first, second) == ("127.9.9.1", "127.9.9.2")
    assert given.of("default", "a") == first
    assert given.of("other", "a") == "127.9.9.3"
    assert given.names() == {
        ("default", "a"): first,
        ("default", "b"): second,
        ("other", "a"): "127.9.9.3",
    }
    given.close()


def test_an_address_that_is_free_again_is_given_once_all_others_were(given: PodAddresses) -> None:
    for number in range(250):
        given.of("default", f"pod-{number}")
    with pytest.raises(NoAddressError, match=r"250 pods have all addresses of 127\.9\.9"):
        given.of("default", "one-more")
    given.free("default", "pod-7")
    given.free("default", "never-there")
    assert given.of("default", "one-more") == "127.9.9.8"
    given.close()


def test_an_address_is_not_given_again_at_once(given: PodAddresses) -> None:
    first = given.of("default", "a")
    given.free("default", "a")
    assert given.of("default", "b") != first
    given.close()


def test_two_processes_have_different_networks_until_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "_NETWORKS", [(1, 1), (1, 2)])  # no others take them
    first, second = hold_network(), hold_network()
    assert first.network != second.network
    first.close()
    again = hold_network()
    assert again.network == first.network
    for each in (second, again):
        each.close()


def test_all_addresses_of_a_network_can_be_used() -> None:
    held = hold_network()
    with socket.socket() as probe:
        probe.bind((f"{held.network}.250", 0))
    held.close()


def test_a_machine_without_such_addresses_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(addresses, "_try", refuse)
    with pytest.raises(NoAddressError, match="pods need an address each in 127/8"):
        hold_network()


def test_a_port_that_a_program_has_at_all_addresses_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(addresses, "_PORTS", (port,))
        monkeypatch.setattr(addresses, "_NETWORKS", [(1, 3)])
        with pytest.raises(NoAddressError, match=f"port {port} of 127.1.3.251 .*sport = :{port}"):
            hold_network()
    hold_network().close()  # it holds nothing since it has refused


def test_networks_that_others_hold_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_NETWORKS", [])
    with pytest.raises(NoAddressError, match="hold all networks"):
        hold_network()
