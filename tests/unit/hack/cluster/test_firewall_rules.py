"""The firewall rules that enforce NetworkPolicies on the local cluster, judged packet by packet."""

import ipaddress
from dataclasses import dataclass, field
from typing import Any

import pytest

from hack.cluster.network_policies.firewall_rules import MAIN, PREFIX, restore_text
from hack.cluster.network_policies.selected_pods import matches, read_state

NODES = {"here": "10.244.1", "there": "10.244.2"}
SYSTEM = "kubernetes.io/metadata.name"


def pod(name: str, number: int, *, node: str = "here", namespace: str = "team", **more: Any) -> Any:
    """As the API server has it; labelled with its name."""
    port = {"name": "http", "containerPort": 8000 + number}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": [port]}], **more},
        "status": {"phase": "Running", "podIP": f"{NODES[node]}.{number}"},
    }


SERVER, CLIENT, OUTSIDER = pod("server", 2), pod("client", 3), pod("outsider", 4)
FAR, OTHER = pod("client", 5, node="there"), pod("client", 6, namespace="other")
FAR["metadata"]["name"] = "client-2"
PODS = [SERVER, CLIENT, OUTSIDER, FAR, OTHER]


def policy(spec: dict[str, Any], name: str = "p", namespace: str = "team") -> Any:
    kinds = [kind for kind in ("Ingress", "Egress") if kind.lower() in spec]
    spec = {"podSelector": {"matchLabels": {"app": "server"}}, "policyTypes": kinds, **spec}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def app(name: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {"app": name}}}


def tcp(port: int | str, **more: Any) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port, **more}


