"""Which servers of a job show a certificate, and which authorities the job's clients believe."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rollcall_operator.api import labels
from rollcall_operator.plan.children.child_objects import child_metadata
from rollcall_operator.plan.model import Manifest
from rollcall_protocol.pod_contract import TRUST_FILE
from rollcall_protocol.wire.json_codec import encode
from rollcall_protocol.wire.trust_bundle import TrustBundle

_END = "-----END CERTIFICATE-----"
_EARLIER = 3
"""How many authorities of the operator's past a job goes on believing."""


@dataclass(frozen=True, slots=True)
class WantedCertificate:
    """A Secret that the operator makes: for pods of this role, with a certificate for `host`."""

    role: str
    secret: str
    host: str


def speaks_tls(job: Manifest) -> bool:
    """Whether the job's servers do; also of a spec that cannot be read otherwise."""
    return bool((job["spec"].get("tls") or {}).get("enabled", True))


def server_certificates(job: Manifest) -> tuple[WantedCertificate, ...]:
    """Those that the operator makes for the job."""
    spec, name = job["spec"], job["metadata"]["name"]
    if not speaks_tls(job) or (spec.get("tls") or {}).get("secretName"):
        return ()
    namespace = job["metadata"]["namespace"]
    trainer = WantedCertificate(
        labels.TRAINER,
        labels.certificate_name(labels.trainer_name(name)),
        labels.coordinator_host(name, namespace),
    )
    if "template" not in (spec.get("reference") or {}):
        return (trainer,)
    return (
        trainer,
        WantedCertificate(
            labels.REFERENCE,
            labels.certificate_name(labels.reference_name(name)),
            labels.reference_host(name, namespace),
        ),
    )


def believed_authorities(job: Manifest, live: Iterable[Manifest], own: str) -> str:
    """Certificates (PEM) of those who sign for the job's servers; empty without TLS.

    `own` is the operator's authority. Earlier ones of its that the live ConfigMap has stay, since
    they signed certificates that servers still show.
    """
    if not speaks_tls(job):
        return ""
    bundle = (job["spec"].get("tls") or {}).get("caBundle")
    if bundle:
        return str(bundle)
    earlier = [each for each in _certificates(_live_bundle(job, live)) if each != own]
    return "".join((own, *earlier[:_EARLIER]))


def trust_config_map(job: Manifest, trust: TrustBundle, authorities: str) -> Manifest:
    """The ConfigMap with what workers need to check tokens and servers, which is public data.

    It is the job's copy of `trust`, with the authorities (PEM) that its clients are to believe. The
    same values always give the same text.
    """
    name, bundle = job["metadata"]["name"], replace(trust, authorities=authorities)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(job, labels.trust_name(name), labels.TRAINER),
        "data": {TRUST_FILE: json.dumps(encode(bundle), sort_keys=True)},
    }


def _live_bundle(job: Manifest, live: Iterable[Manifest]) -> str:
    wanted = ("ConfigMap", labels.trust_name(job["metadata"]["name"]))
    for child in live:
        if (child["kind"], child["metadata"]["name"]) == wanted:
            try:
                return str(json.loads(child["data"][TRUST_FILE])["authorities"])
            except (KeyError, TypeError, ValueError):  # of an earlier release, or changed by hand
                return ""
    return ""


def _certificates(bundle: str) -> list[str]:
    return [f"{each.strip()}\n{_END}\n" for each in bundle.split(_END)[:-1]]
