"""Gives each member a key of its own, and newcomers and fronts tickets signed by them."""

import secrets
from collections.abc import Sequence

from rollcall_protocol.pod_contract import GENERATE_ROUTE
from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.messages import Hello, TicketKey
from rollcall_runtime.sync.weights.tickets import TicketKeys, sign_ticket


class TicketIssuer:
    """Keys by the address (host:port) at which a member serves weights.

    `own_addresses` are the coordinator's, whose weights `own_keys` guard. A member cannot take over
    an address that another has: it would only have newcomers refused there, but for longer.
    """

    def __init__(self, own_addresses: Sequence[str]) -> None:
        self.own_keys = TicketKeys()
        own = _new_key()
        self.own_keys.accept("coordinator", own)
        self._own = dict.fromkeys(own_addresses, own)
        self._keys: dict[str, tuple[MemberId, str]] = {}

    def open(self, hello: Hello) -> TicketKey:
        """The key of a member whose stream has opened, to be sent to it."""
        key, address = _new_key(), host_port(hello.address, hello.weights_port)
        holder = self._keys.get(address)
        if holder is None or holder[0].pod_uid == hello.member.pod_uid:
            self._keys[address] = hello.member, key
        return TicketKey(key)

    def close(self, member: MemberId) -> None:
        """The stream of a member ended: nothing opens its weights any more."""
        self._keys = {address: held for address, held in self._keys.items() if held[0] != member}

    def tickets(self, version: Version, donors: Sequence[str]) -> tuple[str, ...]:
        """A ticket for each donor; of a donor of several addresses, joined by "+", several."""
        return tuple(
            "+".join(self._ticket(address, str(version)) for address in donor.split("+"))
            for donor in donors
        )

    def of_front(self, rollout: Hello) -> tuple[str, str]:
        """Where a rollout answers the front, and the ticket to show there.

        The ticket names the endpoint, which no version is named like.
        """
        address = host_port(rollout.address, rollout.weights_port)
        return address, self._ticket(address, GENERATE_ROUTE)

    def _ticket(self, address: str, opens: str) -> str:
        """Empty for an address that no member has: the donor has just left."""
        own, held = self._own.get(address), self._keys.get(address)
        key = own or (held[1] if held else "")
        return sign_ticket(key, opens) if key else ""


def _new_key() -> str:
    return secrets.token_hex(32)
