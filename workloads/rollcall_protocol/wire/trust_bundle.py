"""What a worker needs to check tokens without asking the API server."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TrustBundle:
    """Public data, which the operator writes into a ConfigMap of each job.

    `issuer` is that of the cluster's service-account tokens, `keys` its public keys (JWKs, RFC
    7517), `operator` the subject of the operator's own tokens
    (`system:serviceaccount:<namespace>:<name>`). `authorities` are the certificates (PEM) of those
    who sign certificates of the job's servers; empty where these have none.
    """

    issuer: str
    operator: str
    keys: tuple[dict[str, Any], ...]
    authorities: str = ""

    def __post_init__(self) -> None:
        """ValueError says what is missing."""
        if not self.issuer:
            raise ValueError("the issuer is empty")
        if not self.operator:
            raise ValueError("the operator's subject is empty")
        if not self.keys:
            raise ValueError("there is no key")
