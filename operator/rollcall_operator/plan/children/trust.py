"""The ConfigMap with what workers need to check tokens: public data, the same for all jobs."""

import json

from rollcall_operator.api import labels
from rollcall_operator.plan.children.trainer import common_labels, owner
from rollcall_operator.plan.model import Manifest
from rollcall_protocol.pod_contract import TRUST_FILE
from rollcall_protocol.wire.json_codec import encode
from rollcall_protocol.wire.trust_bundle import TrustBundle


def config_map(job: Manifest, trust: TrustBundle) -> Manifest:
    """The job's copy. The same bundle always gives the same text."""
    metadata = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": labels.trust_name(metadata["name"]),
            "namespace": metadata["namespace"],
            "labels": common_labels(metadata["name"], labels.TRAINER),
            "ownerReferences": owner(job),
        },
        "data": {TRUST_FILE: json.dumps(encode(trust), sort_keys=True)},
    }
