"""The job's NetworkPolicies: who may connect to its pods, and where these may connect to.

They select pods by the labels of job and role, so pools come and go without a change of theirs.
Where several policies select a pod, what one of them allows is allowed: a user opens more with a
NetworkPolicy of their own.
"""

from collections.abc import Iterable

from rollcall_operator.api import labels
from rollcall_operator.api.front import FrontSpec
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.children.child_objects import child_metadata
from rollcall_operator.plan.model import NETWORK_POLICY, Manifest, PolicyPeers
from rollcall_protocol import pod_contract

EGRESS = "egress"
ROLLOUTS = "rollouts"
_DNS_PORT = 53
_LAST_PORT = 65535
_DATA_PORTS = (
    (pod_contract.PARTS_PORT, pod_contract.METRICS_PORT - 1),
    (pod_contract.METRICS_PORT + 1, _LAST_PORT),
)
"""Where weights go: those of a pod's further ranks, and the ports that weight-sync libraries and
the kernel choose. The other ports are left out.
"""


def of_job(job: Manifest, spec: RLJobSpec, peers: PolicyPeers) -> tuple[Manifest, ...]:
    """All NetworkPolicies that the job should have; none where they are disabled.

    Where it is not known where the operator connects from, the port that it needs is open to all;
    it asks for a token.
    """
    if not spec.network_policy.enabled:
        return ()
    policies = [_policy(job, labels.TRAINER, labels.TRAINER, _to_trainer(job, spec, peers))]
    if spec.has_rollouts:
        policies.append(_policy(job, ROLLOUTS, labels.ROLLOUT, _to_rollouts(job, spec, peers)))
    if spec.reference.template is not None:
        to_reference = _to_reference(job, peers)
        policies.append(_policy(job, labels.REFERENCE, labels.REFERENCE, to_reference))
    if spec.front is not None:
        policies.append(_policy(job, labels.FRONT, labels.FRONT, _to_front(spec.front, peers)))
    if spec.network_policy.egress is not None:
        policies.append(_egress(job, spec.network_policy.egress))
    return tuple(policies)


def _to_trainer(job: Manifest, spec: RLJobSpec, peers: PolicyPeers) -> Iterable[Manifest]:
    operator: Manifest = {"ports": [_tcp(pod_contract.MEMBERSHIP_PORT)]}
    if peers.operator is not None:
        operator["from"] = list(peers.operator)
    yield operator
    yield {"from": [_pods(job, labels.TRAINER)]}
    if spec.has_rollouts:
        listeners = (pod_contract.MEMBERSHIP_PORT, pod_contract.COMPLETIONS_PORT)
        yield {"from": [_pods(job, labels.ROLLOUT)], "ports": _with_data(*listeners)}
        if spec.front is not None:
            yield {"from": [_pods(job, labels.FRONT)], "ports": [_tcp(port) for port in listeners]}
    yield from _to_metrics(peers)


def _to_rollouts(job: Manifest, spec: RLJobSpec, peers: PolicyPeers) -> Iterable[Manifest]:
    yield {
        "from": [_pods(job, labels.TRAINER), _pods(job, labels.ROLLOUT)],
        "ports": _with_data(pod_contract.AGENT_PORT),
    }
    if spec.front is not None:
        yield {"from": [_pods(job, labels.FRONT)], "ports": [_tcp(pod_contract.AGENT_PORT)]}
    yield from _to_metrics(peers)


def _to_reference(job: Manifest, peers: PolicyPeers) -> Iterable[Manifest]:
    yield {"from": [_pods(job, labels.TRAINER)], "ports": [_tcp(pod_contract.REFERENCE_PORT)]}
    yield from _to_metrics(peers)


def _to_front(front: FrontSpec, peers: PolicyPeers) -> Iterable[Manifest]:
    """With keys agents may be anywhere; without, they are pods of the namespace."""
    agents: Manifest = {"ports": [_tcp(pod_contract.FRONT_PORT)]}
    if front.without_api_keys:
        agents["from"] = [{"podSelector": {}}]
    yield agents
    yield from _to_metrics(peers)


def _to_metrics(peers: PolicyPeers) -> Iterable[Manifest]:
    if peers.monitoring:  # an empty list would mean all
        yield {"from": list(peers.monitoring), "ports": [_tcp(pod_contract.METRICS_PORT)]}


def _policy(job: Manifest, name: str, role: str, ingress: Iterable[Manifest]) -> Manifest:
    spec = {**_pods(job, role), "policyTypes": ["Ingress"], "ingress": list(ingress)}
    return _manifest(job, name, role, spec)


def _egress(job: Manifest, rules: Iterable[Manifest]) -> Manifest:
    """The user's rules come first, so that the API server's messages name their places."""
    dns = {"ports": [_tcp(_DNS_PORT), {"protocol": "UDP", "port": _DNS_PORT}]}
    everyone = _pods(job)
    allowed = [*(_completed(rule) for rule in rules), dns, {"to": [everyone]}]
    spec = {**everyone, "policyTypes": ["Egress"], "egress": allowed}
    return _manifest(job, EGRESS, labels.TRAINER, spec)


def _completed(rule: Manifest) -> Manifest:
    """A user's rule with the protocol that the API server would fill in."""
    ports = rule.get("ports")
    if not isinstance(ports, list) or not all(isinstance(port, dict) for port in ports):
        return rule  # for the API server to refuse
    return {**rule, "ports": [{"protocol": "TCP", **port} for port in ports]}


def _manifest(job: Manifest, name: str, role: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": NETWORK_POLICY,
        "metadata": child_metadata(job, f"{job['metadata']['name']}-{name}", role),
        "spec": spec,
    }


def _pods(job: Manifest, role: str = "") -> Manifest:
    """A selector of the job's pods of one role, or of all of them."""
    selected = {labels.JOB: job["metadata"]["name"], **({labels.ROLE: role} if role else {})}
    return {"podSelector": {"matchLabels": selected}}


def _with_data(*ports: int) -> list[Manifest]:
    ranges = [{**_tcp(first), "endPort": last} for first, last in _DATA_PORTS]
    return [*(_tcp(port) for port in ports), *ranges]


def _tcp(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}
