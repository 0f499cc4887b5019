"""Pods and NetworkPolicies as the enforcement needs them, read from the API server's objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Labels = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicedPod:
    """A pod with an address of its own in the pod network.

    Attributes:
        ports: number by the protocol (upper case) and name of each named port.
    """

    namespace: str
    name: str
    node: str
    address: str
    labels: Labels
    ports: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNetworkState:
    """All that decides who may connect to whom.

    Attributes:
        pods: every pod with an address.
        namespaces: the labels of each namespace, by its name.
        policies: NetworkPolicies as the API server stores them, its defaults filled in.
    """

    pods: tuple[PolicedPod, ...]
    namespaces: dict[str, Labels]
    policies: tuple[dict[str, Any], ...]

    def peers(self, peer: Mapping[str, Any], *, namespace: str) -> Iterator[PolicedPod]:
        """The pods that a NetworkPolicyPeer without ipBlock selects for a policy in `namespace`."""
        of_namespaces, of_pods = peer.get("namespaceSelector"), peer.get("podSelector") or {}
        for pod in self.pods:
            if of_namespaces is None:
                inside = pod.namespace == namespace
            else:
                inside = matches(of_namespaces, self.namespaces.get(pod.namespace, {}))
            if inside and matches(of_pods, pod.labels):
                yield pod

    def rules(self, pod: PolicedPod, direction: str) -> list[tuple[str, dict[str, Any]]] | None:
        """What the policies that select a pod allow, as (the policy's namespace, its rule).

        Args:
            pod: the pod.
            direction: `Ingress` or `Egress`.

        Returns:
            None where no policy selects the pod, so that everything is allowed.
        """
        selecting = [
            policy
            for policy in self.policies
            if policy["metadata"]["namespace"] == pod.namespace
            and direction in policy["spec"].get("policyTypes", ())
            and matches(policy["spec"].get("podSelector") or {}, pod.labels)
        ]
        if not selecting:
            return None
        return [
            (pod.namespace, rule)
            for policy in selecting
            for rule in policy["spec"].get(direction.lower()) or ()
        ]


def read_state(
    *,
    pods: Iterable[Mapping[str, Any]],
    namespaces: Iterable[Mapping[str, Any]],
    policies: Iterable[dict[str, Any]],
) -> PodNetworkState:
    """From the API server's objects; the same ones in another order give the same state."""
    policed = [found for pod in pods if (found := _policed(pod)) is not None]
    labels = {n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in namespaces}
    kept = [{"metadata": _place(policy), "spec": policy["spec"]} for policy in policies]
    return PodNetworkState(
        pods=tuple(sorted(policed, key=lambda pod: (pod.namespace, pod.name))),
        namespaces=labels,
        policies=tuple(sorted(kept, key=lambda policy: tuple(policy["metadata"].values()))),
    )


def _place(policy: Mapping[str, Any]) -> dict[str, str]:
    return {key: policy["metadata"][key] for key in ("namespace", "name")}


def _policed(pod: Mapping[str, Any]) -> PolicedPod | None:
    """None for a pod on its node's network, one that has ended, and one without an address yet."""
    spec, status = pod["spec"], pod.get("status") or {}
    ended = status.get("phase") in {"Succeeded", "Failed"}
    if spec.get("hostNetwork") or ended or not status.get("podIP"):
        return None
    ports = {
        (port.get("protocol", "TCP"), port["name"]): port["containerPort"]
        for container in spec["containers"]
        for port in container.get("ports") or ()
        if "name" in port
    }
    return PolicedPod(
        namespace=pod["metadata"]["namespace"],
        name=pod["metadata"]["name"],
        node=spec.get("nodeName", ""),
        address=status["podIP"],
        labels=pod["metadata"].get("labels") or {},
        ports=ports,
    )


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector selects these labels; an empty one selects all.

    Raises:
        ValueError: it has an operator that the API does not know.
    """
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(_expression(entry, labels) for entry in selector.get("matchExpressions") or ())


def _expression(entry: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = entry["key"], entry["operator"], entry.get("values") or ()
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    raise ValueError(f"unknown operator {operator!r} in a label selector")
