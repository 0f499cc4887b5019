"""The firewall rules of one node, from the NetworkPolicies: pure text in, text out.

Packets between pods, and from and to other nodes, pass the node's FORWARD hook; those between a
node and its own pods do not, which Kubernetes always allows. A packet is checked at the node of its
sender (egress) and at the one of its receiver (ingress). Rules are in the table `mangle`, in which
nothing else accepts packets before them.
"""

from __future__ import annotations

import hashlib
import ipaddress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hack.cluster.network_policies.selected_pods import PodNetworkState, PolicedPod

TABLE = "mangle"
PREFIX = "ROLLCALL-"
MAIN = f"{PREFIX}POLICIES"
_OPTIONS = {"Ingress": ("-d", "-s"), "Egress": ("-s", "-d")}
"""By direction: the option for the pod that a policy selects, and the one for its peers."""
_ANY = ""


def restore_text(state: PodNetworkState, *, node: str, present: Iterable[str] = ()) -> str:
    """What `iptables-restore --noflush` makes the node's rules from, all at once.

    Args:
        state: of the whole cluster.
        node: the name of the node.
        present: chains of the table that begin with PREFIX; those that are not needed are removed.
    """
    jumps, chains = [], {}
    for pod in state.pods:
        for direction, (own, _) in _OPTIONS.items() if pod.node == node else ():
            rules = state.rules(pod, direction)
            if rules is not None:
                chain = _chain(pod, direction)
                jumps.append(f"-A {MAIN} {own} {pod.address}/32 -j {chain}")
                allowed = _allowed(state, pod, direction, rules)
                chains[chain] = [f"-A {chain}{match} -j RETURN" for match in dict.fromkeys(allowed)]
    removed = sorted(set(present) - chains.keys() - {MAIN})
    lines = [f"*{TABLE}", *(f":{chain} - [0:0]" for chain in (MAIN, *chains, *removed))]
    lines.append(f"-A {MAIN} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN")
    lines += jumps
    for chain, returns in chains.items():
        lines += [*returns, f"-A {chain} -j DROP"]
    lines += [f"-X {chain}" for chain in removed]
    return "\n".join([*lines, "COMMIT", ""])


def _chain(pod: PolicedPod, direction: str) -> str:
    """A name of at most 28 characters, which is all that iptables takes."""
    text = f"{pod.namespace}/{pod.name}/{pod.address}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{PREFIX}{'IN' if direction == 'Ingress' else 'OUT'}-{digest}"


def _allowed(
    state: PodNetworkState,
    pod: PolicedPod,
    direction: str,
    rules: Iterable[tuple[str, Mapping[str, Any]]],
) -> Iterator[str]:
    """The matches of packets that one of the rules allows, each with a space before it."""
    option = _OPTIONS[direction][1]
    for namespace, rule in rules:
        for network, receiver in _peers(state, rule, direction, namespace):
            match = f" {option} {network}" if network else _ANY
            listening = pod if direction == "Ingress" else receiver
            yield from (f"{match}{ports}" for ports in _ports(rule, listening))


def _peers(
    state: PodNetworkState, rule: Mapping[str, Any], direction: str, namespace: str
) -> Iterator[tuple[str, PolicedPod | None]]:
    """Networks that a rule names, each with its pod if it is one; empty: all addresses."""
    peers = rule.get("from" if direction == "Ingress" else "to") or ()
    if not peers:
        yield _ANY, None
    for peer in peers:
        if "ipBlock" in peer:
            yield from ((network, None) for network in _networks(peer["ipBlock"]))
        else:
            for found in state.peers(peer, namespace=namespace):
                yield f"{found.address}/32", found


def _networks(block: Mapping[str, Any]) -> list[str]:
    """An ipBlock without its exceptions; IPv6 has no part in this network."""
    whole = ipaddress.ip_network(block["cidr"], strict=False)
    left = [whole] if isinstance(whole, ipaddress.IPv4Network) else []
    for text in block.get("except") or ():
        hole = ipaddress.ip_network(text, strict=False)
        if isinstance(hole, ipaddress.IPv4Network):
            left = [part for network in left for part in _without(network, hole)]
    return [str(network) for network in sorted(left)]


def _without(
    network: ipaddress.IPv4Network, hole: ipaddress.IPv4Network
) -> Iterable[ipaddress.IPv4Network]:
    if network.subnet_of(hole):
        return ()
    return network.address_exclude(hole) if hole.subnet_of(network) else (network,)


def _ports(rule: Mapping[str, Any], listening: PolicedPod | None) -> Iterator[str]:
    """Matches of the ports of a rule; a name is looked up at the pod that listens."""
    ports = rule.get("ports") or ()
    if not ports:
        yield _ANY
    for entry in ports:
        protocol, port = entry.get("protocol", "TCP"), entry.get("port")
        if isinstance(port, str):
            port = listening.ports.get((protocol, port)) if listening else None
            if port is None:
                continue
        match = f" -p {protocol.lower()}"
        if port is not None:
            last = f":{entry['endPort']}" if "endPort" in entry else ""
            match += f" --dport {port}{last}"
        yield match
