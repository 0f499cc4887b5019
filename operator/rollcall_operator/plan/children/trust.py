"""The ConfigMap with what workers need to check tokens and servers: public data."""

import json
from dataclasses import replace

from rollcall_operator.api import labels
from rollcall_operator.plan.children.child_objects import child_metadata
from rollcall_operator.plan.model import Manifest
from rollcall_protocol.pod_contract import TRUST_FILE
from rollcall_protocol.wire.json_codec import encode
from rollcall_protocol.wire.trust_bundle import TrustBundle


def config_map(job: Manifest, trust: TrustBundle, authorities: str) -> Manifest:
    """The job's copy of `trust`, with the authorities (PEM) that its clients are to believe.

    The same values always give the same text.
    """
    name, bundle = job["metadata"]["name"], replace(trust, authorities=authorities)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(job, labels.trust_name(name), labels.TRAINER),
        "data": {TRUST_FILE: json.dumps(encode(bundle), sort_keys=True)},
    }
