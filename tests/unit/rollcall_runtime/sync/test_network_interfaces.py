"""A network interface by name becomes the address to bind to."""

import pytest

from rollcall_runtime.sync.network_interfaces import address_of


def test_an_interfaces_address_is_found_by_its_name() -> None:
    assert address_of("lo", like="10.1.2.3") == "127.0.0.1"


def test_an_ipv6_pod_gets_the_interfaces_ipv6_address() -> None:
    assert address_of("lo", like="fd00::1") == "::1"


@pytest.mark.parametrize("name", ["no-such", "a-name-that-is-longer-than-any"])
@pytest.mark.parametrize(("pod", "family"), [("10.1.2.3", "IPv4"), ("fd00::1", "IPv6")])
def test_a_missing_interface_is_reported_with_the_existing_ones(
    name: str, pod: str, family: str
) -> None:
    with pytest.raises(ValueError, match=f"no network interface '{name}' with an {family}.*lo"):
        address_of(name, like=pod)
