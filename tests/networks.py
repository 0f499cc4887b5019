"""Networks of loopback addresses for workers of tests, whose ports are always the same."""

from rollcall_local.kubelet.addresses import PodAddresses, hold_network

_HELD: list[PodAddresses] = []


def own_network() -> str:
    """`127.a.b`, without the last number: this process's alone until it ends.

    Random numbers would meet: the workers of several processes of tests listen at once, and
    hypothesis seeds `random` alike in each.
    """
    _HELD.append(hold_network())
    return _HELD[-1].network