@dataclass
class Firewall:
    """One node's rules, as the kernel goes through them for a connection's first packet."""

    text: str
    chains: dict[str, list[list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for line in self.text.splitlines():
            if line.startswith(":"):
                self.chains[line[1:].split()[0]] = []
            elif line.startswith("-A"):
                _, chain, *words = line.split()
                self.chains[chain].append(words)

    def passes(self, source: str, target: str, port: int, protocol: str = "tcp") -> bool:
        return self._verdict(MAIN, (source, target, port, protocol)) != "DROP"

    def _verdict(self, chain: str, packet: tuple[str, str, int, str]) -> str:
        for words in self.chains[chain]:
            action = words[-1]
            if not _hits(words[:-2], packet):
                continue
            if action == "RETURN":
                return action
            if action == "DROP" or self._verdict(action, packet) == "DROP":
                return "DROP"
        return "RETURN"


def _hits(words: list[str], packet: tuple[str, str, int, str]) -> bool:
    source, target, port, protocol = packet
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option in {"-s", "-d"}:
            address = ipaddress.ip_address(source if option == "-s" else target)
            if address not in ipaddress.ip_network(value):
                return False
        elif option == "-p":
            if value != protocol:
                return False
        elif option == "--dport":
            first, _, last = value.partition(":")
            if not int(first) <= port <= int(last or first):
                return False
        else:  # -m conntrack --ctstate ...: no first packet
            return False
    return True


def firewall(*policies: Any, node: str = "here", pods: list[Any] = PODS, **more: Any) -> Firewall:
    namespaces = [
        {"metadata": {"name": name, "labels": {SYSTEM: name}}} for name in ("team", "other")
    ]
    state = read_state(pods=pods, namespaces=namespaces, policies=policies)
    return Firewall(restore_text(state, node=node, **more))


def address(found: Any) -> str:
    return str(found["status"]["podIP"])


def reach(rules: Firewall, target: Any, port: int, protocol: str = "tcp") -> set[str]:
    """Which pods, by namespace and name, may connect to a port."""
    return {
        f"{p['metadata']['namespace']}/{p['metadata']['name']}"
        for p in PODS
        if p is not target and rules.passes(address(p), address(target), port, protocol)
    }


ALL = {"team/client", "team/outsider", "team/client-2", "other/client"}


def test_without_a_policy_every_packet_passes() -> None:
    assert reach(firewall(), SERVER, 80) == ALL
    assert reach(firewall(policy({"ingress": []}, namespace="other")), SERVER, 80) == ALL


def test_a_selected_pod_accepts_nothing_but_what_a_rule_allows() -> None:
    assert reach(firewall(policy({"ingress": []})), SERVER, 80) == set()
    rules = firewall(policy({"ingress": [{"from": [app("client")], "ports": [tcp(80)]}]}))
    assert reach(rules, SERVER, 80) == {"team/client", "team/client-2"}
    assert reach(rules, SERVER, 81) == set()
    assert reach(rules, SERVER, 80, "udp") == set()
    assert reach(rules, OUTSIDER, 80) == {"team/server", *ALL} - {"team/outsider"}


def test_what_one_of_several_policies_allows_is_allowed() -> None:
    one = policy({"ingress": [{"from": [app("client")]}]}, "one")
    two = policy({"ingress": [{"ports": [tcp(9090)]}]}, "two")
    rules = firewall(one, two)
    assert reach(rules, SERVER, 80) == {"team/client", "team/client-2"}
    assert reach(rules, SERVER, 9090) == ALL


@pytest.mark.parametrize(
    ("peer", "who"),
    [
        ({"podSelector": {}}, {"team/client", "team/outsider", "team/client-2"}),
        ({"namespaceSelector": {}}, ALL),
        ({"namespaceSelector": {"matchLabels": {SYSTEM: "other"}}}, {"other/client"}),
        ({"namespaceSelector": {}, **app("client")}, ALL - {"team/outsider"}),
        ({"ipBlock": {"cidr": "10.244.1.0/24"}}, ALL - {"team/client-2"}),
        (
            {"ipBlock": {"cidr": "10.244.0.0/16", "except": ["10.244.1.4/31", "10.244.2.0/24"]}},
            {"team/client", "other/client"},
        ),
        ({"ipBlock": {"cidr": "fd00::/8"}}, set()),
        ({"ipBlock": {"cidr": "10.244.1.0/24", "except": ["10.0.0.0/8"]}}, set()),
    ],
)
def test_peers(peer: dict[str, Any], who: set[str]) -> None:
    assert reach(firewall(policy({"ingress": [{"from": [peer]}]})), SERVER, 80) == who


def test_a_range_of_ports_ends_at_its_end_port() -> None:
    rules = firewall(policy({"ingress": [{"ports": [tcp(7100, endPort=9089), tcp(9091)]}]}))
    passed = [p for p in (7099, 7100, 9089, 9090, 9091, 9092) if reach(rules, SERVER, p)]
    assert passed == [7100, 9089, 9091]


def test_a_protocol_without_a_port_means_all_its_ports() -> None:
    rules = firewall(policy({"ingress": [{"ports": [{"protocol": "UDP"}]}]}))
    assert reach(rules, SERVER, 5, "udp") == ALL
    assert reach(rules, SERVER, 5) == set()


def test_a_named_port_is_that_of_the_pod_that_listens() -> None:
    rules = firewall(policy({"ingress": [{"ports": [tcp("http")]}]}))
    assert reach(rules, SERVER, 8002) == ALL
    assert reach(rules, SERVER, 8003) == set()
    rules = firewall(policy({"egress": [{"to": [app("client")], "ports": [tcp("http")]}]}))
    assert rules.passes(address(SERVER), address(CLIENT), 8003)
    assert rules.passes(address(SERVER), address(FAR), 8005)
    assert not rules.passes(address(SERVER), address(CLIENT), 8005)


def test_egress_is_checked_apart_from_ingress() -> None:
    only_dns = {"ports": [tcp(53), {"protocol": "UDP", "port": 53}]}
    rules = firewall(policy({"egress": [only_dns, {"to": [app("client")]}]}))
    assert rules.passes(address(SERVER), "10.96.0.10", 53, "udp")
    assert rules.passes(address(SERVER), address(FAR), 443)
    assert not rules.passes(address(SERVER), "192.0.2.1", 443)
    assert reach(rules, SERVER, 80) == ALL
    both = firewall(policy({"egress": [{}]}), policy({"ingress": []}, "closed"))
    assert both.passes(address(SERVER), address(CLIENT), 80)
    assert reach(both, SERVER, 80) == set()


def test_on_one_node_the_receivers_policy_is_asked_after_the_senders() -> None:
    sender = policy({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}, "a")
    rules = firewall(sender, policy({"ingress": [{"from": [app("outsider")]}]}, "b"))
    assert reach(rules, SERVER, 80) == {"team/outsider"}


def test_a_node_has_rules_for_its_own_pods_alone() -> None:
    closed = policy({"podSelector": {}, "ingress": []})
    there = firewall(closed, node="there")
    assert reach(there, SERVER, 80) == ALL
    assert reach(there, FAR, 80) == set()


@pytest.mark.parametrize(
    "gone",
    [{"phase": "Succeeded"}, {"phase": "Failed"}, {"podIP": ""}],
    ids=["succeeded", "failed", "without an address"],
)
def test_addresses_of_pods_that_are_none_open_nothing(gone: dict[str, str]) -> None:
    client = {**CLIENT, "status": {**CLIENT["status"], **gone}}
    rules = policy({"ingress": [{"from": [app("client")]}]})
    found = firewall(rules, pods=[SERVER, client])
    assert not found.passes(address(CLIENT), address(SERVER), 80)


def test_pods_on_the_nodes_network_are_neither_protected_nor_peers() -> None:
    node = pod("client", 9, hostNetwork=True)
    rules = firewall(
        policy({"podSelector": {}, "ingress": [{"from": [app("client")]}]}), pods=[SERVER, node]
    )
    assert not rules.passes(address(node), address(SERVER), 80)
    assert rules.passes(address(SERVER), address(node), 80)


def test_answers_of_connections_that_were_allowed_come_first_and_old_chains_go() -> None:
    closed = policy({"ingress": []})
    first = firewall(closed)
    assert first.chains[MAIN][0][-3:] == ["RELATED,ESTABLISHED", "-j", "RETURN"]
    present = list(first.chains)
    second = firewall(present=present)
    (old,) = (chain for chain in present if chain != MAIN)
    assert old.startswith(PREFIX)
    assert f"\n:{old} - [0:0]\n" in second.text, "emptied, as a chain with rules cannot be removed"
    assert f"\n-X {old}\n" in second.text
    assert "-X" not in firewall(closed, present=present).text
    assert all(len(chain) <= 28 for chain in first.chains)


def test_the_order_in_which_objects_come_changes_nothing() -> None:
    rules = (policy({"ingress": []}, "a"), policy({"egress": []}, "b"))
    assert firewall(*rules).text == firewall(*rules[::-1], pods=PODS[::-1]).text


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [
        ("In", ["a", "b"], {"a", "b"}),
        ("NotIn", ["a"], {"b", "c", None}),
        ("Exists", [], {"a", "b", "c"}),
        ("DoesNotExist", [], {None}),
    ],
)
def test_expressions_of_selectors(
    operator: str, values: list[str], selected: set[str | None]
) -> None:
    selector = {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}
    found = {v for v in ("a", "b", "c", None) if matches(selector, {} if v is None else {"k": v})}
    assert found == selected
